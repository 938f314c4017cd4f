# exported from a notebook
import time

import numpy as np
import torch

torch.manual_seed(4)
np.random.seed(4)
torch.set_num_threads(1)

xs = np.linspace(-3, 3, 120).astype("float32")
ys = np.sin(xs) + 0.1 * np.random.randn(120).astype("float32")
x = torch.from_numpy(xs)[:, None]
y = torch.from_numpy(ys)[:, None]

net = torch.nn.Sequential(torch.nn.Linear(1, 20), torch.nn.Tanh(), torch.nn.Linear(20, 1))
opt = torch.optim.RMSprop(net.parameters(), lr=0.005)
losses = []

for i in range(180):
    pick = np.random.choice(120, 24, replace=False)
    pred = net(x[pick])
    loss = (pred - y[pick]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
    time.sleep(0.01)
    if i % 15 == 14:
        print(i, sum(losses[-15:]) / 15, flush=True)

torch.save([p.detach() for p in net.parameters()], "out.pt")
print("min", min(losses))
