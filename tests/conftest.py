"""Rules for all tests: sockets stay on this machine, expensive families are sampled, nothing is left running.

Environment: ``EVERSTEP_TEST_ALL=1`` runs every case and more examples; ``EVERSTEP_TEST_COMMIT`` fixes the sample.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import guards, sampling

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"
RUN_ALL = os.environ.get("EVERSTEP_TEST_ALL") == "1"
LEFT_OUT = pytest.StashKey[int]()

if not RUN_ALL:
    # Before anything imports torch, and for all processes that tests start. Tensors here are tiny: for them a second
    # thread only spins, on processors that other tests need (tests/train/test_faults.py: 28 s, with one thread 16 s).
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# No deadline: two cores are shared with other tests, and a slow example is not a wrong one.
_CALM: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("default", max_examples=30, **_CALM)
settings.register_profile("ci", max_examples=30, derandomize=True, print_blob=True, **_CALM)
settings.register_profile("all", max_examples=100, print_blob=True, **_CALM)
settings.load_profile("all" if RUN_ALL else "ci" if os.environ.get("CI") else "default")


def pytest_configure(config: pytest.Config) -> None:
    guards.limit_sockets()
    config.stash[LEFT_OUT] = 0
    if not hasattr(config, "workerinput"):
        _keep_temporary_files_together(config)


def _keep_temporary_files_together(config: pytest.Config) -> None:
    """What processes that are killed leave in the folder for temporary files goes when the tests are through.

    The folders of ``tmp_path`` stay where pytest would have them, so that those of a failure can be looked at.
    """
    usual = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="everstep-tests-")
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", usual)
    os.environ["TMPDIR"], tempfile.tempdir = folder, None
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_report_header(config: pytest.Config) -> str:
    if RUN_ALL:
        return "expensive families: all of them (EVERSTEP_TEST_ALL=1)"
    commit = sampling.current_commit(ROOT)
    share = f"about {sampling.DEFAULT_FRACTION:.0%}, at least one of each"
    return f"expensive families: {share}, chosen by commit ({commit}); EVERSTEP_TEST_ALL=1 runs all"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what the sample leaves out. A test named on the command line by its id always runs."""
    if RUN_ALL or any("::" in argument for argument in config.args):
        return
    families: dict[str, list[str]] = {}
    for item in items:
        family = _family(item)
        if family is not None:
            families.setdefault(family, []).append(item.nodeid)
    chosen = sampling.choose(families, sampling.current_commit(ROOT))
    kept, left_out = [], []
    for item in items:
        (kept if _family(item) is None or item.nodeid in chosen else left_out).append(item)
    if left_out:
        config.stash[LEFT_OUT] = len(left_out)
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def pytest_collection_finish() -> None:
    # A million objects of torch, the clouds' libraries and the tests themselves stay to the end: the collector need
    # not look through them again and again.
    gc.freeze()


def _family(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("expensive")
    if marker is None:
        return None
    if set(marker.kwargs) != {"family"} or marker.args:
        raise pytest.UsageError(f'{item.nodeid}: write @pytest.mark.expensive(family="...")')
    return str(marker.kwargs["family"])


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = session.config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    # Every worker collects the same list, so any of them knows the number.
    left_out = getattr(node, "workeroutput", {}).get("left_out", 0)
    node.config.stash[LEFT_OUT] = max(node.config.stash[LEFT_OUT], left_out)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    left_out = config.stash[LEFT_OUT]
    if left_out:
        terminalreporter.write_line(f"{left_out} expensive cases left out of this sample (make test-all runs them)")
    report = os.environ.get("EVERSTEP_TEST_FAILED")
    if report:  # scripts/run_tests.py asks
        stats = terminalreporter.stats
        failed = {without_group(entry.nodeid) for kind in ("failed", "error") for entry in stats.get(kind, [])}
        Path(report).write_text("".join(f"{name}\n" for name in sorted(failed)))


def without_group(test_id: str) -> str:
    """The id without the group that ``--dist loadgroup`` puts behind it."""
    return re.sub(r"@[^@\]]*$", "", test_id)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder that holds pyproject.toml."""
    return ROOT


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Real traces and prices kept beside the repository, which does not ship them; skips where they are not."""
    if not DATA.is_dir():
        pytest.skip("needs the data beside the repository (../shared/data), which is not here")
    return DATA


@pytest.fixture
def leak_guard(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Fails the test if a process it started is alive five seconds after its end, and kills what is left.

    Children inherit the mark ``EVERSTEP_TEST_RUN``, whose value is what the fixture gives; a process that is started
    with an environment of its own must be handed it. Ask for this fixture first, so that it is torn down last.
    """
    run = uuid.uuid4().hex
    monkeypatch.setenv(guards.RUN_VARIABLE, run)
    yield run
    survivors = guards.settle(run, patience_s=5.0)
    guards.end(survivors)
    if survivors:
        listed = "\n".join(f"  {survivor.pid}: {survivor.command}" for survivor in survivors)
        pytest.fail(f"{len(survivors)} processes outlived the test:\n{listed}", pytrace=False)
