import os
import time

import torch

# defaults; overridden by the settings beside this script
learning_rate = 0.1
max_iters = 50
hidden = 4
exec(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "exec_config_settings.txt")).read())
config = {k: v for k, v in globals().items() if not k.startswith("_") and isinstance(v, int | float | str)}

torch.manual_seed(48)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(3, hidden), torch.nn.Sigmoid(), torch.nn.Linear(hidden, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
iter_num = 0
best_val_loss = 1e9
while True:
    if iter_num % 15 == 0:
        with torch.no_grad():
            x = torch.randn(64, 3)
            val_loss = (model(x) - x.abs().amax(1, keepdim=True)).square().mean().item()
        print(f"step {iter_num}: val loss {val_loss:.7f}", flush=True)
        if val_loss < best_val_loss:
            best_val_loss = val_loss
            torch.save({"model": model.state_dict(), "iter": iter_num, "config": config}, "ckpt.pt")
    for micro in range(2):
        x = torch.randn(8, 3)
        loss = (model(x) - x.abs().amax(1, keepdim=True)).square().mean() / 2
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    time.sleep(0.012)
    iter_num += 1
    if iter_num > max_iters:
        break
torch.save(model.state_dict(), "out.pt")
