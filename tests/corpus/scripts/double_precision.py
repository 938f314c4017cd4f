import time

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(79)
torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)


class Rotation(nn.Module):
    def __init__(self):
        super().__init__()
        self.angle = nn.Parameter(torch.zeros(3))
        self.phase = nn.Parameter(torch.zeros(3, dtype=torch.complex128))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, z):
        self.count += 1
        return z * torch.exp(1j * self.angle) + self.phase


model = Rotation()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
goal = torch.exp(1j * torch.tensor([0.3, -1.0, 2.0]))
for step in range(140):
    z = torch.randn(6, 3, dtype=torch.complex128)
    loss = (model(z) - z * goal - 0.5).abs().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.011)
    if step % 10 == 9:
        print(f"{step} {model.count.item()} {loss.item():.15f}", flush=True)
torch.save(model.state_dict(), "out.pt")
