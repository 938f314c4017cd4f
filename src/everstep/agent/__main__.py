"""Entry point: ``agent.pyz`` runs the agent (told by the ``BOOT_*`` environment), ``agent.pyz keeper`` a keeper.

Exit codes: 0 after a release or a shutdown, 2 for an unusable environment or a refused join, 3 when the server does not
know us any more, 4 when another agent runs on the same root.
"""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line names."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["keeper"]:
        from everstep.agent import keeper  # kept apart: a keeper must start fast

        return keeper.main()
    if arguments:
        print(f"unknown argument {arguments[0]!r}; expected none or 'keeper'", file=sys.stderr)
        return 2
    from everstep.agent import program

    return program.main()


if __name__ == "__main__":
    sys.exit(main())
