"""Run an unmodified training script so that it survives being killed.

    python -m everstep.train.run [--dir DIR] [--every 10s | --every-steps N] train.py ARGS...
    python -m everstep.train.run [--dir DIR] [--every 10s | --every-steps N] -m package.module ARGS...

Started again with the same DIR it continues exactly where the newest save was made. The exit code is the script's; 75
after a save on SIGTERM; 76 where going on would not be exact, with one line on stderr that says why and what helps.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from everstep.model import handshake
from everstep.train.pace import parse_every
from everstep.train.script.launching import Order, launch

_USAGE = (
    "usage: python -m everstep.train.run [--dir DIR] [--every 10s | --every-steps N] (train.py | -m MODULE) ARGS..."
)


def main(argv: list[str]) -> None:
    """Run what the command line names.

    Args:
        argv: the command line without the program's name.
    """
    launch(_parse(argv))


def _parse(argv: list[str]) -> Order:
    options: dict[str, str] = {}
    rest = list(argv)
    while rest and rest[0] in ("--dir", "--every", "--every-steps"):
        if len(rest) < 2:
            _usage(f"{rest[0]} needs a value")
        options[rest[0]] = rest[1]
        rest = rest[2:]
    if rest[:1] in (["-h"], ["--help"]):
        print(__doc__)
        raise SystemExit(0)
    is_module = rest[:1] == ["-m"]
    rest = rest[1:] if is_module else rest
    if not rest or rest[0].startswith("-"):
        _usage(f"no script given, but {rest[0]!r}" if rest else "no script given")
    target = rest[0]
    if not is_module and not Path(target).is_file():
        _usage(f"there is no file {target}")
    name = target if is_module else Path(target).stem
    folder = options.get("--dir") or os.environ.get(handshake.ENV_CHECKPOINT_DIR) or f".everstep/{name}"
    every = options.get("--every") or os.environ.get(handshake.ENV_CHECKPOINT_EVERY) or "auto"
    return Order(target, is_module, tuple(rest[1:]), Path(folder), _seconds(every), _steps(options))


def _seconds(text: str) -> float | None:
    try:
        return parse_every(text.removesuffix("s"))
    except ValueError as error:
        _usage(f"--every: {error}")


def _steps(options: dict[str, str]) -> int | None:
    text = options.get("--every-steps")
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        _usage(f"--every-steps: expected a number of steps from 1, got {text!r}")
    if "--every" in options:
        _usage("--every and --every-steps exclude each other")
    return int(text)


def _usage(problem: str) -> NoReturn:
    print(f"everstep: {problem}\n{_USAGE}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
