import time

import torch
from torch.optim import lr_scheduler as schedules


def build(model):
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    cyclic = schedules.CyclicLR(sgd, base_lr=0.005, max_lr=0.1, step_size_up=15, mode="exp_range", gamma=0.995)
    return sgd, cyclic


def main():
    torch.manual_seed(27)
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 1)
    other = torch.nn.Linear(4, 1)
    sgd, cyclic = build(model)
    adam = torch.optim.Adam(other.parameters(), lr=0.02)
    chained = schedules.ChainedScheduler(
        [schedules.ConstantLR(adam, factor=0.2, total_iters=12), schedules.MultiStepLR(adam, [40, 90], gamma=0.3)]
    )
    for step in range(140):
        x = torch.randn(8, 4)
        loss = (model(x) + other(x) - x.std(1, keepdim=True)).square().mean()
        sgd.zero_grad()
        adam.zero_grad()
        loss.backward()
        sgd.step()
        adam.step()
        cyclic.step()
        chained.step()
        time.sleep(0.011)
        if step % 10 == 9:
            momentum = sgd.param_groups[0]["momentum"]
            print(step, f"{loss.item():.7f}", cyclic.get_last_lr(), momentum, chained.get_last_lr(), flush=True)
    torch.save([model.state_dict(), other.state_dict()], "out.pt")


main()
