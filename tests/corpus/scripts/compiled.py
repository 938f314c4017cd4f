import time

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.relu(layer(self.norm(x)))
        return x


@torch.compile(backend="aot_eager")
def loss_of(output, target):
    total = 0.0
    for column in range(3):
        total = total + (output[:, column] - target[:, column]).square().mean()
    return total


def main():
    torch.manual_seed(51)
    torch.set_num_threads(1)
    net = Net()
    model = torch.compile(net, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for epoch in range(8):
        for _ in range(12):
            x = torch.randn(8, 6)
            loss = loss_of(model(x), x.roll(1, dims=1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.012)
        print(f"epoch {epoch} loss {loss.item():.7f}", flush=True)
    torch.save(net.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
