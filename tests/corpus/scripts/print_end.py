import sys
import time

import torch

torch.manual_seed(71)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
print("training:", end=" ")
for epoch in range(12):
    for i in range(12):
        x = torch.randn(8, 4)
        loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.011)
        print(".", end="", flush=True)
        sys.stdout.write(f"\r{epoch}: {i + 1:2d}/12 loss {loss.item():.6f}")
    print(f"  [{epoch}]", end="\n" if epoch % 2 else " | ", flush=True)
sys.stdout.buffer.write("fin \u2713\n".encode())
torch.save(model.state_dict(), "out.pt")
