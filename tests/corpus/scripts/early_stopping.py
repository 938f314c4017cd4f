import copy
import time

import torch
from torch.utils.data import DataLoader, TensorDataset, random_split


class EarlyStopping:
    def __init__(self, patience):
        self.patience = patience
        self.best = None
        self.best_weights = None
        self.bad = 0

    def __call__(self, value, model):
        if self.best is None or value < self.best - 1e-4:
            self.best, self.bad = value, 0
            self.best_weights = copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad >= self.patience


def main():
    torch.manual_seed(28)
    torch.set_num_threads(1)
    x = torch.randn(70, 10)
    train, valid = random_split(TensorDataset(x, x[:, :1] + 0.5 * torch.randn(70, 1)), [40, 30])
    loader = DataLoader(train, batch_size=8, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(10, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    stopping = EarlyStopping(patience=20)
    for epoch in range(200):
        for a, b in loader:
            loss = (model(a) - b).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.007)
        with torch.no_grad():
            score = sum((model(a) - b).square().sum().item() for a, b in DataLoader(valid, batch_size=10)) / 30
        print(f"epoch {epoch} train {loss.item():.6f} valid {score:.6f} bad {stopping.bad}", flush=True)
        if stopping(score, model):
            print("stopping early at epoch", epoch)
            break
    model.load_state_dict(stopping.best_weights)
    torch.save(model.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
