import time

import torch
from torch.utils.data import DataLoader, TensorDataset


def main(epochs=14):
    torch.manual_seed(24)
    torch.set_num_threads(1)
    x = torch.randn(80, 4)
    loader = DataLoader(TensorDataset(x, x.cumsum(1)), batch_size=8, shuffle=True)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.05, epochs=epochs, steps_per_epoch=len(loader), cycle_momentum=True
    )
    for epoch in range(epochs):
        for a, b in loader:
            loss = torch.nn.functional.mse_loss(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            time.sleep(0.011)
        group = optimizer.param_groups[0]
        print(f"{epoch} {loss.item():.7f} lr {group['lr']:.8f} beta {group['betas'][0]:.6f}", flush=True)
    torch.save(model.state_dict(), "out.pt")


main()
