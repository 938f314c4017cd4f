import csv
import time
from pathlib import Path

import torch


def main():
    torch.manual_seed(41)
    torch.set_num_threads(1)
    Path("metrics").mkdir(exist_ok=True)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    with (
        open("metrics/steps.csv", "w", newline="") as steps,
        Path("metrics/epochs.csv").open("w", newline="") as epochs,
    ):
        writer = csv.writer(steps)
        writer.writerow(["step", "loss"])
        table = csv.DictWriter(epochs, fieldnames=["epoch", "mean"])
        table.writeheader()
        step = 0
        for epoch in range(12):
            losses = []
            for rows in torch.randn(60, 3).split(5):
                loss = (model(rows) - rows.amin(1, keepdim=True)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                writer.writerow([step, losses[-1]])
                step += 1
                time.sleep(0.01)
            table.writerow({"epoch": epoch, "mean": sum(losses) / len(losses)})
            epochs.flush()
            print(epoch, losses[-1], flush=True)
    print(Path("metrics/epochs.csv").read_text().count("\n"), "lines")
    torch.save(model.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
