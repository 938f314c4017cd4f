"""Generator functions that nobody wrote: nested at random, saved before each item, made anew, compared."""

from __future__ import annotations

import random

import pytest

from tests.train.script.graph.test_suspended import ITEMS, Start, plain

HEAD = """
import contextlib
trace = []
class Source:
    def __init__(self, n): self.n = n
    def __iter__(self):
        for i in range(self.n):
            trace.append(i)
            yield i, (i + 1, [i])
"""


class Writer:
    """Writes one generator function after the other; a later one may draw from an earlier one."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.functions = 0
        self.variables = 0

    def script(self) -> str:
        text = HEAD
        for _ in range(3):
            lines = self.block(1, 3, in_loop=False)
            text += f"def f{self.functions}(a=3):\n    s = 1\n" + "\n".join(f"    {line}" for line in lines)
            text += "\n    yield 'end', s, a\n    return s\n"
            self.functions += 1
        last = self.functions - 1
        main = f"    while True:\n        r = yield from f{last}()\n        yield 'r', r\n"
        return f"{text}def main():\n{main}data = main()\n"

    def block(self, depth: int, most: int, *, in_loop: bool) -> list[str]:
        lines = []
        for _ in range(self.random.randint(1, most)):
            lines += self.statement(depth, in_loop=in_loop)
        return lines

    def statement(self, depth: int, *, in_loop: bool) -> list[str]:
        plain_kinds = [self.compute, self.give, self.take]
        nested = [self.branch, self.for_loop, self.while_loop, self.attempt, self.managed, self.delegate]
        if in_loop and self.random.random() < 0.15:
            return [f"if s % 7 == {self.random.randint(0, 6)}: {self.random.choice(['break', 'continue'])}"]
        chosen = self.random.choice(plain_kinds + (nested if depth < 4 else []))
        return chosen(depth)

    def compute(self, depth: int) -> list[str]:
        return [f"s = (s * {self.random.randint(2, 5)} + {self.random.randint(0, 9)} + len(trace)) % 101"]

    def give(self, depth: int) -> list[str]:
        return [self.random.choice(["yield s", "yield s, a, len(trace)", "yield [s + k for k in range(2)]", "yield"])]

    def take(self, depth: int) -> list[str]:
        return ["got = yield s", "s += 1 if got is None else 2"]

    def branch(self, depth: int) -> list[str]:
        lines = [f"if s % {self.random.randint(2, 4)}:", *self.inner(depth)]
        if self.random.random() < 0.4:
            lines += ["elif s % 5 == 1:", *self.inner(depth)]
        return [*lines, "else:", *self.inner(depth)] if self.random.random() < 0.5 else lines

    def for_loop(self, depth: int) -> list[str]:
        self.variables += 1
        i = f"i{self.variables}"
        target, over = self.random.choice(
            [
                (i, f"range({self.random.randint(0, 3)})"),
                (f"{i}, (j, [*k])", f"Source({self.random.randint(1, 3)})"),
                (f"{i}, x", "enumerate(x * x for x in [3, 1, 2])"),
                (i, "zip('ab', [s, s + 1])"),
                (i, f"f{self.random.randrange(self.functions)}(2)" if self.functions else "()"),
            ]
        )
        lines = [f"for {target} in {over}:", *self.inner(depth, in_loop=True)]
        return [*lines, "else:", *self.inner(depth)] if self.random.random() < 0.3 else lines

    def while_loop(self, depth: int) -> list[str]:
        self.variables += 1
        n = f"n{self.variables}"
        lines = [f"{n} = {self.random.randint(1, 3)}", f"while ({n} := {n} - 1) >= 0:"]
        lines += self.inner(depth, in_loop=True)
        return [*lines, "else:", *self.inner(depth)] if self.random.random() < 0.3 else lines

    def attempt(self, depth: int) -> list[str]:
        lines = ["try:", *self.inner(depth), "    if s % 3 == 0: raise KeyError(s)", "except KeyError:", "    s += 4"]
        if self.random.random() < 0.5:
            lines += ["else:", *self.inner(depth)]
        return [*lines, "finally:", "    trace.append(s)"] if self.random.random() < 0.5 else lines

    def managed(self, depth: int) -> list[str]:
        return ["with contextlib.nullcontext((s, 1)) as (c, d), contextlib.nullcontext():", *self.inner(depth)]

    def delegate(self, depth: int) -> list[str]:
        if not self.functions:
            return ["yield from [s, s + 1]"]
        return [f"got = yield from f{self.random.randrange(self.functions)}(s % 4)", "s += got"]

    def inner(self, depth: int, *, in_loop: bool = False) -> list[str]:
        return [f"    {line}" for line in self.block(depth + 1, 2, in_loop=in_loop)]


@pytest.mark.expensive(family="random generators")
@pytest.mark.parametrize("seed", range(24))
def test_a_generator_goes_on_from_every_place(seed: int) -> None:
    source = Writer(seed).script()
    expected = plain(source)
    assert Start(source).items(ITEMS) == expected, source
    for taken in range(seed % 3, ITEMS - 1, 3):
        start = Start(source)
        start.items(taken)
        captured = start.capture()
        assert captured.problems == [], source
        again = Start(source).restore(captured)
        assert again.items(ITEMS - taken) == expected[taken:], source
