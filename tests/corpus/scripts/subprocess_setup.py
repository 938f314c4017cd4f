import subprocess
import time

import torch


def revision():
    done = subprocess.run(["uname", "-s"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def main():
    torch.manual_seed(53)
    torch.set_num_threads(1)
    print("running on", revision())
    subprocess.run(["sh", "-c", "seq 1 60 > numbers.txt"], check=True)
    with open("numbers.txt") as f:
        numbers = torch.tensor([float(line) for line in f]) / 60
    model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(14):
        for rows in numbers[torch.randperm(60)].split(6):
            loss = (model(rows[:, None]) - (6 * rows[:, None]).sin()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)
        print(f"epoch {epoch} loss {loss.item():.7f}", flush=True)
    torch.save(model.state_dict(), "out.pt")


main()
