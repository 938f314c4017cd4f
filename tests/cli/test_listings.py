from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import NOW, OFFER, RUNNING, Cli, FakeClient

LISTINGS = {
    "jobs": ("jobs",),
    "status": ("status", "aaaa"),
    "events": ("events", "aaaa"),
    "why": ("why", "aaaa"),
    "cost": ("cost",),
    "cost of a job": ("cost", "aaaa"),
    "outputs": ("outputs", "aaaa"),
    "ckpt ls": ("ckpt", "ls", "aaaa"),
    "offers": ("offers",),
    "plan": ("run", "--dry-run", "--", "true"),
    "version": ("version",),
}


@pytest.mark.parametrize("words", LISTINGS.values(), ids=LISTINGS)
def test_every_listing_says_the_same_in_json_and_yaml(cli: Cli, client: FakeClient, words: tuple[str, ...]) -> None:
    cut = words.index("--") if "--" in words else len(words)

    def form(name: str) -> str:
        done = cli(*words[:cut], "-o", name, *words[cut:])
        assert done.code == 0, done.err
        return done.out

    as_json = json.loads(form("json"))
    assert as_json == yaml.safe_load(form("yaml"))
    assert as_json


@pytest.mark.parametrize("words", LISTINGS.values(), ids=LISTINGS)
def test_every_listing_is_a_table_unless_asked_otherwise(cli: Cli, client: FakeClient, words: tuple[str, ...]) -> None:
    done = cli(*words)
    assert (done.code, done.out[:1] not in "[{") == (0, True)
    assert "\x1b" not in done.out, "no colours into a pipe"


def test_jobs_shows_progress_price_and_what_a_job_waits_for(cli: Cli, client: FakeClient) -> None:
    head, running, waiting = cli("jobs").out.splitlines()
    assert head.split() == [
        "JOB",
        "NAME",
        "PHASE",
        "STEP",
        "NODES",
        "MARKET",
        "$/H",
        "COST",
        "RECOVERIES",
        "SUBMITTED",
        "WAITS",
        "FOR",
    ]
    assert running.split()[:8] == ["j-aaaa1111", "charlm", "running", "1200/5000", "2/2", "spot", "$0.80/h", "$0.0123"]
    assert waiting.startswith("j-bbbb2222  sweep [red]")
    assert waiting.endswith("no capacity in 6 pools, next try in 40 s")


def test_jobs_passes_its_options_on(cli: Cli, client: FakeClient) -> None:
    cli("jobs", "--all", "-n", "1")
    assert client.called("jobs") == [(True, 1)]


def test_no_jobs_is_said_in_words_and_as_an_empty_list(cli: Cli, client: FakeClient) -> None:
    client.found = {}
    assert cli("jobs").out == "no live jobs (everstep jobs --all lists those that ended)\n"
    assert cli("jobs", "-a").out == "no jobs\n"
    assert json.loads(cli("jobs", "-o", "json").out) == []


def test_status_tells_the_story_of_a_job(cli: Cli, client: FakeClient) -> None:
    out = cli("status", RUNNING.job).out
    for words in (
        "j-aaaa1111  charlm",
        "running since",
        "metrics   loss 1.832",
        "survived  1 preemption, 1 recovery\n",
        "i-1 was taken back",
        "1:800",
        "on-demand",
        "last checkpoint: step 1100",
    ):
        assert words in out
    assert "exit code" not in out, "a running job has none"


def test_an_ended_job_costs_what_it_cost_unless_its_machines_are_kept(cli: Cli, client: FakeClient) -> None:
    assert " so far, $" in cli("status", RUNNING.job).out
    ended = dataclasses.replace(RUNNING, phase="failed", ended_at=NOW, cost_usd=2.5, price_usd_per_h=0.0)
    client.found = {RUNNING.job: ended}
    out = cli("status", RUNNING.job).out
    assert "  $2.50\n" in out
    assert "so far" not in out
    client.found = {RUNNING.job: dataclasses.replace(ended, price_usd_per_h=0.95, keep_until=NOW + 60)}
    assert "  $2.50 so far, $0.95/h now\n" in cli("status", RUNNING.job).out


