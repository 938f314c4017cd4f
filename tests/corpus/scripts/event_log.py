import struct
import time
import zlib
from pathlib import Path

import torch


class Writer:
    """Scalars as framed records with checksums, the way event files are written."""

    def __init__(self, folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.file = open(Path(folder) / "events.bin", "ab", buffering=0)

    def add_scalar(self, tag, value, step):
        body = struct.pack("<If", step, value) + tag.encode()
        self.file.write(struct.pack("<II", len(body), zlib.crc32(body)) + body)


def main():
    torch.manual_seed(82)
    torch.set_num_threads(1)
    train, valid = Writer("runs/train"), Writer("runs/valid")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.RAdam(model.parameters(), lr=0.02)
    for step in range(140):
        x = torch.randn(8, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        train.add_scalar("loss", loss.item(), step)
        for name, p in model.named_parameters():
            train.add_scalar(f"grad/{name}", p.grad.norm().item(), step)
        if step % 10 == 9:
            valid.add_scalar("weight", model.weight.norm().item(), step)
            print(step, train.file.tell(), valid.file.tell(), flush=True)
        time.sleep(0.011)
    torch.save(model.state_dict(), "out.pt")


main()
