import time

import torch


def main():
    torch.manual_seed(52)
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    model = torch.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(100):
        x = torch.randn(8, 4)
        loss = (model(x) - x.amin(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.015)
        if step % 10 == 9:
            print(f"step {step} loss {loss.item():.7f}", flush=True)
    torch.save(net.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
