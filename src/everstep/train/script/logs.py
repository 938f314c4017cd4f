"""Loggers: what was set in them comes back, and what writes for them has to be there again."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from everstep.train.script.glance import glance

_DEFAULT = (logging.NOTSET, False, True)


_there: list[logging.Handler] = []


def begin() -> None:
    """The script starts: handlers that are there now are not its own."""
    _there[:] = [handler for _, logger in _loggers() for handler in logger.handlers]


def levels() -> dict[str, Any]:
    """Levels and switches of all loggers, by name."""
    found = {name: (logger.level, logger.disabled, logger.propagate) for name, logger in _loggers()}
    return {"disable": logging.root.manager.disable, "loggers": found}


def set_levels(saved: Mapping[str, Any]) -> None:
    """Set them; loggers that are new since stay as they are."""
    logging.root.manager.disable = saved["disable"]
    now = levels()["loggers"]
    for name, kept in saved["loggers"].items():
        if now.get(name, _DEFAULT) != tuple(kept):
            logger = logging.getLogger(name or None)
            logger.level, logger.disabled, logger.propagate = kept
    clear: Any = getattr(logging.root.manager, "_clear_cache", lambda: None)  # what isEnabledFor has remembered
    clear()


def handlers(is_of_the_user: Callable[[str], bool]) -> dict[str, list[str]]:
    """What writes for the root and for loggers that are no library's, as text, by name."""
    found = {}
    for name, logger in _loggers():
        package = sys.modules.get(name.partition(".")[0]) if name else None
        if package is not None and not is_of_the_user(package.__name__):
            continue
        added = [handler for handler in logger.handlers if not any(handler is one for one in _there)]
        told = [_told(handler, is_of_the_user) for handler in added if not _made_by_itself(handler, name)]
        if told:
            found[name or "root"] = told
    return found


def _loggers() -> Iterator[tuple[str, logging.Logger]]:
    yield "", logging.root
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):
            yield name, logger


def _made_by_itself(handler: logging.Handler, name: str) -> bool:
    """True for what `logging` adds where there is nothing."""
    if type(handler) is logging.NullHandler:
        return True  # writes nothing; ``captureWarnings`` adds one at the first warning
    if name or type(handler) is not logging.StreamHandler:
        return False
    return handler.stream is sys.stderr and getattr(handler.formatter, "_fmt", None) == logging.BASIC_FORMAT


def _told(handler: logging.Handler, is_of_the_user: Callable[[str], bool]) -> str:
    kind, formatter = type(handler), handler.formatter
    text = [kind.__qualname__, logging.getLevelName(handler.level)]
    if formatter is not None:
        text.append(f"{type(formatter).__qualname__}({getattr(formatter, '_fmt', None)!r}, {formatter.datefmt!r})")
    if handler.filters:
        text.append(f"{len(handler.filters)} filters")
    stream = getattr(handler, "stream", None)
    if kind is logging.StreamHandler:
        text.append({id(sys.stdout): "stdout", id(sys.stderr): "stderr"}.get(id(stream), type(stream).__qualname__))
    if is_of_the_user(kind.__module__):
        mine = {k: v for k, v in vars(handler).items() if k not in ("lock", "stream", "formatter", "filters")}
        text.append(f"attributes {glance(mine):08x}")
    return " ".join(text)
