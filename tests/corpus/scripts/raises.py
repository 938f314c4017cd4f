import time

import torch


class Diverged(Exception):
    pass


def check(loss, step):
    if step >= 120:
        raise Diverged(f"loss {loss:.7f} at step {step}")


def main():
    torch.manual_seed(74)
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    skipped = 0
    for step in range(1000):
        x = torch.randn(8, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        try:
            if step % 17 == 3:
                raise ValueError("bad batch")
            optimizer.step()
        except ValueError:
            skipped += 1
        time.sleep(0.011)
        if step % 10 == 0:
            print(step, skipped, f"{loss.item():.7f}", flush=True)
        torch.save(model.state_dict(), "out.pt")
        check(loss.item(), step)


main()
