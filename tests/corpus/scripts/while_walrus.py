import random
import time

import torch

random.seed(3)
torch.manual_seed(3)
torch.set_num_threads(1)

target = torch.tensor([1.0, -2.0, 0.5])
guess = torch.zeros(3, requires_grad=True)
opt = torch.optim.Adagrad([guess], lr=0.3)
step = 0
stale = 0
best = float("inf")
while (step := step + 1) <= 400 and stale < 60:
    rows = torch.randn(10, 3)
    loss = ((rows @ guess - rows @ target) ** 2).mean() + 0.01 * random.random()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if loss.item() < best:
        best, stale = loss.item(), 0
        print(f"step {step} best {best:.6f}", flush=True)
    else:
        stale += 1
    time.sleep(0.012)
else:
    print(f"stopped at {step} after {stale} stale steps")

torch.save({"guess": guess.detach(), "best": best, "step": step}, "out.pt")
