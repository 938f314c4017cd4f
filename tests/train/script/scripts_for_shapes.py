"""Small scripts of shapes that were once not resumed; each goes behind `scripts_for_session.HEAD`."""

COMPILED = """
@torch.compile(backend="aot_eager")
def loss_of(output, target):
    total = 0.0
    for column in range(2):
        total = total + (output - target[:, column : column + 1]).square().mean()
    return total


fast = torch.compile(model, backend="aot_eager")


def main():
    for epoch in range(4):
        for _ in range(4):
            x = torch.randn(6, 4)
            loss = loss_of(fast(x), x.roll(1, dims=1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())
    print(weights())


main()
"""

PIPE = """
import os

pipe = None
for i in range(12):
    if pipe is None:
        pipe = os.fdopen(os.pipe()[1], 'w')
    pipe.write(f'{i}')
    print(i, step())
"""
