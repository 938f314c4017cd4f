"""What goes wrong, as one clear line per problem and an exit code. Tracebacks only with ``EVERSTEP_DEBUG=1``."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from everstep.client.home import NoServer
from everstep.model.errors import BadInput, EverstepError, NotFound, Problem

REFUSED, BAD_INPUT, UNREACHABLE, INTERRUPTED = 1, 2, 3, 130


def show(error: BaseException, command: str) -> int:
    """Print ``error`` to stderr for a person; the exit code. ``command`` is how the message names what was run."""
    if os.environ.get("EVERSTEP_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)
    code, lines = explain(error, command)
    for line in lines:
        print(line, file=sys.stderr)
    return code


def explain(error: BaseException, command: str) -> tuple[int, list[str]]:
    """Exit code and lines for ``error``."""
    if isinstance(error, BadInput):
        return BAD_INPUT, [str(problem) for problem in error.problems]
    if isinstance(error, NotFound):
        return BAD_INPUT, [f"{command}: {_one_line(str(error))}"]
    if isinstance(error, NoServer):
        return UNREACHABLE, [f"{command}: {_one_line(str(error))}"]
    if isinstance(error, EverstepError):
        return REFUSED, [f"{command}: {_one_line(str(error))}"]
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        return INTERRUPTED, [f"{command}: interrupted"]
    # Typer moves its exceptions between releases; what they can do has stayed.
    if hasattr(error, "format_message"):
        return BAD_INPUT, [str(_usage_problem(error, command))]
    if isinstance(error, OSError) and error.filename is not None:
        return REFUSED, [f"{command}: {error.filename}: {(error.strerror or str(error)).lower()}"]
    name = type(error).__name__
    hint = "EVERSTEP_DEBUG=1 shows where"
    return REFUSED, [f"{command}: internal error: {name}: {_one_line(str(error))}; {hint}"]


def usage(command: str, option: str, message: str, fix: str = "") -> BadInput:
    """A fault in the command line: ``everstep logs: --rank: must be 0 or more; ...``."""
    return BadInput(Problem(command, option, message, fix))


def _usage_problem(error: Any, command: str) -> Problem:
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else command
    see = f"see {where} --help"
    kind = type(error).__name__
    if kind == "NoSuchOption":
        close = sorted(error.possibilities or ())
        return Problem(
            where, "", f"there is no option {error.option_name}", f"did you mean {close[0]}?" if close else see
        )
    name = _parameter(getattr(error, "param", None))
    if kind == "MissingParameter":
        return Problem(where, "", f"{name} is missing", see)
    if kind == "BadParameter":
        return Problem(where, name, _lowered(error.message))
    message = _lowered(error.format_message() if kind != "UsageError" else error.message)
    extra = re.fullmatch(r"got unexpected extra arguments? \((.*)\)", message)
    if extra:
        return Problem(where, "", f"unexpected argument {' '.join(map(repr, extra[1].split()))}", see)
    close_command = re.fullmatch(r"no such command '(.*?)'\.?(?: did you mean '(.*?)'\?)?.*", message, re.IGNORECASE)
    if close_command:
        fix = f"did you mean '{close_command[2]}'?" if close_command[2] else see
        return Problem(where, "", f"there is no command '{close_command[1]}'", fix)
    return Problem(where, "", message, see)


def _parameter(param: Any) -> str:
    """How people write the parameter: ``--rank``, ``JOB``."""
    if param is None:
        return ""
    if getattr(param, "param_type_name", "") == "argument":
        return str(getattr(param, "metavar", None) or param.name.upper()).strip("[].")
    longest = [option for option in param.opts if option.startswith("--")]
    return str((longest or param.opts)[0])


def _lowered(message: str) -> str:
    text = _one_line(message).removesuffix(".")
    return text[:1].lower() + text[1:] if not text[:2].isupper() else text


def _one_line(text: str) -> str:
    return " ".join(text.split())
