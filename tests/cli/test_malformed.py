"""Malformed command lines: the exact text on stderr, exit code 2, and nothing asked of any server."""

from __future__ import annotations

import io
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, FakeClient

CASES = [
    ("jbos", "everstep: there is no command 'jbos'; did you mean 'jobs'?"),
    ("queue", "everstep: there is no command 'queue'; did you mean 'jobs'?"),
    ("launch", "everstep: there is no command 'launch'; did you mean 'run'?"),
    ("stop", "everstep: there is no command 'stop'; did you mean 'cancel'?"),
    ("frobnicate", "everstep: there is no command 'frobnicate'; see everstep --help"),
    ("--frob", "everstep: there is no option --frob; see everstep --help"),
    ("-o json", "everstep: there is no option -o; see everstep --help"),
    ("jobs extra words", "everstep jobs: unexpected: extra words; see everstep jobs --help"),
    ("jobs -o xml", "everstep jobs: --output: 'xml' is not one of 'table', 'json', 'yaml'"),
    ("jobs --limit 0", "everstep jobs: --limit: expected 1 or more"),
    ("jobs --limit 100001", "everstep jobs: --limit: expected 100000 or less"),
    ("jobs --limit many", "everstep jobs: --limit: expected a whole number"),
    ("jobs --al", "everstep jobs: there is no option --al; did you mean --all?"),
    ("jobs -n", "everstep jobs: -n needs a value; see everstep jobs --help"),
    ("status", "everstep status: JOB is missing; see everstep status --help"),
    ("status a b", "everstep status: unexpected: b; see everstep status --help"),
    ("logs", "everstep logs: JOB is missing; see everstep logs --help"),
    ("logs a --rank first", "everstep logs: --rank: expected a rank number or 'setup', found 'first'"),
    ("logs a --attempt 0", "everstep logs: --attempt: expected 1 or more"),
    ("logs a --node -1", "everstep logs: --node: expected 0 or more"),
    ("logs a --folow", "everstep logs: there is no option --folow; did you mean --follow?"),
    ("events a --after -2", "everstep events: --after: expected 0 or more"),
    ("events a --after 9223372036854775808", "everstep events: --after: expected 9223372036854775807 or less"),
    ("events a --after soon", "everstep events: --after: expected a whole number"),
    ("why a -n 10001", "everstep why: --limit: expected 10000 or less"),
    ("why a -n none", "everstep why: --limit: expected a whole number"),
    ("cost a b", "everstep cost: unexpected: b; see everstep cost --help"),
    ("ckpt frob a", "everstep ckpt: there is no command 'frob'; see everstep ckpt --help"),
    ("ckpt restor a", "everstep ckpt: there is no command 'restor'; did you mean 'restore'?"),
    ("ckpt ls", "everstep ckpt ls: JOB is missing; see everstep ckpt ls --help"),
    ("ckpt restore a", "everstep ckpt restore: --step is missing; see everstep ckpt restore --help"),
    ("ckpt restore a --step ten", "everstep ckpt restore: --step: expected a whole number"),
    ("ckpt restore a --step -1", "everstep ckpt restore: --step: expected 0 or more"),
    ("cancel", "everstep cancel: JOB is missing; see everstep cancel --help"),
    ("cancel a --force", "everstep cancel: there is no option --force; see everstep cancel --help"),
    ("pause --reason", "everstep pause: --reason needs a value; see everstep pause --help"),
    ("unpause a --reason x", "everstep unpause: there is no option --reason; see everstep unpause --help"),
    ("retry a --secret", "everstep retry: --secret needs a value; see everstep retry --help"),
    (
        "retry a --secret NOPE_NOT_SET",
        "everstep retry: --secret: NOPE_NOT_SET is not set here; write --secret NOPE_NOT_SET=VALUE, or export it",
    ),
    ("retry a --secret =x", "everstep retry: --secret: the name is missing; write --secret NAME=VALUE"),
    ("exec", "everstep exec: JOB is missing; see everstep exec --help"),
    ("exec a", "everstep exec: the command is missing; write: everstep exec JOB -- COMMAND"),
    ("exec a --", "everstep exec: the command is missing; write: everstep exec JOB -- COMMAND"),
    ("exec a ls", "everstep exec: unexpected: ls; write everstep exec JOB -- COMMAND"),
    ("exec a --timeout -1 -- ls", "everstep exec: --timeout: expected 0 or more"),
    ("exec a --timeout soon -- ls", "everstep exec: --timeout: expected a number"),
    ("offers V100", "everstep offers: unexpected: V100; see everstep offers --help"),
    ("offers --gpus V100", "everstep offers: there is no option --gpus; did you mean --gpu?"),
    (
        "run",
        "everstep run: a task file or a command is missing; write everstep run task.yaml, or "
        "everstep run -- python train.py",
    ),
    ("run a.yaml b.yaml", "everstep run: takes one task file; unexpected: b.yaml"),
    ("run train.py", "everstep run: 'train.py' is no task file; write everstep run -- python train.py"),
    ("run missing.yaml", "missing.yaml: there is no such file"),
    ("run tsak.yaml", "tsak.yaml: there is no such file; did you mean 'task.yaml'?"),
    (
        "run python train.py",
        "everstep run: takes one task file; to run a command write everstep run -- python train.py",
    ),
    (
        "run task.yaml -- python train.py",
        "everstep run: takes a task file or a command, not both: 'task.yaml' stands before --",
    ),
    ("run --", "everstep run: the command is missing after --; write everstep run -- python train.py"),
    ("run task.yaml --nproc 0", "everstep run: --nproc: expected 1 or more"),
    ("run task.yaml --nproc two", "everstep run: --nproc: expected a whole number"),
    ("run task.yaml --num-nodes 0", "everstep run: --num-nodes: expected 1 or more"),
    (
        "run task.yaml --num-nodes 20000",
        "--num-nodes: num_nodes: expected a whole number of machines from 1 to 10000, found '20000'",
    ),
    ("run task.yaml --env", "everstep run: --env needs a value; see everstep run --help"),
    ("run task.yaml --env =1", "everstep run: --env: the name is missing; write --env NAME=VALUE"),
    ("run task.yaml --env 1A=2", "--env: '1A' is not the name of an environment variable; write --env NAME=VALUE"),
    (
        "run task.yaml --env NOPE_NOT_SET",
        "everstep run: --env: NOPE_NOT_SET is not set here; write --env NOPE_NOT_SET=VALUE, or export it",
    ),
    ("run task.yaml --env EVERSTEP_X=1", "--env: EVERSTEP_X: names that start with EVERSTEP_ are set by everstep"),
    (
        'run task.yaml --secret "a b=1"',
        "--secret: that is not the name of an environment variable; write --secret NAME=VALUE",
    ),
    ("run task.yaml --spot yes", "everstep run: takes one task file; unexpected: yes"),
    (
        "run task.yaml --gpus V100:x",
        "--gpus: resources.accelerators: expected a whole number of accelerators from 1 to 1024, found 'V100:x'",
    ),
    (
        "run task.yaml --keep-on-failure soon",
        "--keep-on-failure: recovery.keep_on_failure: expected a duration such as 90s, 10m, 1h30m or 2d, found 'soon'",
    ),
    ("run task.yaml --frob", "everstep run: there is no option --frob; see everstep run --help"),
    ("run task.yaml --dryrun", "everstep run: there is no option --dryrun; did you mean --dry-run?"),
    ("run task.yaml", "everstep run: asks before it spends, and there is no terminal to ask on; add -y"),
    ("server", "everstep server: the command is missing; see everstep server --help"),
    ("server frob", "everstep server: there is no command 'frob'; see everstep server --help"),
    ("server start --port high", "everstep server start: --port: expected a whole number"),
    ("server start --port 70000", "everstep server start: --port: expected 65535 or less"),
    ("server stop now", "everstep server stop: unexpected: now; see everstep server stop --help"),
    ("local", "everstep local: the command is missing; see everstep local --help"),
    ("local frob", "everstep local: there is no command 'frob'; see everstep local --help"),
    ("version --frob", "everstep version: there is no option --frob; see everstep version --help"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "task.yaml").write_text("run: true\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return tmp_path


@pytest.mark.parametrize(("line", "text"), CASES, ids=[line or "nothing" for line, _ in CASES])
def test_one_clear_line_and_nothing_changed(cli: Cli, client: FakeClient, folder: Path, line: str, text: str) -> None:
    done = cli(*shlex.split(line))
    assert (done.code, done.err, done.out) == (2, f"{text}\n", "")
    assert client.calls == []
    assert sorted(path.name for path in folder.iterdir()) == ["task.yaml"]


def test_every_problem_of_a_file_is_told_at_once(cli: Cli, client: FakeClient, folder: Path) -> None:
    (folder / "task.yaml").write_text("run: true\nnmae: x\nnum_nodes: none\n")
    done = cli("run", "task.yaml", "-y")
    assert done.code == 2
    assert [line.split(": ")[0] for line in done.err.splitlines()] == ["task.yaml:2", "task.yaml:3"]
    assert client.calls == []


def test_a_secret_is_never_shown(cli: Cli, client: FakeClient, folder: Path) -> None:
    for given in ("a b=hunter2", "=hunter2", "1X=hunter2"):
        done = cli("run", "task.yaml", "-y", "--secret", given)
        assert done.code == 2
        assert "hunter2" not in done.err + done.out
