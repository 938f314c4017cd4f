import time

import numpy as np
import torch


def batches(rng, count, size):
    """Noisy parity, made on the fly."""
    carry = 0.0
    for _ in range(count):
        bits = rng.integers(0, 2, (size, 6)).astype("float32")
        carry = 0.9 * carry + float(bits.mean())
        yield torch.from_numpy(bits + 0.05 * carry), torch.from_numpy(bits.sum(1) % 2)


def main():
    torch.manual_seed(8)
    torch.set_num_threads(1)
    rng = np.random.default_rng(8)
    model = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(5):
        for x, y in batches(rng, 30, 16):
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.011)
        print(f"epoch {epoch} loss {loss.item():.6f} next {rng.random():.6f}", flush=True)
    torch.save(model.state_dict(), "out.pt")


main()
