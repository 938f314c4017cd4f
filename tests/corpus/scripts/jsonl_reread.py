import json
import os
import time

import torch

LOG = "history.jsonl"


def history():
    if not os.path.exists(LOG):
        return []
    with open(LOG) as f:
        return [json.loads(line) for line in f]


def main():
    torch.manual_seed(42)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for epoch in range(15):
        for rows in torch.randn(50, 4).split(5):
            loss = (model(rows) - rows.norm(dim=1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)
        past = history()
        if past and loss.item() > min(entry["loss"] for entry in past):
            for group in optimizer.param_groups:
                group["lr"] *= 0.8
        with open(LOG, "a") as f:
            f.write(json.dumps({"epoch": epoch, "loss": loss.item(), "lr": optimizer.param_groups[0]["lr"]}) + "\n")
        print(f"epoch {epoch} of {len(past)} known, loss {loss.item():.7f}", flush=True)
    torch.save(model.state_dict(), "out.pt")


main()
