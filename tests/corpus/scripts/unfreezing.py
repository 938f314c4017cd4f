import time

import torch
from torch import nn


def main():
    torch.manual_seed(67)
    torch.set_num_threads(1)
    backbone = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU())
    head = nn.Linear(12, 2)
    for p in backbone.parameters():
        p.requires_grad = False
    optimizer = torch.optim.Adam(head.parameters(), lr=0.01)
    x = torch.randn(100, 6)
    y = (x[:, 0] > x[:, 1]).long()
    for epoch in range(14):
        if epoch in (4, 8):
            layer = backbone[2] if epoch == 4 else backbone[0]
            for p in layer.parameters():
                p.requires_grad = True
            optimizer.add_param_group({"params": list(layer.parameters()), "lr": 0.002})
        for rows in torch.randperm(100).split(10):
            loss = nn.functional.cross_entropy(head(backbone(x[rows])), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)
        trained = sum(p.requires_grad for p in backbone.parameters())
        print(f"epoch {epoch} groups {len(optimizer.param_groups)} free {trained} loss {loss.item():.7f}", flush=True)
    torch.save({"backbone": backbone.state_dict(), "head": head.state_dict()}, "out.pt")


main()
