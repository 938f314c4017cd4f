import time
from collections import defaultdict

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class History:
    def __init__(self):
        self.values = defaultdict(list)

    def on_epoch_end(self, trainer, logs):
        for key, value in logs.items():
            self.values[key].append(value)


class Printer:
    def on_epoch_end(self, trainer, logs):
        text = " ".join(f"{key}={value:.5f}" for key, value in sorted(logs.items()))
        print(f"[{trainer.epoch}] {text}", flush=True)


class Trainer:
    def __init__(self, model, lr, callbacks):
        self.model = model
        self.optimizer = torch.optim.NAdam(model.parameters(), lr=lr)
        self.callbacks = callbacks
        self.epoch = 0
        self.global_step = 0

    def training_step(self, batch):
        x, y = batch
        return nn.functional.smooth_l1_loss(self.model(x), y)

    def fit(self, loader, epochs):
        self.model.train()
        for self.epoch in range(epochs):
            logs = {"loss": 0.0, "grad": 0.0}
            for batch in loader:
                self.optimizer.zero_grad()
                loss = self.training_step(batch)
                loss.backward()
                logs["grad"] += nn.utils.clip_grad_norm_(self.model.parameters(), 1.0).item() / len(loader)
                self.optimizer.step()
                self.global_step += 1
                logs["loss"] += loss.item() / len(loader)
                time.sleep(0.01)
            for callback in self.callbacks:
                callback.on_epoch_end(self, logs)
        return self


if __name__ == "__main__":
    torch.manual_seed(5)
    torch.set_num_threads(1)
    x = torch.randn(128, 4)
    y = x.prod(dim=1, keepdim=True)
    history = History()
    model = nn.Sequential(nn.Linear(4, 24), nn.GELU(), nn.Linear(24, 1))
    trainer = Trainer(model, 1e-2, [history, Printer()])
    trainer.fit(DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True), epochs=18)
    torch.save({"model": model.state_dict(), "history": dict(history.values), "steps": trainer.global_step}, "out.pt")
