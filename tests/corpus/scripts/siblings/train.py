import time

import torch
from data import make_loader
from metrics import Tracker
from network import build

torch.manual_seed(50)
torch.set_num_threads(1)


def train():
    tracker = Tracker("loss")
    model = build()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    for epoch in range(14):
        for x, y in make_loader(epoch):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tracker.add(loss.item())
            time.sleep(0.012)
        print(epoch, tracker, flush=True)
    torch.save(model.state_dict(), "out.pt")


if __name__ == "__main__":
    train()
