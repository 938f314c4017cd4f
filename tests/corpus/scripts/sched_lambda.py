import math
import time

import torch

WARMUP = 20
TOTAL = 140


class Decay:
    """A factor that remembers what it gave."""

    def __init__(self):
        self.given = []

    def __call__(self, step):
        self.given.append(math.cos(0.5 * math.pi * step / TOTAL))
        return self.given[-1]


def main():
    torch.manual_seed(25)
    torch.set_num_threads(1)
    model = torch.nn.ModuleList([torch.nn.Linear(5, 8), torch.nn.Linear(8, 1)])
    decay = Decay()
    optimizer = torch.optim.SGD([{"params": layer.parameters(), "lr": 0.1} for layer in model], momentum=0.9)
    warm = lambda step: min(1.0, (step + 1) / WARMUP)  # noqa: E731
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda=[warm, decay])
    for step in range(TOTAL):
        x = torch.randn(10, 5)
        loss = (model[1](model[0](x).relu()) - x.mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        time.sleep(0.011)
        if step % 10 == 9:
            print(step, f"{loss.item():.8f}", [f"{lr:.7f}" for lr in scheduler.get_last_lr()], flush=True)
    torch.save({"model": model.state_dict(), "given": decay.given}, "out.pt")


if __name__ == "__main__":
    main()
