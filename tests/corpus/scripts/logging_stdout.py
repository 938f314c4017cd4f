import logging
import sys
import time

import torch

logger = logging.getLogger("train")


def setup_logging():
    logger.setLevel(logging.INFO)
    plain = logging.Formatter("%(levelname)s %(name)s: %(message)s")
    for handler in (logging.StreamHandler(sys.stdout), logging.FileHandler("train.log", mode="w")):
        handler.setFormatter(plain)
        logger.addHandler(handler)


def main():
    setup_logging()
    torch.manual_seed(70)
    torch.set_num_threads(1)
    logger.info("torch threads %d", torch.get_num_threads())
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(1, 141):
        x = torch.randn(8, 5)
        loss = (model(x) - x.square().mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.011)
        if step % 10 == 0:
            logger.info("step %d loss %.7f", step, loss.item())
        if loss.item() > 4:
            logger.warning("large loss %.4f at step %d", loss.item(), step)
    torch.save(model.state_dict(), "out.pt")
    logger.info("done")


if __name__ == "__main__":
    main()
