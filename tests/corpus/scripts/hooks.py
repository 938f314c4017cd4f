import time

import torch
from torch import nn


class Probe:
    def __init__(self, model):
        self.means = {}
        self.grads = []
        self.handles = [
            layer.register_forward_hook(self.watch(name))
            for name, layer in model.named_modules()
            if isinstance(layer, nn.Linear)
        ]

    def watch(self, name):
        def hook(layer, inputs, output):
            mean = output.detach().mean().item()
            self.means[name] = 0.9 * self.means.get(name, 0.0) + 0.1 * mean

        return hook

    def clip(self, grad):
        self.grads.append(grad.norm().item())
        return grad.clamp(-0.2, 0.2)


def main():
    torch.manual_seed(77)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1))
    probe = Probe(model)
    model[0].weight.register_hook(probe.clip)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counts = {"steps": 0}
    optimizer.register_step_post_hook(lambda *_: counts.update(steps=counts["steps"] + 1))
    for step in range(140):
        x = torch.randn(8, 5)
        loss = (model(x) - x.amax(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.011)
        if step == 90:
            probe.handles.pop().remove()
        if step % 10 == 9:
            print(step, counts, {k: round(v, 7) for k, v in probe.means.items()}, f"{loss.item():.7f}", flush=True)
    torch.save({"model": model.state_dict(), "grads": probe.grads}, "out.pt")


if __name__ == "__main__":
    main()
