import time

import torch
from torch import nn
from torch.func import functional_call


def adapt(model, x, y, lr):
    """One inner step that the outer loss differentiates through."""
    params = dict(model.named_parameters())
    loss = (functional_call(model, params, x) - y).square().mean()
    grads = torch.autograd.grad(loss, list(params.values()), create_graph=True)
    return {name: p - lr * g for (name, p), g in zip(params.items(), grads)}


def main():
    torch.manual_seed(65)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 1))
    lr = nn.Parameter(torch.tensor(0.05))
    meta = torch.optim.Adam([*model.parameters(), lr], lr=0.01)
    for iteration in range(90):
        meta.zero_grad()
        total = 0.0
        for _ in range(2):
            phase = torch.rand(()) * 3
            x = torch.randn(20, 1)
            y = torch.sin(x + phase)
            fast = adapt(model, x[:10], y[:10], lr)
            loss = (functional_call(model, fast, x[10:]) - y[10:]).square().mean()
            penalty = torch.autograd.grad(loss, lr, create_graph=True)[0].square()
            (loss + 0.01 * penalty).backward()
            total += loss.item()
        meta.step()
        time.sleep(0.016)
        if iteration % 6 == 5:
            print(f"{iteration} loss {total / 2:.7f} inner lr {lr.item():.7f}", flush=True)
    torch.save({"model": model.state_dict(), "lr": lr.detach()}, "out.pt")


if __name__ == "__main__":
    main()
