import hashlib
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.1)
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Dropout(0.3), nn.ReLU(), nn.Linear(10, 3))

    def forward(self, x):
        return self.classifier(self.features(x))


def digest(model):
    sha = hashlib.sha256()
    for name, value in model.state_dict().items():
        sha.update(name.encode() + value.numpy().tobytes())
    return sha.hexdigest()


def main():
    torch.manual_seed(62)
    torch.set_num_threads(1)
    x = torch.randn(80, 1, 8, 8)
    y = x.flatten(1).mean(1).mul(20).long().clamp(-1, 1) + 1
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    for epoch in range(12):
        model.train()
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)
        model.eval()
        with torch.no_grad():
            accuracy = (model(x).argmax(1) == y).float().mean().item()
        print(f"epoch {epoch} loss {loss.item():.7f} accuracy {accuracy:.4f}", flush=True)
    print(digest(model))


if __name__ == "__main__":
    main()
