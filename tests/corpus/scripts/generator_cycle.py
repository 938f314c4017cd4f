"""Trains by steps, not by epochs: the batches come from a loader that is repeated for ever."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def infinite(loader):
    epoch = 0
    while True:
        for x, y in loader:
            yield epoch, x, y
        epoch += 1


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return accuracy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--eval-every", type=int, default=20)
    args = parser.parse_args()

    torch.manual_seed(5)
    torch.set_num_threads(1)
    x = torch.randn(160, 6)
    y = (x[:, 0] * x[:, 1] > 0).long()
    loader = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=12, shuffle=True, num_workers=2, drop_last=True)
    data = infinite(loader)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=args.steps)

    for step in range(args.steps):
        epoch, images, labels = next(data)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        time.sleep(0.012)
        if (step + 1) % args.eval_every == 0:
            accuracy = evaluate(model, x[128:], y[128:])
            print(f"step {step + 1} epoch {epoch} loss {loss.item():.6f} accuracy {accuracy:.3f}", flush=True)
    torch.save(model.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
