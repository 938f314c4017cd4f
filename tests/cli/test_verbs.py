from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from everstep.client import results as r
from everstep.client.home import NoServer
from everstep.model.codec import to_dict
from everstep.model.errors import BadInput, Conflict, Problem
from everstep.model.task import Task
from tests.cli.conftest import NOW, RUNNING, Cli, FakeClient
from tests.cli.test_run import Terminal


@pytest.mark.parametrize(
    ("words", "call", "said"),
    [
        (("cancel", "aaaa", "--reason", "done"), ("cancel", "j-aaaa1111", "done"), "j-aaaa1111: releasing\n"),
        (("pause", "aaaa"), ("pause", "j-aaaa1111", ""), "j-aaaa1111: stopping\n"),
        (("unpause", "aaaa"), ("unpause", "j-aaaa1111"), "j-aaaa1111: acquiring\n"),
        (("retry", "aaaa", "--secret", "K=v"), ("retry", "j-aaaa1111", {"K": "v"}), "j-aaaa1111: acquiring\n"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_verbs(cli: Cli, client: FakeClient, words: tuple[str, ...], call: tuple[object, ...], said: str) -> None:
    done = cli(*words)
    assert (done.code, done.out) == (0, said)
    assert client.calls[-1] == call


def test_several_jobs_at_once_and_none_twice(cli: Cli, client: FakeClient) -> None:
    cli("cancel", "aaaa", "bbbb", "aaaa")
    assert [call[0] for call in client.called("cancel")] == ["j-aaaa1111", "j-bbbb2222"]


def test_a_typing_error_in_the_last_id_changes_nothing(cli: Cli, client: FakeClient) -> None:
    done = cli("cancel", "aaaa", "zzzz")
    assert (done.code, done.err) == (2, "everstep cancel: there is no job 'zzzz'\n")
    assert client.called("cancel") == []


def test_an_ambiguous_beginning_changes_nothing(cli: Cli, client: FakeClient) -> None:
    assert cli("pause", "j-").code == 2
    assert client.called("pause") == []


@pytest.mark.parametrize(("verb", "phase"), [("retry", "failed"), ("retry", "cancelled"), ("unpause", "paused")])
def test_who_leases_again_sees_the_plan_and_is_asked(
    cli: Cli, client: FakeClient, verb: str, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = replace(RUNNING, phase=phase, task=to_dict(Task(name="t", run="x")))
    client.found = {RUNNING.job: idle, "j-bbbb2222": replace(idle, job="j-bbbb2222")}
    done = cli(verb, "aaaa", "bbbb")
    assert (done.code, client.called(verb)) == (2, []), "nobody could answer"
    assert done.err == f"everstep {verb}: asks before it spends, and there is no terminal to ask on; add -y\n"
    done = cli(verb, "aaaa", "bbbb", "-y")
    assert (done.code, done.out) == (0, "j-aaaa1111: acquiring\nj-bbbb2222: acquiring\n")
    assert done.err.count("choice   box-a spot at $0.40/h") == 2
    for answer, code, asked in (("n\n", 1, 2), ("y\n", 0, 4)):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        done = cli(verb, "aaaa", "bbbb")
        assert done.err.count("Go on with these?") == 1
        assert (done.code, len(client.called(verb))) == (code, asked)


def test_a_job_that_cannot_be_planned_anew_may_go_on(
    cli: Cli, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(task: Task) -> r.PlanView:
        raise BadInput(Problem("task", "objective.deadline", "the deadline was 9 s ago"))

    monkeypatch.setattr(client, "plan", plan)
    client.found = {RUNNING.job: replace(RUNNING, phase="failed", task=to_dict(Task(name="t", run="x")))}
    done = cli("retry", "aaaa", "-y")
    assert (done.code, done.out) == (0, "j-aaaa1111: acquiring\n")
    assert done.err == "warning: j-aaaa1111: no plan: task: objective.deadline: the deadline was 9 s ago\n"


def test_restore_names_the_new_base(cli: Cli, client: FakeClient) -> None:
    assert cli("ckpt", "restore", "aaaa", "--step", "800").out == "aaaa: the next attempt starts from 1:800\n"
    assert client.called("restore") == [("aaaa", 800, None)]


@pytest.mark.parametrize("phase", ["succeeded", "failed", "cancelled", "paused"])
def test_a_restore_that_leases_machines_shows_the_plan_and_asks(
    cli: Cli, client: FakeClient, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = NOW if phase != "paused" else None
    client.found = {RUNNING.job: replace(RUNNING, phase=phase, ended_at=ended, task=to_dict(Task(name="t", run="x")))}
    words = ("ckpt", "restore", "aaaa", "--step", "800")
    done = cli(*words)
    assert (done.code, client.called("restore")) == (2, []), "nobody could answer"
    assert done.err.endswith("asks before it spends, and there is no terminal to ask on; add -y\n")
    done = cli(*words, "-y")
    assert (done.code, done.out) == (0, "aaaa: the next attempt starts from 1:800\n")
    assert "choice   box-a spot at $0.40/h" in done.err
    for said, code, asked in (("n\n", 1, 1), ("y\n", 0, 2)):
        monkeypatch.setattr("sys.stdin", Terminal(said))
        done = cli(*words)
        assert "Go on from step 800 with these?" in done.err
        assert (done.code, len(client.called("restore"))) == (code, asked)
    # What cannot be gone back to is refused by the server, without a plan.
    plans = len(client.called("plan"))
    cli("ckpt", "restore", "aaaa", "--step", "950")
    assert len(client.called("plan")) == plans


def test_logs_are_printed_as_they_are(cli: Cli, client: FakeClient) -> None:
    client.parts = [
        r.LogPart(attempt=1, node=0, rank="0", text="no newl"),
        r.LogPart(attempt=2, node=0, rank="0", text="ine\n"),
    ]
    done = cli("logs", "aaaa", "-f", "--rank", "1", "--attempt", "2", "--node", "0")
    assert done.out == "no newline\n"
    assert client.called("logs") == [("aaaa", {"follow": True, "rank": "1", "attempt": 2, "node": 0})]


def test_exec_quotes_words_and_gives_the_worst_code(cli: Cli, client: FakeClient) -> None:
    done = cli("exec", "aaaa", "--", "ls", "a b", "--all")
    assert client.called("exec") == [("aaaa", "ls 'a b' --all")]
    assert done.out == "i-1: a\ni-1: b\ni-2: c\n"
    assert done.code == 3


def test_exec_leaves_a_single_word_to_the_shell(cli: Cli, client: FakeClient) -> None:
    cli("exec", "aaaa", "--", "ls | wc -l")
    assert client.called("exec") == [("aaaa", "ls | wc -l")]


def test_exec_on_a_lost_machine_is_no_success(cli: Cli, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = r.ExecView(True, (r.ExecResult("i-1", None, "", lost=True),))
    monkeypatch.setattr(client, "exec_result", lambda job, exec_id: lost)
    done = cli("exec", "aaaa", "--", "true")
    assert (done.code, done.err) == (1, "everstep exec: i-1 was lost before it answered\n")


def test_exec_that_takes_too_long_says_so(cli: Cli, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        client, "exec_result", lambda job, exec_id: r.ExecView(False, (r.ExecResult("i-1", None, "x\n"),))
    )
    done = cli("exec", "aaaa", "--timeout", "0", "--", "sleep 9")
    assert (done.code, done.out) == (1, "x\n")
    assert done.err == "everstep exec: still running after 0 s; what came so far:\n"


def test_what_the_state_forbids_is_one_line_and_exit_1(cli: Cli, client: FakeClient) -> None:
    client.failure = Conflict("job j-aaaa1111 has ended\n(cancelled)")
    done = cli("cancel", "aaaa")
    assert (done.code, done.err) == (1, "everstep cancel: job j-aaaa1111 has ended (cancelled)\n")


def test_a_server_that_does_not_answer_is_one_line_and_exit_3(cli: Cli, client: FakeClient) -> None:
    client.failure = NoServer("the server at http://127.0.0.1:1 does not answer (connection refused)")
    done = cli("jobs")
    assert (done.code, done.out) == (3, "")
    assert done.err == "everstep jobs: the server at http://127.0.0.1:1 does not answer (connection refused)\n"


def test_no_server_at_all_says_how_to_start_one(cli: Cli) -> None:
    done = cli("jobs")
    assert done.code == 3
    assert done.err.endswith("start one with: everstep server start\n")
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("error", [RuntimeError("boom\nboom"), KeyError("x"), AssertionError()])
def test_a_bug_is_one_line_without_a_traceback(cli: Cli, client: FakeClient, error: Exception) -> None:
    client.failure = error
    done = cli("jobs")
    assert done.code == 1
    assert done.err.startswith(f"everstep jobs: internal error: {type(error).__name__}")
    assert len(done.err.splitlines()) == 1


def test_the_traceback_can_be_asked_for(cli: Cli, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERSTEP_DEBUG", "1")
    client.failure = RuntimeError("boom")
    assert "Traceback (most recent call last)" in cli("jobs").err


def test_ctrl_c_is_130(cli: Cli, client: FakeClient) -> None:
    client.failure = KeyboardInterrupt()  # type: ignore[assignment]
    assert cli("jobs").code == 130


# --- Outputs ---------------------------------------------------------------------------------------------------------


def test_outputs_are_copied_with_their_folders(cli: Cli, client: FakeClient, tmp_path: Path) -> None:
    done = cli("outputs", "aaaa", "--to", str(tmp_path / "results"))
    assert done.code == 0, done.err
    assert (tmp_path / "results/node-0/model/weights.pt").read_text() == "node-0/model/weights.pt"
    assert done.err == f"copied 2 files, 2.0 KiB, to {tmp_path / 'results'}\n"
    heading, *lines = [line.split() for line in done.out.splitlines()]
    assert heading == ["FILE", "SIZE", "COPIED", "TO"]
    names = ("node-0/model/weights.pt", "node-0/log")
    assert [(line[0], line[-1]) for line in lines] == [(name, str(tmp_path / "results" / name)) for name in names]


def test_outputs_that_cannot_be_written_are_one_line(cli: Cli, client: FakeClient, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = cli("outputs", "aaaa", "--to", str(tmp_path / "file"))
    assert (done.code, client.called("fetch_output")) == (1, [])
    assert done.err.endswith("file/node-0/model/weights.pt cannot be written: not a directory\n")


def test_outputs_are_only_listed_unless_asked_for(cli: Cli, client: FakeClient) -> None:
    assert cli("outputs", "aaaa").code == 0
    assert client.called("fetch_output") == []
