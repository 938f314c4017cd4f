"""``python -m benchmarks [NAME...] [-- ARGUMENTS]``: run the named benchmarks, or all; arguments go to each."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from pathlib import Path

_NO_BENCHMARK = {"__init__", "__main__", "runs"}


def names() -> list[str]:
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in _NO_BENCHMARK)


def main(argv: list[str]) -> int:
    """Exit status: 0 if every benchmark ran and reached its goal, 1 if not, 2 for a name that is none."""
    cut = argv.index("--") if "--" in argv else len(argv)
    wanted, arguments = argv[:cut], argv[cut + 1 :]
    unknown = [name for name in wanted if name not in names()]
    if unknown:
        print(f"no benchmark called {', '.join(unknown)}; there are: {', '.join(names())}", file=sys.stderr)
        return 2
    worst = 0
    for name in wanted or names():
        try:
            worst = max(worst, int(import_module(f"benchmarks.{name}").main(arguments)))
        except Exception:
            # One that breaks must not keep the others from being measured.
            traceback.print_exc()
            worst = max(worst, 1)
    return worst


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
