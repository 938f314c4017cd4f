import time

import torch

torch.manual_seed(39)
torch.set_num_threads(1)
log = open("train.log", "w")
log.write("step loss\n")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(150):
    x = torch.randn(6, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.write(f"{step} {loss.item():.8f}\n")
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.8f}", flush=True)
    time.sleep(0.01)
log.write("done\n")
log.close()
torch.save(model.state_dict(), "out.pt")
