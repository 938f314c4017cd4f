"""What goes wrong, as one clear line per problem and an exit code. Tracebacks only with ``EVERSTEP_DEBUG=1``."""

from __future__ import annotations

import difflib
import errno
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
    if isinstance(error, OSError) and (error.filename is not None or error.errno == errno.ENOSPC):
        return REFUSED, [f"{command}: {_file_trouble(error)}"]
    name = type(error).__name__
    hint = "EVERSTEP_DEBUG=1 shows where"
    return REFUSED, [f"{command}: internal error: {name}: {_one_line(str(error))}; {hint}"]


def _file_trouble(error: OSError) -> str:
    words = (error.strerror or str(error)).lower()
    if error.errno == errno.ENOSPC:
        import tempfile

        words += f"; free some, or set TMPDIR to a folder elsewhere (now {tempfile.gettempdir()})"
    return f"{error.filename}: {words}" if error.filename is not None else words


def usage(command: str, option: str, message: str, fix: str = "") -> BadInput:
    """A fault in the command line: ``everstep logs: --rank: must be 0 or more; ...``."""
    return BadInput(Problem(command, option, message, fix))


def _usage_problem(error: Any, command: str) -> Problem:
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else command
    see = f"see {where} --help"
    kind = type(error).__name__
    if kind == "NoSuchOption":
        # Without the dashes, which make all options look alike.
        options = {option.lstrip("-"): option for option in error.possibilities or ()}
        close = [options[name] for name in difflib.get_close_matches(error.option_name.lstrip("-"), options, n=1)]
        return Problem(
            where, "", f"there is no option {error.option_name}", f"did you mean {close[0]}?" if close else see
        )
    name = _parameter(getattr(error, "param", None))
    if kind == "MissingParameter":
        return Problem(where, "", f"{name} is missing", see)
    message = _one_line(error.message)
    if kind == "BadParameter":
        return Problem(where, name, _said(message))
    for pattern, text in _USAGE:
        found = re.fullmatch(pattern, message)
        if found:
            fix = f"write {where} JOB -- COMMAND" if where == "everstep exec" else see
            return Problem(where, "", found.expand(text), fix)
    missing = re.fullmatch(r"No such command '(.*?)'\.(?: Did you mean '(.*?)'\?)?.*", message)
    if missing:
        fix = f"did you mean '{missing[2]}'?" if missing[2] else see
        return Problem(where, "", f"there is no command '{missing[1]}'", fix)
    return Problem(where, "", _said(message), see)


#: What the parser of the command line says, and how we say it. Releases of it differ; those from 0.29 on, which ask
#: pydantic and word all this otherwise, are kept out by pyproject.toml.
_USAGE = (
    (r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)", r"unexpected: \1"),
    (r"Option '(.*)' requires an argument\.", r"\1 needs a value"),
    (r"Missing command\.", r"the command is missing"),
)
_VALUES = (
    (r"('.*' is not one of .*?)\.?", r"\1"),
    (r"'.*' is not a valid int(?:eger)?(?: range)?\.?", r"expected a whole number"),
    (r"'.*' is not a valid float(?: range)?\.?", r"expected a number"),
)
_RANGE = re.compile(r"(?P<given>.*) is not in the range (?:(?P<low>.*)<=)?x(?:>=(?P<least>.*?)|<=(?P<most>.*?))?\.?")


def _said(message: str) -> str:
    for pattern, text in _VALUES:
        found = re.fullmatch(pattern, message)
        if found:
            return found.expand(text)
    found = _RANGE.fullmatch(message)
    if found:
        least = found["low"] or found["least"]
        few = least is not None and float(found["given"]) < float(least)
        return f"expected {least} or more" if few else f"expected {found['most']} or less"
    return message[:1].lower() + message[1:].removesuffix(".")


def _parameter(param: Any) -> str:
    """How people write the parameter: ``--rank``, ``JOB``."""
    if param is None:
        return ""
    if getattr(param, "param_type_name", "") == "argument":
        return str(getattr(param, "metavar", None) or param.name.upper()).strip("[].")
    longest = [option for option in param.opts if option.startswith("--")]
    return str((longest or param.opts)[0])


def _one_line(text: str) -> str:
    return " ".join(text.split())
