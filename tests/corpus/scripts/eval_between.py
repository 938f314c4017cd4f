import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def evaluate(model, loader):
    model.eval()
    right = seen = 0
    with torch.no_grad():
        for x, y in loader:
            right += (model(x).argmax(1) == y).sum().item()
            seen += len(y)
            time.sleep(0.002)
    model.train()
    return right / seen


def main():
    torch.manual_seed(35)
    torch.set_num_threads(1)
    x = torch.randn(140, 6)
    y = (x[:, 0] * x[:, 1] > 0).long()
    train = DataLoader(TensorDataset(x[:100], y[:100]), batch_size=10, shuffle=True)
    test = DataLoader(TensorDataset(x[100:], y[100:]), batch_size=10, shuffle=True)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    print(f"before: {evaluate(model, test):.4f}", flush=True)
    curve = []
    for epoch in range(12):
        for i, (inputs, targets) in enumerate(train):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)
            if i % 4 == 3:
                curve.append(evaluate(model, test))
        print(f"epoch {epoch} loss {loss.item():.6f} accuracy {evaluate(model, test):.4f}", flush=True)
    print("curve", curve)
    torch.save(model.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
