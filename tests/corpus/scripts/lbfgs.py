import time

import torch

torch.manual_seed(15)
torch.set_num_threads(1)

x = torch.randn(60, 5)
y = torch.sin(x).sum(1, keepdim=True)
model = torch.nn.Sequential(torch.nn.Linear(5, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, history_size=8, line_search_fn="strong_wolfe")
calls = 0


def closure():
    global calls
    calls += 1
    optimizer.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    time.sleep(0.004)
    return loss


for step in range(50):
    loss = optimizer.step(closure)
    print(f"step {step} calls {calls} loss {loss.item():.9f}", flush=True)

torch.save(model.state_dict(), "out.pt")
