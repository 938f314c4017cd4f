import copy
import time

import torch


class EMA:
    def __init__(self, model, decay=0.95):
        self.model = model
        self.shadow = copy.deepcopy(model).eval()
        for p in self.shadow.parameters():
            p.requires_grad_(False)
        self.decay = decay
        self.updates = 0

    @torch.no_grad()
    def update(self):
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for kept, new in zip(self.shadow.parameters(), self.model.parameters()):
            kept.lerp_(new, 1 - decay)


def main():
    torch.manual_seed(21)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    ema = EMA(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(150):
        x = torch.randn(12, 4)
        loss = (model(x) - x.norm(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update()
        time.sleep(0.01)
        if step % 10 == 0:
            with torch.no_grad():
                smooth = (ema.shadow(x) - x.norm(dim=1, keepdim=True)).square().mean()
            print(f"step {step} loss {loss.item():.7f} ema {smooth.item():.7f}", flush=True)
    torch.save({"model": model.state_dict(), "ema": ema.shadow.state_dict(), "n": ema.updates}, "out.pt")


main()
