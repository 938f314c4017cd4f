import sqlite3
import time

import torch


def main():
    torch.manual_seed(83)
    torch.set_num_threads(1)
    db = sqlite3.connect("metrics.db")
    db.execute("create table if not exists loss (step integer, value real)")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(140):
        x = torch.randn(8, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        db.execute("insert into loss values (?, ?)", (step, loss.item()))
        db.commit()
        time.sleep(0.01)
        if step % 10 == 9:
            print(step, db.execute("select count(*), sum(value) from loss").fetchone(), flush=True)
    db.close()
    torch.save(model.state_dict(), "out.pt")


main()
