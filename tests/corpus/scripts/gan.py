import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(16)
    torch.set_num_threads(1)
    real_data = torch.randn(128, 2) * 0.3 + torch.tensor([1.0, -1.0])
    loader = DataLoader(TensorDataset(real_data), batch_size=16, shuffle=True)
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(16, 1))
    opt_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.999))
    bce = nn.BCEWithLogitsLoss()
    fixed_noise = torch.randn(3, 4)
    for epoch in range(16):
        for i, (real,) in enumerate(loader):
            n = real.size(0)
            fake = generator(torch.randn(n, 4))
            loss_d = bce(critic(real), torch.ones(n, 1)) + bce(critic(fake.detach()), torch.zeros(n, 1))
            opt_d.zero_grad()
            loss_d.backward()
            opt_d.step()
            if i % 2 == 0:
                loss_g = bce(critic(fake), torch.ones(n, 1))
                opt_g.zero_grad()
                loss_g.backward()
                opt_g.step()
            time.sleep(0.011)
        with torch.no_grad():
            sample = generator(fixed_noise).flatten().tolist()
        print(epoch, f"D {loss_d.item():.6f} G {loss_g.item():.6f}", [round(v, 5) for v in sample], flush=True)
    torch.save({"g": generator.state_dict(), "d": critic.state_dict()}, "out.pt")


main()
