"""Process groups of gloo that are dropped right after their last collective: a race inside of torch, kept out of.

gloo's worker thread tells that a collective is done before it lets go of its tensors, for which it needs the
interpreter's lock while it holds the group's. Whoever drops the group in between holds the first and waits for the
second, for ever: seen with torch 2.13 where a script ends with ``all_gather_object`` and ``destroy_process_group``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from everstep.train.gang import let_go


@contextmanager
def patient_drops() -> Iterator[None]:
    """Meanwhile ``torch.distributed.destroy_process_group`` waits for `let_go` first."""
    if not dist.is_available():
        yield
        return
    destroy = dist.destroy_process_group

    @functools.wraps(destroy)
    def patiently(*arguments: Any, **named: Any) -> None:
        let_go()
        destroy(*arguments, **named)

    homes = (dist, dist.distributed_c10d)
    for home in homes:
        home.destroy_process_group = patiently  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for home in homes:
            home.destroy_process_group = destroy  # type: ignore[attr-defined]
