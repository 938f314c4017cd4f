import math
import time

import torch
from torch import nn

TEXT = "the quick brown fox jumps over the lazy dog. " * 12


class TinyGPT(nn.Module):
    """Token embedding and output layer share their weight."""

    def __init__(self, vocab, dim=16, context=12):
        super().__init__()
        self.context = context
        self.embed = nn.Embedding(vocab, dim)
        self.place = nn.Parameter(torch.zeros(context, dim))
        layer = nn.TransformerEncoderLayer(dim, 2, 32, dropout=0.1, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, idx):
        n = idx.size(1)
        h = self.blocks(self.embed(idx) + self.place[:n], mask=self.mask[:n, :n])
        return self.head(h)

    @torch.no_grad()
    def generate(self, idx, count):
        self.eval()
        for _ in range(count):
            probs = self(idx[:, -self.context :])[:, -1].softmax(-1)
            idx = torch.cat([idx, torch.multinomial(probs, 1)], dim=1)
        self.train()
        return idx


def get_lr(step, warmup=10, total=90):
    if step < warmup:
        return 5e-3 * (step + 1) / warmup
    return 2.5e-3 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def main():
    torch.manual_seed(66)
    torch.set_num_threads(1)
    chars = sorted(set(TEXT))
    stoi = {c: i for i, c in enumerate(chars)}
    data = torch.tensor([stoi[c] for c in TEXT])
    model = TinyGPT(len(chars))
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=5e-3, betas=(0.9, 0.95))
    for step in range(90):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(step)
        starts = torch.randint(len(data) - 13, (6,))
        x = torch.stack([data[s : s + 12] for s in starts])
        y = torch.stack([data[s + 1 : s + 13] for s in starts])
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        time.sleep(0.01)
        if step % 10 == 9:
            sample = model.generate(torch.zeros(1, 1, dtype=torch.long), 20)[0].tolist()
            print(f"step {step} loss {loss.item():.6f}", repr("".join(chars[i] for i in sample)), flush=True)
    torch.save(model.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
