"""Run scripts of the corpus: ``python -m tests.corpus [--kills N] [--seed S] [--jobs N] [--json FILE] [NAMES...]``

Prints a line per script as it is done, then the figures, then one JSON object. The exit status is 1 if any verdict was
not one that the table allows.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from tests.corpus.cases import Case, load
from tests.corpus.outcome import difference
from tests.corpus.trial import VERDICTS, NotAsExpected, Result, Settings, forget, run_plain, run_trial


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    options = _parser().parse_args(arguments)
    cases = _chosen(load(), options.names, all_of_them=options.slow)
    settings = Settings(kills=options.kills, seed=options.seed, sources=options.sources)
    kept = options.keep or Path(tempfile.mkdtemp(prefix="corpus-"))
    print(f"{len(cases)} scripts, {settings.kills} kills each, seed {settings.seed}, below {kept}", flush=True)
    results = []
    for case, result in _run(cases, kept, settings, jobs=options.jobs, plain=options.plain):
        results.append((case, result))
        print(_line(case, result), flush=True)
    unmet = [result.name for case, result in results if not result.met(case)]
    summary = _summary([result for _, result in results], settings)
    print(" ".join(f"{verdict} {summary[verdict]}" for verdict in VERDICTS), f"of {len(results)}")
    print(json.dumps({**summary, "unmet": unmet}))
    if options.json:
        details = [asdict(result) for _, result in results]
        options.json.write_text(json.dumps({**summary, "unmet": unmet, "results": details}, indent=1) + "\n")
    return 1 if unmet else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="scripts to run; default: all")
    parser.add_argument("--kills", type=int, default=3, help="kills per script")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="where the kills are drawn from")
    parser.add_argument("--jobs", type=int, default=1, help="scripts at a time")
    parser.add_argument("--plain", action="store_true", help="only look whether two plain runs are equal")
    parser.add_argument("--slow", action="store_true", help="with those that are marked slow")
    parser.add_argument(
        "--sources", type=Path, help="folder of another everstep to judge, such as another revision's src"
    )
    parser.add_argument("--json", type=Path, help="write everything about every script to this file")
    parser.add_argument("--keep", type=Path, help="work below this folder, and leave it there")
    return parser


def _chosen(cases: dict[str, Case], names: Sequence[str], *, all_of_them: bool) -> list[Case]:
    unknown = [name for name in names if name not in cases]
    if unknown:
        sys.exit(f"no script called {', '.join(unknown)}")
    return [cases[name] for name in names] or [case for case in cases.values() if all_of_them or not case.slow]


def _run(
    cases: Sequence[Case], kept: Path, settings: Settings, *, jobs: int, plain: bool
) -> Iterator[tuple[Case, Result]]:
    def one(case: Case) -> Result:
        folder = kept / case.name
        result = _twice(case, folder, settings) if plain else run_trial(case, folder, settings)
        if result.met(case):
            forget(folder)
        return result

    with ThreadPoolExecutor(jobs) as pool:
        yield from zip(cases, pool.map(one, cases), strict=True)


def _twice(case: Case, folder: Path, settings: Settings) -> Result:
    try:
        first, course = run_plain(case, folder / "first", settings.seed)
        second, _ = run_plain(case, folder / "second", settings.seed)
    except NotAsExpected as error:
        return Result(case.name, "broken", str(error))
    found = difference(first, second)
    return Result(case.name, "broken" if found else "exact", found or "", seconds=course.total_s)


def _line(case: Case, result: Result) -> str:
    mark = " " if result.met(case) else "!"
    kills = f"{len(result.landed)} kills, {result.resumed} resumed"
    line = f"{mark} {result.name:<22} {result.verdict:<9} {result.seconds:5.1f} s  {kills}, {result.cadence}"
    if result.verdict == "exact":
        return line
    return "\n      ".join([line, result.detail, *result.landed, *result.stderr.splitlines()])


def _summary(results: Sequence[Result], settings: Settings) -> dict[str, int]:
    counted = Counter(result.verdict for result in results)
    return {
        "seed": settings.seed,
        "kills": settings.kills,
        "landed": sum(len(result.landed) for result in results),
        "resumed": sum(result.resumed for result in results),
        **{verdict: counted[verdict] for verdict in VERDICTS},
    }


if __name__ == "__main__":
    sys.exit(main())
