import sys
import time

import torch


class Runner:
    def __enter__(self):
        self.file = open("steps.bin", "wb")
        return self

    def __exit__(self, *error):
        self.file.write(b"end")
        self.file.close()

    def run(self):
        model = torch.nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        step = 0
        try:
            while True:
                step += 1
                x = torch.randn(6, 3)
                loss = (model(x) - x.softmax(1)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                self.file.write(bytes([step % 256]))
                time.sleep(0.011)
                if step % 10 == 0:
                    print("step", step, f"{loss.item():.8f}", flush=True)
                if step >= 140:
                    torch.save(model.state_dict(), "out.pt")
                    sys.exit(0)
        finally:
            with open("finally.txt", "a") as f:
                f.write(f"left at {step}\n")


if __name__ == "__main__":
    torch.manual_seed(73)
    torch.set_num_threads(1)
    with Runner() as runner:
        runner.run()
