import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(20)
    torch.set_num_threads(1)
    x = torch.randn(96, 8)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > x[:, 1]).long()), batch_size=12, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=7)
    for epoch in range(18):
        for inputs, targets in loader:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(inputs), targets) * 1e28
            scaler.scale(loss / 1e28 if epoch > 2 else loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            time.sleep(0.01)
        print(f"epoch {epoch} loss {loss.item():.6g} scale {scaler.get_scale()}", flush=True)
    torch.save({"model": model.state_dict(), "scale": scaler.get_scale()}, "out.pt")


if __name__ == "__main__":
    main()
