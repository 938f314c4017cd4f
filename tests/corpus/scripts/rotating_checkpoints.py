import os
import pickle
import shutil
import time
from pathlib import Path

import numpy as np
import torch

FOLDER = Path("checkpoints")


def save(model, epoch, keep=2):
    folder = FOLDER / f"epoch-{epoch:03d}"
    folder.mkdir(parents=True)
    torch.save(model.state_dict(), folder / "model.pt.tmp")
    os.replace(folder / "model.pt.tmp", folder / "model.pt")
    np.save(folder / "weight.npy", model.weight.detach().numpy())
    with open(folder / "meta.pkl", "wb") as f:
        pickle.dump({"epoch": epoch, "norm": model.weight.norm().item()}, f)
    for old in sorted(FOLDER.glob("epoch-*"))[:-keep]:
        shutil.rmtree(old)
    if os.path.lexists(FOLDER / "latest"):
        os.remove(FOLDER / "latest")
    os.symlink(folder.name, FOLDER / "latest")


def main():
    torch.manual_seed(45)
    torch.set_num_threads(1)
    model = torch.nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(12):
        for _ in range(12):
            x = torch.randn(8, 6)
            loss = (model(x) - x.view(8, 2, 3).mean(2)).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)
        save(model, epoch)
        print(epoch, f"{loss.item():.7f}", sorted(p.name for p in FOLDER.iterdir()), flush=True)
    torch.save(model.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
