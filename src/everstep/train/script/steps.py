"""Counts the steps of training, whoever takes them: an optimizer, or ``backward`` where the script has no optimizer."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

ALARM_AT = 200


class Steps:
    """The steps taken in this process by its main thread.

    Attributes:
        count: steps so far, over all attempts once a resume has set it.
        alarm: called once when the first `ALARM_AT` steps of this process are done; None: never.
        watcher: called behind every step, with the optimizer that took it (None: ``backward``); None: nobody.
    """

    __slots__ = ("_done", "_has_optimizer", "_main", "_quiet", "alarm", "count", "watcher")

    def __init__(self) -> None:
        self.count = self._done = 0
        self.alarm: Callable[[], None] | None = None
        self.watcher: Callable[[Any], None] | None = None
        self._has_optimizer = False
        self._quiet = 0
        self._main = threading.get_ident()

    def watch(self) -> None:
        """Count from now on. Once per process: what it wraps stays wrapped."""
        register_optimizer_step_post_hook(self._stepped)
        self._wrap_init()
        # A script without an optimizer moves its weights by hand: each pass backward is a step then.
        torch.Tensor.backward = self._counting(torch.Tensor.backward)  # type: ignore[method-assign]
        torch.autograd.backward = self._counting(torch.autograd.backward)
        torch.autograd.grad = self._counting(torch.autograd.grad)

    def _stepped(self, optimizer: Any = None, *_: Any) -> None:
        if threading.get_ident() != self._main:
            return
        self.count += 1
        if self.alarm is not None:
            self._done += 1
            if self._done == ALARM_AT:
                self.alarm()
        if self.watcher is not None:
            self.watcher(optimizer)

    def _wrap_init(self) -> None:
        init = Optimizer.__init__

        @functools.wraps(init)
        def noting(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            self._has_optimizer = True
            init(optimizer, *args, **kwargs)

        Optimizer.__init__ = noting  # type: ignore[method-assign, assignment]

    def _counting(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def counting(*args: Any, **kwargs: Any) -> Any:
            if self._has_optimizer or self._quiet:
                return backward(*args, **kwargs)
            self._quiet += 1
            try:
                return backward(*args, **kwargs)
            finally:
                self._quiet -= 1
                self._stepped()

        return counting
