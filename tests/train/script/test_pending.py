"""Where a function cannot be entered again, since the interpreter alone holds something: asked amid a call."""

from __future__ import annotations

import ast
import contextlib
import sys
import textwrap
import types

import pytest

from everstep.train.script.operands import pending
from everstep.train.script.pending import Answer, held_back

HEAD = """
import contextlib, enum, functools, pathlib, time
import torch
N = [0]
seen, history, args = [], {"a": []}, type("Args", (), {"lr": 0.1})()
factor = 0.5
LR = 0.1 * 2
null = pathlib.Path("/dev/null")


class Phase(enum.Enum):
    WARM = 1


class Trainer:
    def __init__(self):
        self.log = []
        self.rate = 1.0
        self.count = 0

    def advance(self):
        self.count += 1


class Swap:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    @property
    def trained(self):
        return train()


@contextlib.contextmanager
def halved():
    yield 1


@contextlib.contextmanager
def handed():
    yield Swap()


def helper(number, log=None, epoch=0):
    log = seen if log is None else log
    print(number, train())


def wrapped(*args, **named):
    return helper(*args, **named)


def weight(model):
    return model.weight.item()


def train():
    N[0] += 1
    seen.append(1)
    return ask()


def run():
    trainer, model, best, total = Trainer(), torch.nn.Linear(1, 1), 0.0, {"x": 0.0}
    swap = Swap()
    k = 0
    for epoch in range(2):
"""


def asked(body: str, monkeypatch: pytest.MonkeyPatch, *, unwritten: bool = False) -> str:
    """What is said of the function whose loop has this body, while it calls ``ask`` or what calls it."""
    source = HEAD + textwrap.indent(textwrap.dedent(body), " " * 8)
    found: list[str] = []
    of = pending(ast.parse(source))

    def ask() -> float:
        frame: types.FrameType | None = sys._getframe(1)
        answer = Answer("")
        while frame is not None and not answer.why and frame.f_code.co_filename in ("script.py", contextlib.__file__):
            if frame.f_code.co_filename == "script.py":
                answer = held_back(frame, of, [of], innermost=False, asked=answer.asks, unwritten=unwritten)
            frame = frame.f_back
        found.append(answer.why)
        return 1.0

    module = types.ModuleType("script")
    space = vars(module)
    space.update({"ask": ask, "__everstep__": None})
    monkeypatch.setitem(sys.modules, "script", module)
    exec(compile(source, "script.py", "exec"), space)
    run = space["run"]
    assert callable(run)
    run()
    assert len(set(found)) == 1
    return found[0]


