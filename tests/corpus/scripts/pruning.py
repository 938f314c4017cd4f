import time

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune


def main():
    torch.manual_seed(68)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), parametrizations.weight_norm(nn.Linear(16, 16)), nn.Linear(16, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(14):
        if epoch in (3, 6, 9):
            prune.l1_unstructured(model[0], "weight", amount=0.3)
            prune.random_unstructured(model[3], "weight", amount=2)
        for _ in range(10):
            x = torch.randn(8, 8)
            loss = (model(x) - x[:, :2].sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)
        zeros = (model[0].weight == 0).sum().item()
        print(f"epoch {epoch} zeros {zeros} loss {loss.item():.7f}", flush=True)
    prune.remove(model[0], "weight")
    prune.remove(model[3], "weight")
    torch.save(model.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
