"""Run an unmodified training script so that it survives being killed.

    python -m everstep.train.run [--dir DIR] [--every 10s | --every-steps N] train.py ARGS...
    python -m everstep.train.run [--dir DIR] [--every 10s | --every-steps N] -m package.module ARGS...

With --audit K a save is tried out while training goes on: a child restores it in a copy of the working folder, goes K
steps there, and is compared with this process K steps later (parameters, buffers, optimizers, random states).

    --audit K             audit the first save of this launch for K steps
    --audit-every N       audit every N-th save instead of the first alone (`first`)
    --audit-timeout 600s  how long one may take
    --audit-strict        exit with code 76 when a save turns out not to be exact; else it is a warning, and
                          DIR/audit-STEP.json

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
from everstep.train.script.audit.audits import DEFAULT_TIMEOUT_S, Wanted
from everstep.train.script.launching import Order, launch

_USAGE = (
    "usage: python -m everstep.train.run [--dir DIR] [--every 10s | --every-steps N] [--audit K] "
    "(train.py | -m MODULE) ARGS..."
)
_VALUED = ("--dir", "--every", "--every-steps", "--audit", "--audit-every", "--audit-timeout")
_FLAGS = ("--audit-strict",)


def main(argv: list[str]) -> None:
    """Run what the command line names.

    Args:
        argv: the command line without the program's name.
    """
    launch(_parse(argv))


def _parse(argv: list[str]) -> Order:
    options: dict[str, str] = {}
    rest = list(argv)
    while rest and rest[0] in (*_VALUED, *_FLAGS):
        taken = 2 if rest[0] in _VALUED else 1
        if len(rest) < taken:
            _usage(f"{rest[0]} needs a value")
        options[rest[0]] = rest[taken - 1]
        rest = rest[taken:]
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
    every_s = _seconds("--every", every)
    return Order(target, is_module, tuple(rest[1:]), Path(folder), every_s, _steps(options), _audit(options))


def _seconds(option: str, text: str) -> float | None:
    try:
        return parse_every(text.removesuffix("s"))
    except ValueError as error:
        _usage(f"{option}: {error}")


def _audit(options: dict[str, str]) -> Wanted | None:
    steps = options.get("--audit") or os.environ.get(handshake.ENV_CHECKPOINT_AUDIT)
    if not steps:
        if any(option.startswith("--audit-") for option in options):
            _usage("--audit-... says how to audit; add --audit K for how many steps")
        return None
    every = options.get("--audit-every", "first")
    return Wanted(
        steps=_count("--audit", steps),
        every=None if every == "first" else _count("--audit-every", every),
        strict="--audit-strict" in options,
        timeout_s=_seconds("--audit-timeout", options.get("--audit-timeout", "auto")) or DEFAULT_TIMEOUT_S,
    )


def _count(option: str, text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        _usage(f"{option}: expected a number from 1, got {text!r}")
    return int(text)


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
