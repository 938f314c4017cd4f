import json
import time
from pathlib import Path

import numpy as np
import torch

DATA = Path("data")


def prepare():
    """Makes the data on the first run, as downloads do."""
    if (DATA / "done.json").exists():
        print("data found")
        return
    DATA.mkdir()
    rng = np.random.default_rng(46)
    np.save(DATA / "train.npy", rng.normal(size=(400, 6)).astype("float32"))
    (DATA / "done.json").write_text(json.dumps({"rows": 400}))
    print("data prepared")


def main():
    prepare()
    torch.manual_seed(46)
    torch.set_num_threads(1)
    rows = np.load(DATA / "train.npy", mmap_mode="r")
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    rng = np.random.default_rng(0)
    for step in range(150):
        batch = torch.tensor(rows[np.sort(rng.choice(400, 10, replace=False))])
        loss = (model(batch[:, :5]) - batch[:, 5:]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
        if step % 10 == 9:
            print(step, f"{loss.item():.8f}", flush=True)
    torch.save(model.state_dict(), "out.pt")


main()
