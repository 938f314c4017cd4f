import time

import torch
from tinytrainer import Trainer
from torch.utils.data import DataLoader, TensorDataset


class Regressor(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch):
        x, y = batch
        time.sleep(0.011)
        return (self.net(x) - y).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main():
    torch.manual_seed(84)
    torch.set_num_threads(1)
    x = torch.randn(80, 4)
    model = Regressor()
    trainer = Trainer(epochs=14, on_epoch=lambda epoch, loss: print(epoch, f"{loss:.8f}", flush=True))
    trainer.fit(model, DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True))
    torch.save(model.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
