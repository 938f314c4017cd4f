import torch
from torch.utils.data import DataLoader, TensorDataset

_x = torch.randn(80, 6, generator=torch.Generator().manual_seed(1))
_order = torch.Generator().manual_seed(2)


def make_loader(epoch):
    """Harder rows from epoch to epoch; one generator shuffles all of them."""
    rows = _x * (1 + epoch / 10)
    return DataLoader(TensorDataset(rows, rows.argmax(1)), batch_size=8, shuffle=True, generator=_order)
