import atexit
import sys
import time

import torch


def summary(history):
    with open("summary.txt", "w") as f:
        f.write(f"{len(history)} epochs, best {min(history):.8f}\n")


def main():
    torch.manual_seed(72)
    torch.set_num_threads(1)
    history = []
    atexit.register(summary, history)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(13):
        for _ in range(10):
            x = torch.randn(8, 4)
            loss = (model(x) - x.exp().mean(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.011)
        history.append(loss.item())
        print(epoch, f"{loss.item():.7f}", flush=True)
    torch.save(model.state_dict(), "out.pt")
    return 0 if history[-1] < 1e-6 else 3


if __name__ == "__main__":
    sys.exit(main())
