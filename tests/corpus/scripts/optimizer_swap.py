import time

import torch


def main():
    torch.manual_seed(80)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 12), torch.nn.Softplus(), torch.nn.Linear(12, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    spare = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    best, since = float("inf"), 0
    losses = []
    for epoch in range(14):
        for _ in range(10):
            x = torch.randn(10, 4)
            loss = (model(x) - x.var(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            time.sleep(0.01)
        mean = sum(losses[-10:]) / 10
        if mean < best:
            best, since = mean, 0
        else:
            since += 1
        if since >= 1:
            optimizer, spare = spare, optimizer
            since = 0
        if epoch == 10:
            del spare
            spare = torch.optim.ASGD(model.parameters(), lr=0.01)
        print(f"epoch {epoch} {type(optimizer).__name__} {mean:.8f}", flush=True)
    torch.save(model.state_dict(), "out.pt")


main()
