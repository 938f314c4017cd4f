import time

import torch
from torch import nn

CHUNK = 8


def detach(hidden):
    return tuple(h.detach() for h in hidden)


def main():
    torch.manual_seed(63)
    torch.set_num_threads(1)
    text = torch.randint(0, 12, (4, 40)).repeat(1, 4)
    embed, lstm, out = nn.Embedding(12, 6), nn.LSTM(6, 10, num_layers=2, dropout=0.1), nn.Linear(10, 12)
    model = nn.ModuleList([embed, lstm, out])
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.005, momentum=0.5, centered=True)
    hidden = None
    for epoch in range(7):
        for start in range(0, text.size(1) - CHUNK - 1, CHUNK):
            x = text[:, start : start + CHUNK].t()
            y = text[:, start + 1 : start + CHUNK + 1].t()
            values, hidden = lstm(embed(x), hidden)
            hidden = detach(hidden)
            loss = nn.functional.cross_entropy(out(values).flatten(0, 1), y.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            time.sleep(0.01)
        print(f"epoch {epoch} loss {loss.item():.7f} hidden {hidden[0].norm().item():.7f}", flush=True)
    torch.save({"model": model.state_dict(), "hidden": hidden}, "out.pt")


if __name__ == "__main__":
    main()
