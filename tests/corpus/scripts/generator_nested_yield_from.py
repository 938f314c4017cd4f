"""A pipeline of generators: files are read, lines become windows, windows become batches, over and over."""

import pathlib
import time

import torch
from torch import nn


def read(path):
    with open(path) as lines:
        for line in lines:
            yield [float(word) for word in line.split()]


def series(folder):
    for path in sorted(folder.glob("*.txt")):
        yield from read(path)


def windows(rows, size):
    held = []
    for row in rows:
        held += row
        while len(held) > size:
            yield held[:size], held[size]
            held = held[3:]
    return len(held)


def batches(folder, size, count):
    epoch = left = 0
    while True:
        waiting = []
        found = windows(series(folder), size)
        while True:
            try:
                waiting.append(next(found))
            except StopIteration as over:
                left += over.value
                break
            if len(waiting) == count:
                order = torch.randperm(count).tolist()
                x = torch.tensor([waiting[i][0] for i in order])
                y = torch.tensor([[waiting[i][1]] for i in order])
                waiting.clear()
                yield epoch, left, x, y
        epoch += 1


def forever(folder):
    yield from batches(folder, 6, 7)


def main():
    torch.manual_seed(2)
    torch.set_num_threads(1)
    folder = pathlib.Path("series")
    folder.mkdir(exist_ok=True)
    for number in range(3):
        rows = torch.sin(torch.arange(60) * 0.3 * (number + 1)).reshape(12, 5)
        text = "\n".join(" ".join(f"{value:.5f}" for value in row) for row in rows.tolist())
        (folder / f"{number}.txt").write_text(text + "\n")
    data = forever(folder)
    model = nn.Sequential(nn.Linear(6, 20), nn.GELU(), nn.Linear(20, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    step = 0
    while step < 130:
        epoch, left, x, y = next(data)
        loss = nn.functional.smooth_l1_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        time.sleep(0.011)
        if step % 10 == 0:
            print(step, epoch, left, f"{loss.item():.7f}", flush=True)
    torch.save(model.state_dict(), "out.pt")


main()
