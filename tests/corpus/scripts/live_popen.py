import subprocess
import time

import torch


def main():
    torch.manual_seed(54)
    torch.set_num_threads(1)
    # A helper process that stays for the whole training and answers requests over its pipes.
    helper = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(140):
        helper.stdin.write(f"{step / 140}\n")
        helper.stdin.flush()
        shift = float(helper.stdout.readline())
        x = torch.randn(8, 3)
        loss = (model(x) - x.sum(1, keepdim=True) - shift).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
        if step % 10 == 9:
            print(f"step {step} shift {shift:.4f} loss {loss.item():.7f}", flush=True)
    helper.stdin.close()
    helper.wait()
    torch.save(model.state_dict(), "out.pt")


main()
