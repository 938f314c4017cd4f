"""``everstep``: finds the command, loads it alone, and turns whatever goes wrong into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from everstep.cli import failures
from everstep.cli.registry import COMMANDS, PROGRAM, build, meant
from everstep.model.errors import BadInput, Problem


@dataclass(slots=True)
class Invocation:
    """What the commands need to know of the command line beside their own options.

    Attributes:
        command: the words after ``--``; None if there was no ``--``.
    """

    command: list[str] | None = field(default=None)


#: Commands in which ``--`` begins a command of the user's, whose words are nobody else's business.
_TAKE_A_COMMAND = ("run", "exec", "check")


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the console script; never returns."""
    raise SystemExit(execute(sys.argv[1:] if argv is None else argv))


def execute(argv: Sequence[str]) -> int:
    """Run one command line; its exit code.

    0 all is well; 1 it was refused or failed; 2 what was given is wrong and nothing was changed; 3 the server cannot be
    reached; 130 interrupted. A followed job gives its own.
    """
    words = list(argv)
    try:
        code = _dispatch(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (`| head`) has enough. Python would complain again while closing stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        return failures.show(error, _named(words))
    return code


def _dispatch(words: list[str]) -> int:
    completing = f"_{PROGRAM.upper()}_COMPLETE" in os.environ
    if completing:
        typed = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or "").split()
        build(word for word in typed[1:2] if word in COMMANDS)(prog_name=PROGRAM)
        return 0
    first = words[0] if words else "--help"
    if first not in COMMANDS and not first.startswith("-"):
        fix = meant(first) or f"see {PROGRAM} --help"
        raise BadInput(Problem(PROGRAM, "", f"there is no command '{first}'", fix))
    invocation = Invocation()
    if first in _TAKE_A_COMMAND and "--" in words:
        cut = words.index("--")
        words, invocation.command = words[:cut], words[cut + 1 :]
    app = build([first] if first in COMMANDS else ())
    result = app(args=words or [first], prog_name=PROGRAM, standalone_mode=False, obj=invocation)
    return result if isinstance(result, int) else 0


def _named(words: Sequence[str]) -> str:
    """The command as messages name it: ``everstep ckpt ls``."""
    named = [PROGRAM]
    if words and words[0] in COMMANDS:
        named.append(words[0])
        if COMMANDS[words[0]].is_group and len(words) > 1 and not words[1].startswith("-"):
            named.append(words[1])
    return " ".join(named)
