import time

import torch

torch.manual_seed(64)
torch.set_num_threads(1)

x = torch.randn(100, 3)
y = x @ torch.tensor([[2.0], [-1.0], [0.5]]) + 0.1 * torch.randn(100, 1)
w = torch.zeros(3, 1, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
velocity = {"w": torch.zeros_like(w), "b": torch.zeros_like(b)}
lr = 0.02

for epoch in range(14):
    for idx in torch.randperm(100).split(10):
        loss = ((x[idx] @ w + b - y[idx]) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            for name, p in (("w", w), ("b", b)):
                velocity[name].mul_(0.9).add_(p.grad)
                p -= lr * velocity[name]
            w.grad.zero_()
            b.grad = None
        time.sleep(0.011)
    lr *= 0.95
    print(f"epoch {epoch} lr {lr:.5f} loss {loss.item():.8f}", flush=True)

torch.save({"w": w, "b": b}, "out.pt")
