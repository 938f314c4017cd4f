import time

import torch


def main():
    torch.manual_seed(44)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    valid = torch.randn(40, 3)
    best, best_epoch = float("inf"), -1
    for epoch in range(15):
        for _ in range(10):
            x = torch.randn(8, 3)
            loss = (model(x) - x.prod(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)
        with torch.no_grad():
            score = (model(valid) - valid.prod(1, keepdim=True)).square().mean().item()
        if score < best:
            best, best_epoch = score, epoch
            torch.save(model.state_dict(), "best.pt")
        print(f"epoch {epoch} valid {score:.7f} best {best:.7f} at {best_epoch}", flush=True)
    model.load_state_dict(torch.load("best.pt"))
    with torch.no_grad():
        print("reloaded", (model(valid) - valid.prod(1, keepdim=True)).square().mean().item() == best)
    torch.save(model.state_dict(), "out.pt")


main()
