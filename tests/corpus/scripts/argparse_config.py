import argparse
import json
import os
import time

import torch


def parse_args():
    parser = argparse.ArgumentParser(description="Train a regressor")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--hidden", type=int, nargs="+", default=[8])
    parser.add_argument("--output-dir", default=".")
    parser.add_argument("--optimizer", choices=["adam", "sgd", "rprop", "adamax"], default="sgd")
    parser.add_argument("--cosine", action="store_true")
    return parser.parse_args()


def build(args):
    sizes = [4, *args.hidden, 1]
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [torch.nn.Linear(a, b), torch.nn.ELU()]
    model = torch.nn.Sequential(*layers[:-1])
    kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD, "adamax": torch.optim.Adamax, "rprop": torch.optim.Rprop}
    return model, kinds[args.optimizer](model.parameters(), lr=args.lr)


def main(args):
    torch.manual_seed(47)
    torch.set_num_threads(1)
    os.makedirs(args.output_dir, exist_ok=True)
    with open(os.path.join(args.output_dir, "config.json"), "w") as f:
        json.dump(vars(args), f, indent=2)
    model, optimizer = build(args)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs) if args.cosine else None
    args.seen = 0
    for epoch in range(args.epochs):
        for _ in range(10):
            x = torch.randn(8, 4)
            loss = (model(x) - x.sin().sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            args.seen += len(x)
            time.sleep(0.01)
        if scheduler:
            scheduler.step()
        print(f"epoch {epoch} loss {loss.item():.7f} seen {args.seen}", flush=True)
    torch.save({"model": model.state_dict(), "args": vars(args)}, os.path.join(args.output_dir, "out.pt"))


if __name__ == "__main__":
    main(parse_args())