FREE = [
    "train()",
    "x = train() + train.__doc__.__len__() if train.__doc__ else train()",
    "best = max(best, train())",
    "best += train()",
    "trainer.rate += train()",
    "seen.append(train())",
    'history["a"].append(train())',
    "trainer.log.append((epoch, train()))",
    'print(f"epoch {epoch}: {train():.3f}", flush=True)',
    "print(args.lr, train())",
    "print(time.time(), train())",
    "lr = 0.1 * epoch\nprint(lr, len(range(3)), train())",
    "k = factor * 2\nx = (k, train())",
    "with torch.no_grad():\n    train()",
    "with open('/dev/null', 'w') as f:\n    f.write(str(train()))",
    "with swap:\n    train()",
    "with pathlib.Path('/dev/null').open('w') as f:\n    train()",
    "with null.open('w') as f:\n    train()",
    "with Swap() as s:\n    train()",
    "with torch.enable_grad() if epoch else contextlib.nullcontext(), contextlib.suppress(KeyError):\n    train()",
    "with Swap():\n    pass\ntrain()",
    "try:\n    train()\nfinally:\n    x = 1",
    "x = [train()]",
    "x = getattr(trainer, 'rate') if epoch > 5 else train()",
    "x, y = train(), 1",
    "if train() < best:\n    pass",
    "if (loss := train()) < best:\n    pass",
    "total[str(epoch)] = train()",
    "seen.append((seen, model, train()))",
    "x = best + train()",
    "print(f'{args.lr} {LR} {Phase.WARM.name}', train())",
    "x = (lambda: train())()",
    "f = lambda e=1: (e, train())\nf()",
    "helper(epoch, seen)",
    "helper(number=epoch, log=[])",
    "wrapped(epoch, seen)",
    "best = max(best, train(), 0.0)",
    "print(f'{type(model).__name__}', train())",
]
BOUND = [
    ("h = (N[0], train())", "`N[0]`"),
    ("print(len(seen), train())", "`len(seen)`"),
    ('total["x"] += train()', "`total`"),
    ("k += 1\nx = (k, train())", "`k`"),
    ("k += 1\n(seen if k % 2 else history['a']).append(train())", "`seen if k % 2 else history['a']`"),
    ("x = (len(seen), train())", "`len(seen)`"),
    ("x = (*seen, train())", "`*seen`"),
    ("x = {**total, 'y': train()}", "`total`"),
    ("x = (lambda: (N[0], train()))()", "`N[0]`"),
    ("print(f'{seen} {train()}')", "`{seen}`"),
    ("print(f'{model.training} {train()}')", "`model.training`"),
    ("print(f'{model.weight.data} {train()}')", "`model.weight.data`"),
    ("x = (model.weight * 1, train())", "`model.weight`"),
    ("x = (model.weight.sum(), train())", "`model.weight.sum()`"),
    ("print(swap.trained)", "called by no call (a property"),
    ("helper(len(seen), seen)", "with the argument `number`"),
    ("helper(N[0], seen)", "with the argument `N[0]`"),
    ("wrapped(N[0], seen)", "with the argument `N[0]`"),
    ("for s in list(seen):\n    pass\nprint(k, s if k else 0, train())", "`s if k else 0`"),
    ("try:\n    raise KeyError\nexcept KeyError:\n    train()", "in an `except`, which holds an exception"),
    ("with handed() as s:\n    train()", "in a `with` whose manager no variable holds"),
    ("x = weight(model) - train()", "`weight(model)`"),
    ("before = weight(model)\nx = before - train()", "`before`"),
    ("print(trainer.count, train())", "`count`"),
    ("trainer.count += train()", "`count`"),
    ("N[0] += train()", "`N[0]`"),
    ("with Swap():\n    train()", "in a `with` whose manager no variable holds"),
    ("with halved() as x:\n    train()", "in a `with` whose manager no variable holds"),
    ("with contextlib.ExitStack():\n    train()", "in a `with` whose manager no variable holds"),
    ("with torch.no_grad(), Swap():\n    for _ in range(1):\n        train()", "in a `with` whose manager"),
    ("x = list(map(lambda _: train(), range(2)))", "called by list, where a `for` could be continued"),
    ("x = min([1, 2], key=lambda _: train())", "called by min, "),
    ("x = functools.reduce(lambda a, _: a + train(), range(2))", "called by functools.reduce, "),
    ("x = [1, 2]\nx.sort(key=lambda _: train())", "called by x.sort, "),
    ("x = ','.join(map(lambda _: str(train()), range(2)))", "called by a method of a constant, "),
]


@pytest.mark.parametrize("body", FREE)
def test_what_cannot_have_changed_keeps_nobody(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(body, monkeypatch) == ""


@pytest.mark.parametrize(("body", "text"), BOUND)
def test_what_may_have_changed_is_named(body: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert text in asked(body, monkeypatch)


def test_what_is_to_be_returned_behind_finally_waits_too() -> None:
    source = "def run():\n    try:\n        return measured()\n    finally:\n        train()\n"
    ((call,),) = [found for end, found in pending(ast.parse(source)).calls.items() if end[0] == 5]
    assert call.changing == "measured()"


def test_names_that_depend_on_each_other_are_judged_in_no_time() -> None:
    chain = "".join(f"    a{n + 1} = a{n} + a{n}\n" for n in range(200))
    found = pending(ast.parse(f"def run(a0):\n{chain}    print(a200, train())\n"))
    assert [operands.changing for (operands,) in found.calls.values()] == ["a200", ""]


def test_what_another_module_assigns_to_counts() -> None:
    mine = pending(ast.parse("def run(trainer):\n    return trainer.step, trainer.train()\n"))
    theirs = pending(ast.parse("class Trainer:\n    def train(self):\n        self.step += 1\n"))
    assert theirs.stored_attributes == {"step": 1}
    ((operands,),) = mine.calls.values()
    assert operands.needs.attributes == {"step": 0}


@pytest.mark.parametrize(
    ("body", "held"),
    [
        ("best = max(best, train())", "best"),
        ("best += train()", "best"),
        ("trainer.rate += train()", "rate"),
        ("helper(k, train())", "k"),
        ("print(args.lr, train())", ""),
        ("train()", ""),
        ('history["a"].append(train())', ""),
        ('print(f"epoch {epoch}: {train():.3f}", flush=True)', ""),
    ],
)
def test_where_nothing_was_written_on_the_way_no_value_may_be_held(
    body: str, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked(body, monkeypatch) == ""
    assert (f"behind `{held}`" if held else "") in asked(body, monkeypatch, unwritten=True)
    assert bool(asked(body, monkeypatch, unwritten=True)) == bool(held)
