"""``everstep version``."""

from __future__ import annotations

import platform
from typing import Annotated

import typer

from everstep import __version__
from everstep.cli.output import Output, OutputOption, document, facts
from everstep.model.handshake import HANDSHAKE_VERSION


def version(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also the handshake and the Python.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print the version.

    Example: `everstep version -o json`
    """
    found = {"everstep": __version__, "handshake": HANDSHAKE_VERSION, "python": platform.python_version()}
    if output is not Output.TABLE:
        document(found, output)
    elif verbose:
        facts([(name, str(value)) for name, value in found.items()])
    else:
        print(f"everstep {__version__}")
