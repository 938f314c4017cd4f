import os
import time

import torch

PATH = "checkpoint.pt"


def main():
    torch.manual_seed(43)
    torch.set_num_threads(1)
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    start, history = 0, []
    if os.path.exists(PATH):
        checkpoint = torch.load(PATH)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start = checkpoint["epoch"] + 1
        history = checkpoint["history"]
        print(f"resumed from epoch {start}")
    for epoch in range(start, 14):
        for _ in range(10):
            x = torch.randn(8, 5)
            loss = (model(x) - x.logsumexp(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)
        history.append(loss.item())
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "history": history}
        torch.save(state, PATH)
        print(f"epoch {epoch} loss {loss.item():.7f} saved", flush=True)
    torch.save(model.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