def test_cost_of_a_job_shows_lines_savings_and_only_real_overhead(cli: Cli, client: FakeClient) -> None:
    out = cli("cost", "aaaa").out
    assert "0.5 h" in out
    assert "reclaimed" in out
    assert "saved       $0.40 (67 %)" in out
    assert "overhead    boot 12 s\n" in out


def test_why_is_told_oldest_first(cli: Cli, client: FakeClient) -> None:
    out = cli("why", "aaaa", "-n", "2").out
    assert out.index("launch 0.0") < out.index("waits for a machine to boot")
    assert "looked at seed=7" in out
    assert client.called("why") == [("aaaa", 2)]


def test_events_end_with_how_the_job_ended(cli: Cli, client: FakeClient) -> None:
    assert "the job" not in cli("events", "aaaa").out
    for arguments in (("events", "aaaa"), ("events", "aaaa", "-f")):
        assert "  job submitted  " in cli(*arguments).out
    ended = {"phase": "failed", "exit_code": 41, "why": "RuntimeError: x\nmore", "ended_at": NOW}
    client.found = {RUNNING.job: dataclasses.replace(RUNNING, **ended)}
    for arguments in (("events", "aaaa"), ("events", "aaaa", "-f")):
        assert cli(*arguments).out.splitlines()[-1].endswith("  the job failed with exit code 41: RuntimeError: x ...")


def test_events_can_be_followed_one_json_object_a_line(cli: Cli, client: FakeClient) -> None:
    done = cli("events", "aaaa", "-f", "--after", "5", "-o", "json")
    assert [json.loads(line)["kind"] for line in done.out.splitlines()] == ["JobSubmitted", "Decided"]
    assert client.called("events") == [("aaaa", 5, True)]


def test_followed_events_in_yaml_are_a_stream_of_documents(cli: Cli, client: FakeClient) -> None:
    documents = list(yaml.safe_load_all(cli("events", "aaaa", "-f", "-o", "yaml").out))
    assert [document["version"] for document in documents] == [1, 2]


def test_checkpoints_say_what_is_durable_superseded_and_deleted(cli: Cli, client: FakeClient) -> None:
    _, first, second, third = cli("ckpt", "ls", "aaaa").out.splitlines()
    assert "2.0 KiB" in first
    assert first.endswith("yes      yes")
    assert second.endswith("no       no: its attempt was superseded")
    assert third.endswith("yes      deleted (keep 3)")


def test_offers_pass_the_accelerator_on(cli: Cli, client: FakeClient) -> None:
    assert "V100:1" in cli("offers", "--gpu", "V100").out
    assert "V100:1" in cli("offers", "--gpu", "V100", "--free").out
    assert client.called("offers") == [("V100", True), ("V100", False)]


def test_offers_that_are_sold_out_are_shown_and_dim(
    cli: Cli, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sold_out = dataclasses.replace(OFFER, zone="box-dry", available=0)
    monkeypatch.setattr(client, "offers", lambda **_: [OFFER, sold_out])
    _, there, dry = cli("offers").out.splitlines()
    assert [line.split()[-4] for line in (there, dry)] == ["3", "0"]
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    assert cli("offers").code == 0
    _, there, dry = terminal.getvalue().splitlines()
    assert ("\x1b[2m" in there, "\x1b[2m" in dry) == (False, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no offers"),
        (("--gpu", "X9"), "nobody sells a machine with X9"),
        (("--free",), "nothing is free now (everstep offers shows what is sold out)"),
    ],
)
def test_no_offers_says_which(
    cli: Cli, client: FakeClient, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr(client, "offers", lambda **_: [])
    assert cli("offers", *words).out == said + "\n"


def test_on_a_terminal_tables_are_drawn_and_names_are_no_markup(
    cli: Cli, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    assert cli("jobs").code == 0
    assert "\x1b[" in terminal.getvalue()
    assert "sweep [red]" in terminal.getvalue()


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m everstep --help | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "EVERSTEP_HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
