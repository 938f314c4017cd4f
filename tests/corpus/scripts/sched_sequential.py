import time

import torch
from torch.optim import lr_scheduler as schedules

torch.manual_seed(26)
torch.set_num_threads(1)
model = torch.nn.Linear(6, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
scheduler = schedules.SequentialLR(
    optimizer,
    [
        schedules.LinearLR(optimizer, start_factor=0.1, total_iters=25),
        schedules.CosineAnnealingWarmRestarts(optimizer, T_0=20, T_mult=2),
        schedules.PolynomialLR(optimizer, total_iters=40, power=2.0),
    ],
    milestones=[25, 100],
)
for step in range(150):
    x = torch.randn(9, 6)
    loss = (model(x) - x.view(9, 2, 3).sum(-1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    time.sleep(0.01)
    if step % 10 == 9:
        print(f"{step} loss {loss.item():.7f} lr {scheduler.get_last_lr()[0]:.9f}", flush=True)
torch.save({"model": model.state_dict(), "scheduler_epoch": scheduler.last_epoch}, "out.pt")
