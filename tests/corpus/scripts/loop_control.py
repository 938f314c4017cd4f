import functools
import time

import torch


def timed(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        wrapper.calls += 1
        return function(*args, **kwargs)

    wrapper.calls = 0
    return wrapper


@timed
def attempt(model, optimizer, lr, limit):
    """Trains until it is good or the patience is over; says which."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    for step in range(60):
        x = torch.randn(8, 3)
        if x.abs().max() > 2.8:
            continue
        loss = (model(x) - x @ torch.tensor([[1.0], [2.0], [3.0]])).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.011)
        if loss.item() < limit:
            print(f"lr {lr} reached {limit} at {step}", flush=True)
            break
    else:
        print(f"lr {lr} did not reach {limit}: {loss.item():.6f}", flush=True)
        return False
    return True


def main():
    torch.manual_seed(78)
    torch.set_num_threads(1)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    results = [
        attempt(model, optimizer, lr, limit) for lr, limit in ((0.001, 1.0), (0.02, 1.0), (0.05, 0.05), (0.01, 1e-9))
    ]
    print(results, attempt.calls)
    torch.save(model.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
