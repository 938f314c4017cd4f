import time

import torch
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm


def main():
    torch.manual_seed(7)
    torch.set_num_threads(1)
    x = torch.randn(120, 5)
    loader = DataLoader(TensorDataset(x, x.abs().sum(1)), batch_size=12, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(5, 10), torch.nn.ReLU(), torch.nn.Linear(10, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in tqdm(range(12), desc="epochs"):
        bar = tqdm(loader, desc=f"epoch {epoch}", leave=False)
        running = 0.0
        for n, (inputs, targets) in enumerate(bar, start=1):
            loss = (model(inputs).squeeze(1) - targets).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.item()
            bar.set_postfix(loss=running / n)
            time.sleep(0.012)
        print(f"epoch {epoch} loss {running / len(loader):.6f}", flush=True)
    torch.save(model.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
