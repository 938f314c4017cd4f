"""What scripts do with their gradients between two steps: ten passes each, of one batch that each pass is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Pass = Callable[[int, torch.Tensor], None]
"""The body of a loop: number of the step from 1, batch of shape (4, 4)."""
Made = tuple[dict[str, Any], Pass]


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(model(x), x[:, :1])


def one() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.02)


def clamped() -> Made:
    model, opt = one()

    def step(_: int, x: torch.Tensor) -> None:
        loss_of(model, x).backward()
        for p in model.parameters():
            assert p.grad is not None
            p.grad = p.grad.clamp(-1, 1)
        opt.step()

    return {"model": model, "opt": opt}, step


def by_hand() -> Made:
    model, opt = one()
    params = list(model.parameters())

    def step(number: int, x: torch.Tensor) -> None:
        for p, g in zip(params, torch.autograd.grad(loss_of(model, x), params), strict=True):
            p.grad = g if p.grad is None else p.grad + g
        if number % 3 == 0:
            opt.step()
            opt.zero_grad()

    return {"model": model, "opt": opt}, step


def in_parts() -> Made:
    model, opt = one()
    body, head = model

    def step(number: int, x: torch.Tensor) -> None:
        head.zero_grad()
        loss_of(model, x).backward()
        opt.step()
        if number % 4 == 0:
            body.zero_grad()

    return {"model": model, "opt": opt}, step


def now_and_then(every: int, turn: int) -> Callable[[], Made]:
    def make() -> Made:
        model, opt = one()

        def step(number: int, x: torch.Tensor) -> None:
            if number % every == turn:
                opt.zero_grad()
            loss_of(model, x).backward()
            opt.step()

        return {"model": model, "opt": opt}, step

    return make


def in_turns() -> Made:
    model, a = one()
    b = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(number: int, x: torch.Tensor) -> None:
        if number % 2:
            a.zero_grad()
        loss_of(model, x).backward()
        (a if number % 2 else b).step()

    return {"model": model, "a": a, "b": b}, step


def adversarial(detached: bool) -> Callable[[], Made]:
    def make() -> Made:
        (g, og), (d, od) = one(), one()
        made = nn.Linear(1, 4)

        def step(number: int, x: torch.Tensor) -> None:
            fake = made(g(x))
            if number % 2:
                od.zero_grad()
            (loss_of(d, x) - d(fake.detach() if detached else fake).mean()).backward()
            od.step()
            og.zero_grad()
            d(made(g(x))).mean().backward()
            og.step()

        return {"g": g, "d": d, "og": og, "od": od, "made": made}, step

    return make


def frozen() -> Made:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(number: int, x: torch.Tensor) -> None:
        if number == 4:
            model[0].requires_grad_(False)
        for p in model.parameters():
            if p.requires_grad:
                p.grad = None
        loss_of(model, x).backward()
        opt.step()

    return {"model": model, "opt": opt}, step


def reads() -> Made:
    model, opt = one()

    def step(_: int, x: torch.Tensor) -> None:
        norms = [p.grad.norm() for p in model.parameters() if p.grad is not None]
        opt.param_groups[0]["lr"] = 0.05 / (1 + float(sum(norms)))
        opt.zero_grad()
        loss_of(model, x).backward()
        opt.step()

    return {"model": model, "opt": opt}, step


def changes() -> Made:
    model, opt = one()

    def step(number: int, x: torch.Tensor) -> None:
        if number != 6:
            opt.zero_grad()
        loss_of(model, x).backward()
        opt.step()

    return {"model": model, "opt": opt}, step


def compiled() -> Made:
    model, opt = one()
    quick = torch.compile(model, backend="eager", fullgraph=True)

    def step(_: int, x: torch.Tensor) -> None:
        loss = F.mse_loss(quick(x), x[:, :1])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()

    return {"model": model, "opt": opt}, step


EXACT: dict[str, Callable[[], Made]] = {
    "replaced behind the pass": clamped,
    "accumulated by hand": by_hand,
    "emptied in parts": in_parts,
    "each fourth time, behind": now_and_then(4, 1),
    "each third time": now_and_then(3, 0),
    "each second time": now_and_then(2, 1),
    "two optimizers in turns": in_turns,
    "adversarial": adversarial(True),
    "adversarial, not detached": adversarial(False),
    "compiled, emptied late": compiled,
}
REFUSED = {"stale ones of frozen layers": frozen, "read": reads, "a habit that changes": changes}


def batches() -> Iterator[torch.Tensor]:
    torch.manual_seed(7)
    return iter([torch.randn(4, 4) for _ in range(10)])
