import time

import torch
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(6)
    torch.set_num_threads(1)
    labeled = DataLoader(TensorDataset(torch.randn(48, 6), torch.randint(0, 2, (48,))), batch_size=8, shuffle=True)
    unlabeled = DataLoader(TensorDataset(torch.randn(80, 6)), batch_size=8, shuffle=True)
    model = torch.nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(20):
        for i, ((x, y), (u,)) in enumerate(zip(labeled, unlabeled)):
            supervised = torch.nn.functional.cross_entropy(model(x), y)
            logits = model(u)
            entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
            loss = supervised + 0.1 * entropy
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.012)
            if i % 3 == 0:
                print(f"{epoch}/{i} {supervised.item():.6f} {entropy.item():.6f}", flush=True)
    torch.save(model.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
