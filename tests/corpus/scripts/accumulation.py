import time

import torch
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 4


def main():
    torch.manual_seed(19)
    torch.set_num_threads(1)
    x = torch.randn(110, 6)
    loader = DataLoader(TensorDataset(x, x[:, :1] * x[:, 1:2]), batch_size=5, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.SiLU(), torch.nn.Linear(20, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    optimizer.zero_grad()
    micro = 0
    for epoch in range(9):
        running = torch.zeros(())
        for inputs, targets in loader:
            loss = (model(inputs) - targets).square().mean() / ACCUMULATE
            loss.backward()
            running += loss.detach()
            micro += 1
            # 22 micro batches an epoch: gradients are carried over from one epoch into the next.
            if micro % ACCUMULATE == 0:
                torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
            time.sleep(0.008)
        print(f"epoch {epoch} micro {micro} loss {running.item():.7f}", flush=True)
    torch.save(model.state_dict(), "out.pt")


main()
