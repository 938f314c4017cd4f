import contextlib
import time

import torch


class Averaged:
    """On leaving, the weights are half of what they were on entering."""

    def __init__(self, model):
        self.model = model

    def __enter__(self):
        self.before = [p.detach().clone() for p in self.model.parameters()]

    def __exit__(self, *_):
        with torch.no_grad():
            for p, before in zip(self.model.parameters(), self.before):
                p.lerp_(before, 0.5)


@contextlib.contextmanager
def slower(optimizer, factor):
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] *= factor
    yield
    for group, rate in zip(optimizer.param_groups, rates):
        group["lr"] = rate


class Run:
    def __init__(self):
        self.model = torch.nn.Linear(5, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.step, self.log = 0, []

    def epoch(self):
        total = 0.0
        for _ in range(12):
            x = torch.randn(16, 5)
            loss = torch.nn.functional.mse_loss(self.model(x), x.mean(1, keepdim=True))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            total += loss.item()
            time.sleep(0.008)
        return total / 12


def main():
    torch.manual_seed(54)
    torch.set_num_threads(1)
    run = Run()
    for number in range(10):
        with Averaged(run.model):
            run.log.append((number, run.step, run.epoch()))
        if number % 3 == 2:
            with slower(run.optimizer, 0.5):
                mean = run.epoch()
        else:
            mean = run.epoch()
        print(number, run.step, f"{mean:.6f}", run.optimizer.param_groups[0]["lr"], flush=True)
    torch.save({"model": run.model.state_dict(), "log": run.log}, "out.pt")


if __name__ == "__main__":
    main()
