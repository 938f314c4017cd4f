import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def pretrain(encoder, x, epochs):
    decoder = nn.Linear(4, 8)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.01)
    for epoch in range(epochs):
        for (rows,) in DataLoader(TensorDataset(x), batch_size=10, shuffle=True):
            masked = rows * (torch.rand_like(rows) > 0.2)
            loss = (decoder(encoder(masked)) - rows).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)
        print(f"pretrain {epoch} loss {loss.item():.7f}", flush=True)
    return loss.item()


def finetune(encoder, x, epochs):
    head = nn.Linear(4, 2)
    model = nn.Sequential(encoder, head)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    y = (x.sum(1) > 0).long()
    for epoch in range(epochs):
        for rows in torch.randperm(len(x)).split(10):
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)
        print(f"finetune {epoch} loss {loss.item():.7f}", flush=True)
    return model


def main():
    torch.manual_seed(57)
    torch.set_num_threads(1)
    x = torch.randn(80, 8)
    encoder = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
    score = pretrain(encoder, x, 9)
    torch.save(encoder.state_dict(), "encoder.pt")
    print("pretrained", score, flush=True)
    model = finetune(encoder, x, 9)
    torch.save(model.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
