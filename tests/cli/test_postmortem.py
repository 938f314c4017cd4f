from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from everstep.client import results as r
from tests.cli.conftest import NOW, RUNNING, WAITING, Cli, FakeClient


def failed_attempt(no: int, **more: Any) -> r.AttemptView:
    values = {"phase": "ended", "begun_at": NOW, "ended_at": NOW, "cause": "user_error", "rc": 1, **more}
    return r.AttemptView(attempt=no, **values)


TRACEBACK = "Traceback (most recent call last):\n  File 'train.py'\nValueError: [no] markup"
FAILED = replace(
    RUNNING,
    phase="failed",
    exit_code=1,
    ended_at=NOW,
    why="rank 1 failed",
    attempts=(
        failed_attempt(1, tail="an older failure", hint="failed: rank 0 exit code 1"),
        failed_attempt(2, tail=TRACEBACK, hint="failed: rank 1 exit code 1"),
        failed_attempt(3, tail="connection closed by peer", cause="preemption", hint="failed: rank 0 signal 6"),
    ),
)


def test_status_of_a_failed_job_ends_with_the_last_lines_of_the_rank_that_failed(cli: Cli, client: FakeClient) -> None:
    client.found = {FAILED.job: FAILED}
    out = cli("status", "aaaa").out
    assert out.endswith(
        "\nlast lines of rank 1 of attempt 2:\n"
        "  Traceback (most recent call last):\n    File 'train.py'\n  ValueError: [no] markup\n"
        "all of it: everstep logs j-aaaa1111 --attempt 2 --rank 1\n"
    )


def test_a_failed_setup_has_last_lines_too_and_they_stay_out_of_the_tables(cli: Cli, client: FakeClient) -> None:
    machine = replace(RUNNING.machines[1], failure="setup exited with 7: no such\nwheel")
    why = "i-2: setup exited with 7: no such\nwheel"
    client.found = {FAILED.job: replace(FAILED, attempts=(), machines=(machine,), why=why)}
    out = cli("status", "aaaa").out
    assert "why        i-2: setup exited with 7: no such ...\n" in out
    assert out.count("wheel") == 1
    assert out.endswith(
        "\nlast lines of setup on i-2:\n  no such\n  wheel\nall of it: everstep logs j-aaaa1111 --rank setup\n"
    )


@pytest.mark.parametrize("phase", ["succeeded", "running", "cancelled"])
def test_a_job_that_did_not_fail_has_no_last_lines(cli: Cli, client: FakeClient, phase: str) -> None:
    client.found = {FAILED.job: replace(FAILED, phase=phase)}
    assert "last lines" not in cli("status", "aaaa").out


def test_only_the_end_of_long_last_words_is_shown(cli: Cli, client: FakeClient) -> None:
    tail = "\n".join(f"line {n}." for n in range(100))
    client.found = {FAILED.job: replace(FAILED, attempts=(failed_attempt(1, tail=tail),))}
    out = cli("status", "aaaa").out
    assert "line 99." in out
    assert "line 79." not in out
    assert "all of it: everstep logs j-aaaa1111 --attempt 1\n" in out


@pytest.mark.parametrize(
    ("words", "detail", "said"),
    [
        ((), WAITING, "has not started yet: acquiring, waits for no capacity in 6 pools, next try in 40 s"),
        ((), replace(WAITING, wait=""), "has not started yet: acquiring"),
        ((), replace(WAITING, phase="failed", why="no luck\nat all"), "never started, it failed: no luck ..."),
        ((), replace(WAITING, phase="cancelled", why="by ann"), "never started, it was cancelled: by ann"),
        ((), replace(RUNNING, job=WAITING.job), "wrote no output yet"),
        ((), replace(RUNNING, job=WAITING.job, phase="succeeded"), "wrote no output"),
        (("--rank", "1"), replace(RUNNING, job=WAITING.job), "wrote no such output yet"),
    ],
)
def test_logs_without_a_line_say_why(
    cli: Cli, client: FakeClient, words: tuple[str, ...], detail: r.JobDetail, said: str
) -> None:
    client.found = {detail.job: detail}
    done = cli("logs", "bbbb", *words)
    assert (done.code, done.out, done.err) == (0, "", f"j-bbbb2222 {said}\n")


RANKS = {"gang": {"groups": [{"count": 2, "ranks_per_node": 4}]}}


@pytest.mark.parametrize(
    ("words", "task", "said"),
    [
        (("--rank", "8"), RANKS, "--rank: j-aaaa1111 has no rank 8; there are ranks 0 to 7"),
        (("--rank", "1"), {"gang": {"groups": [{"count": 1}]}}, "--rank: j-aaaa1111 has no rank 1; there is rank 0"),
        (("--node", "2"), RANKS, "--node: j-aaaa1111 has no node 2; there are nodes 0 to 1"),
        (("--attempt", "7"), RANKS, "--attempt: j-aaaa1111 has no attempt 7; there are attempts 1 to 2"),
        (("-f", "--rank", "8"), RANKS, "--rank: j-aaaa1111 has no rank 8; there are ranks 0 to 7"),
    ],
)
def test_what_the_job_does_not_have_is_bad_input(
    cli: Cli, client: FakeClient, words: tuple[str, ...], task: dict[str, Any], said: str
) -> None:
    client.found = {RUNNING.job: replace(RUNNING, task=task)}
    done = cli("logs", "aaaa", *words)
    assert (done.code, done.out, done.err) == (2, "", f"everstep logs: {said}\n")
    assert client.called("logs") == []


def test_a_later_attempt_may_be_waited_for(cli: Cli, client: FakeClient) -> None:
    assert cli("logs", "aaaa", "-f", "--attempt", "3").code == 0
    client.found = {RUNNING.job: replace(RUNNING, phase="succeeded")}
    assert cli("logs", "aaaa", "-f", "--attempt", "3").code == 2


def test_who_follows_a_job_that_waits_is_told_so_at_once(cli: Cli, client: FakeClient) -> None:
    client.parts = [r.LogPart(attempt=1, node=0, rank="0", text="hello\n")]
    done = cli("logs", "bbbb", "-f")
    assert (done.code, done.out) == (0, "hello\n")
    assert done.err.startswith("j-bbbb2222 has not started yet: acquiring, waits for")
    assert [call[0] for call in client.calls] == ["status", "logs"]
