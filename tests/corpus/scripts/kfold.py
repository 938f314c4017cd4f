import time

import numpy as np
import torch


def folds(n, k, rng):
    order = rng.permutation(n)
    for part in np.array_split(order, k):
        yield np.setdiff1d(order, part), part


def fit(x, y, train):
    model = torch.nn.Sequential(torch.nn.Linear(4, 10), torch.nn.ReLU(), torch.nn.Linear(10, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(8):
        for rows in torch.from_numpy(np.random.permutation(train)).split(16):
            loss = (model(x[rows]) - y[rows]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.009)
    return model


def main():
    np.random.seed(58)
    torch.manual_seed(58)
    torch.set_num_threads(1)
    x = torch.randn(80, 4)
    y = x[:, :1] * x[:, 1:2]
    scores, models = [], []
    for fold, (train, test) in enumerate(folds(80, 4, np.random.default_rng(1))):
        model = fit(x, y, train)
        with torch.no_grad():
            scores.append((model(x[test]) - y[test]).square().mean().item())
        models.append(model)
        print(f"fold {fold} score {scores[-1]:.7f}", flush=True)
    print("mean", sum(scores) / len(scores))
    torch.save([model.state_dict() for model in models], "out.pt")


if __name__ == "__main__":
    main()
