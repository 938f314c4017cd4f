import time

import torch
from torch import nn


class Multitask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
        self.heads = nn.ModuleDict({"a": nn.Linear(16, 1), "b": nn.Linear(16, 3)})

    def forward(self, x, task):
        return self.heads[task](self.trunk(x))


def main():
    torch.manual_seed(14)
    torch.set_num_threads(1)
    model = Multitask()
    optimizers = {
        "trunk": torch.optim.AdamW(model.trunk.parameters(), lr=1e-2, amsgrad=True),
        "heads": torch.optim.SGD(model.heads.parameters(), lr=5e-2, momentum=0.9, nesterov=True),
    }
    schedulers = [torch.optim.lr_scheduler.StepLR(o, step_size=3, gamma=0.7) for o in optimizers.values()]
    x = torch.randn(64, 6)
    for epoch in range(12):
        for rows in torch.randperm(64).split(6):
            task = "a" if torch.rand(()).item() < 0.5 else "b"
            out = model(x[rows], task)
            loss = out.square().mean() if task == "a" else nn.functional.cross_entropy(out, rows % 3)
            for optimizer in optimizers.values():
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers.values():
                optimizer.step()
            time.sleep(0.012)
        for scheduler in schedulers:
            scheduler.step()
        print(epoch, task, f"{loss.item():.7f}", [s.get_last_lr()[0] for s in schedulers], flush=True)
    torch.save(model.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
