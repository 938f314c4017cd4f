import time

import torch
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(22)
    torch.set_num_threads(1)
    x = torch.randn(90, 5)
    loader = DataLoader(TensorDataset(x, x.sum(1).sign()), batch_size=10, shuffle=True)
    model = torch.nn.Sequential(
        torch.nn.Linear(5, 12), torch.nn.BatchNorm1d(12), torch.nn.ReLU(), torch.nn.Linear(12, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = AveragedModel(model)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    swa = SWALR(optimizer, swa_lr=0.02, anneal_epochs=3)
    for epoch in range(15):
        for inputs, targets in loader:
            loss = torch.nn.functional.soft_margin_loss(model(inputs).squeeze(1), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.011)
        if epoch >= 8:
            average.update_parameters(model)
            swa.step()
        else:
            cosine.step()
        print(f"epoch {epoch} loss {loss.item():.7f} lr {optimizer.param_groups[0]['lr']:.6f}", flush=True)
    update_bn(loader, average)
    torch.save(average.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
