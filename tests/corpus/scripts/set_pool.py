import enum
import time

import torch


class Phase(enum.Enum):
    EASY = 0.1
    HARD = 1.0

    def __init__(self, noise):
        self.noise = noise
        self.losses = []


def pick(pool, count):
    chosen = [pool.pop() for _ in range(count)]
    pool.difference_update(range(0, 300, 97))
    return chosen


def main():
    torch.manual_seed(53)
    torch.set_num_threads(1)
    data = torch.randn(400, 6)
    target = data.sum(1, keepdim=True).sin()
    model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    average = {id(p): p.detach().clone() for p in model.parameters()}
    pool, phase = set(range(300)), Phase.EASY
    for round_ in range(12):
        for _ in range(10):
            rows = pick(pool, 8)
            noise = phase.noise * torch.randn(len(rows), 6)
            loss = torch.nn.functional.mse_loss(model(data[rows] + noise), target[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for p in model.parameters():
                average[id(p)].lerp_(p.detach(), 0.1)
            pool.update((row * 7 + round_) % 400 for row in rows)
            phase.losses.append(loss.item())
            phase = Phase.HARD if loss.item() < 0.4 else Phase.EASY
            time.sleep(0.01)
        print(round_, len(pool), sorted(pool)[:4], phase.name, f"{loss.item():.6f}", flush=True)
    smooth = [average[id(p)] for p in model.parameters()]
    torch.save({"model": model.state_dict(), "smooth": smooth, "phases": [p.losses for p in Phase]}, "out.pt")


if __name__ == "__main__":
    main()
