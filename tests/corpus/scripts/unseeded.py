import random
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.set_num_threads(1)
    x = torch.randn(80, 5)
    print("run", random.randrange(10**9), np.random.randint(10**9), flush=True)
    loader = DataLoader(TensorDataset(x, x.abs().amax(1, keepdim=True)), batch_size=8, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(14):
        for inputs, targets in loader:
            scale = random.uniform(0.9, 1.1) * np.random.uniform(0.9, 1.1)
            loss = (model(inputs * scale) - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)
        print(f"epoch {epoch} loss {loss.item():.7f}", flush=True)
    torch.save(model.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
