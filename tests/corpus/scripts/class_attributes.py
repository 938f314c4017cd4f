import time

import torch


class Meter:
    count = 0
    totals = {}  # noqa: RUF012
    last = None

    @classmethod
    def add(cls, name, value):
        cls.count += 1
        cls.totals[name] = cls.totals.get(name, 0.0) + value
        cls.last = name


class Config:
    lr = 0.1
    noise = 0.5


class Registry(type):
    made = []  # noqa: RUF012

    def __call__(cls, *args, **kwargs):
        instance = super().__call__(*args, **kwargs)
        Registry.made.append(cls.__name__)
        return instance


class Batch(metaclass=Registry):
    def __init__(self, n):
        self.x = torch.randn(n, 3)


def main():
    torch.manual_seed(36)
    torch.set_num_threads(1)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=Config.lr)
    for step in range(130):
        batch = Batch(6)
        loss = (model(batch.x) - batch.x.sum(1, keepdim=True) + Config.noise * torch.randn(6, 1)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        Meter.add("even" if step % 2 == 0 else "odd", loss.item())
        if step % 10 == 9:
            Config.noise *= 0.9
            for group in optimizer.param_groups:
                group["lr"] = Config.lr = Config.lr * 0.97
            print(Meter.count, Meter.last, Meter.totals, Config.noise, len(Registry.made), flush=True)
        time.sleep(0.012)
    torch.save({"model": model.state_dict(), "totals": Meter.totals}, "out.pt")


main()
