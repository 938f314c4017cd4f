import time

import torch

torch.manual_seed(23)
torch.set_num_threads(1)
train_x, valid_x = torch.randn(60, 4), torch.randn(30, 4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1.2)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=1, cooldown=1)
for epoch in range(24):
    for rows in torch.randperm(60).split(10):
        loss = (model(train_x[rows]) - train_x[rows].amax(1, keepdim=True)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
    with torch.no_grad():
        valid = (model(valid_x) - valid_x.amax(1, keepdim=True)).abs().mean().item()
    scheduler.step(valid)
    print(epoch, f"{valid:.7f}", scheduler.get_last_lr(), scheduler.num_bad_epochs, flush=True)
torch.save(model.state_dict(), "out.pt")
