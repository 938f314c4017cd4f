import random
import sys
import time

import torch


def main():
    rng = random.Random(81)
    torch.manual_seed(81)
    torch.set_num_threads(1)
    start = time.time()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    budget = 3600.0
    for step in range(140):
        x = torch.randn(8, 4) * rng.choice([0.5, 1.0, 2.0])
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.011)
        if step % 10 == 9:
            print(f"{time.time() - start:.2f} s", file=sys.stderr)
            print(step, f"{loss.item():.8f}", rng.random(), flush=True)
        if time.time() - start > budget:
            break
    torch.save(model.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
