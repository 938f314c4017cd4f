from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everstep.cli import follow as following
from everstep.cli import link
from everstep.client import results as r
from everstep.client.home import NoServer
from everstep.model.task import SpotMode, Task
from tests.cli.conftest import NOW, OFFER, PLAN, RUNNING, Cli, FakeClient

ENDED = replace(RUNNING, phase="succeeded", exit_code=0, ended_at=RUNNING.since, step=5000)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "task.yaml").write_text("name: mine\nworkdir: code\nrun: python train.py\nresources: {image_id: x}\n")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def submitted(client: FakeClient) -> Task:
    [(task, _, _)] = client.called("submit")
    assert isinstance(task, Task)
    return task


def test_plan_upload_submit_detached(cli: Cli, client: FakeClient, folder: Path) -> None:
    done = cli("run", "task.yaml", "-y", "-d")
    assert done.code == 0, done.err
    assert done.out == "j-aaaa1111\n"
    assert "spot: auto" in done.err
    assert "choice      box-a spot at $0.40/h" in done.err
    assert "nobody, as far as is to be seen: train.py imports no torch" in done.err
    assert "$0.80/h in all" in done.err
    for warning in ("warning: be careful", "warning: task.yaml:4: resources.image_id"):
        assert warning in done.err
    assert f"uploading {folder / 'code'}: 1 file, " in done.err
    assert "follow it with: everstep logs -f j-aaaa1111" in done.err
    [(archive,)] = client.called("upload")
    assert submitted(client).workdir_digest == archive.removesuffix(".tar.gz") != ""


def test_the_plan_says_who_will_save_and_resume(cli: Cli, client: FakeClient, folder: Path) -> None:
    (folder / "code" / "train.py").write_text("import torch\n")
    shown = " ".join(cli("run", "--dry-run", "--workdir", "code", "--", "python", "train.py").out.split())
    assert "resumed by everstep, from outside: train.py stays as it is" in shown


@pytest.mark.parametrize(
    ("command", "brings"),
    [
        ("python train.py --lr 1", "train.py"),
        ("torchrun --nproc-per-node 2 sub/other.py", "sub/other.py"),
        ("python -m sub.other", "sub/other.py"),
        ("python -m sub", "sub/__main__.py"),
        ("bash missing.sh", ""),
        ("sleep 5", ""),
    ],
)
def test_a_command_that_names_a_file_here_brings_this_folder(
    cli: Cli, client: FakeClient, folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, brings: str
) -> None:
    here = folder / "code"
    monkeypatch.chdir(here)
    (here / "sub").mkdir()
    for name in ("train.py", "other.py", "__main__.py"):
        (here / "sub" / name).write_text("print(2)\n")
    for words in (command.split(), [command]):
        client.calls.clear()
        done = cli("run", "-y", "-d", "--", *words)
        assert done.code == 0, done.err
        told = f"{here} is brought along, as the command names {brings}; another folder: --workdir"
        assert (told in done.err) == bool(brings)
        assert bool(submitted(client).workdir_digest) == bool(brings)
    client.calls.clear()
    assert cli("run", "-y", "-d", "--workdir", "sub", "--", *command.split()).code == 0
    [(archive,)] = client.called("upload")
    assert submitted(client).workdir_digest == archive.removesuffix(".tar.gz")


@pytest.mark.parametrize(
    "command", ["python trian.py --lr 1", "python3.11 -u trian.py", "/usr/bin/python trian.py && echo done"]
)
def test_a_script_that_is_nowhere_is_missed_before_anything_is_leased(
    cli: Cli, client: FakeClient, folder: Path, command: str
) -> None:
    (folder / "train.py").write_text("print(1)\n")
    text = f"everstep run: there is no file trian.py in {folder}; did you mean 'train.py'?\n"
    for words in (command.split(), [command]):
        done = cli("run", "-y", "-d", "--", *words)
        assert (done.code, done.err) == (2, text)
    done = cli("run", "-y", "-d", "--workdir", "code", "--", "python", "sub/gone.py")
    where = f"there is no file sub/gone.py in {folder / 'code'}; go to its folder, or give that with --workdir\n"
    assert (done.code, done.err) == (2, f"everstep run: {where}")
    assert client.calls == []


@pytest.mark.parametrize(
    "command",
    ["python -c gone.py", "python -m gone", "python $SCRIPT.py", "python /opt/gone.py", "cd sub && python gone.py"],
)
def test_a_script_that_may_be_on_the_machines_is_not_missed(
    cli: Cli, client: FakeClient, folder: Path, command: str
) -> None:
    assert cli("run", "-y", "-d", "--", command).code == 0


def test_what_to_bring_home(cli: Cli, client: FakeClient, folder: Path) -> None:
    words = ("--bring-home", "model.pt", "--bring-home", "logs")
    assert cli("run", "-y", "-d", *words, "--", "true").code == 0
    assert submitted(client).outputs == ("model.pt", "logs")


def test_a_home_folder_is_not_brought_along(
    cli: Cli, client: FakeClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder / "code"))
    monkeypatch.chdir(folder / "code")
    done = cli("run", "-y", "-d", "--", "python", "train.py")
    assert "warning: train.py is not brought along" in done.err
    assert submitted(client).workdir_digest == ""


def test_the_plan_counts_machines_of_one_offer(cli: Cli, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(OFFER, zone="box-b")
    monkeypatch.setattr(client, "plan", lambda task: replace(PLAN, offers=(OFFER, OFFER, other)))
    lines = cli("run", "--dry-run", "--num-nodes", "3", "--", "true").out.splitlines()[:3]
    assert [line.split()[:3:2] for line in lines] == [["MACHINES", "ZONE"], ["2", "box-a"], ["1", "box-b"]]


def test_a_dry_run_uploads_and_submits_nothing(cli: Cli, client: FakeClient, folder: Path) -> None:
    assert cli("run", "task.yaml", "--dry-run").code == 0
    assert {call[0] for call in client.calls} == {"plan"}


@pytest.mark.parametrize("words", [("--dry-run",), ("-y", "-d")])
def test_a_folder_that_is_too_large_is_refused_by_a_dry_run_too(
    cli: Cli, client: FakeClient, folder: Path, words: tuple[str, ...]
) -> None:
    with (folder / "code" / "weights.bin").open("wb") as file:
        file.truncate(3 << 30)  # a hole: it takes no room
    done = cli("run", "task.yaml", *words)
    assert done.code == 2
    assert "code: workdir: has 3.0 GiB, at most 100.0 MiB; the largest files are weights.bin (3.0 GiB)" in done.err
    assert client.called("upload") == client.called("submit") == []


@pytest.mark.parametrize("words", [("--dry-run",), ("-y", "-d")])
def test_a_task_that_nothing_on_sale_fits_is_refused(
    cli: Cli, client: FakeClient, folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    text = "nothing on sale has H100:8; the nearest is m1 (V100:1, 8 CPUs, 61 GiB); on sale from local: m1 (V100:1)"
    monkeypatch.setattr(client, "plan", lambda task: replace(PLAN, offers=(), choice={}, wait="w", unsold=text))
    done = cli("run", "task.yaml", *words)
    warning, refusal = done.err.splitlines()
    assert warning.startswith("warning: task.yaml:4: resources.image_id: ")
    assert (done.code, refusal) == (2, f"task.yaml: resources: {text}")
    assert client.calls == []


def test_flags_win_over_the_file(cli: Cli, client: FakeClient, folder: Path) -> None:
    words = "--name other --num-nodes 3 --nproc 2 --no-spot --gpus A100:8 --keep-on-failure 60m --project lab"
    assert cli("run", "task.yaml", "-y", "-d", *words.split()).code == 0
    task, group = submitted(client), submitted(client).gang.groups[0]
    assert (task.name, group.count, group.ranks_per_node, task.spot) == ("other", 3, 2, SpotMode.FALSE)
    assert (group.machine.accelerators[0].name, group.machine.accelerators[0].count) == ("A100", 8)
    assert task.recovery.keep_on_failure_s == 3600
    assert client.called("submit")[0][2] == "lab"


def test_a_command_is_run_once_per_node_as_typed(cli: Cli, client: FakeClient, folder: Path) -> None:
    (folder / "my train.py").write_text("print(1)\n")
    assert cli("run", "-y", "-d", "--", "python", "my train.py", "--name", "x").code == 0
    task = submitted(client)
    assert (task.run, task.argv, task.name) == ("python 'my train.py' --name x", (), "my-train")


def test_a_command_with_nproc_is_run_once_per_rank_without_a_shell(cli: Cli, client: FakeClient, folder: Path) -> None:
    (folder / "a b.py").write_text("print(1)\n")
    assert cli("run", "-y", "-d", "--nproc", "2", "--", "python", "a b.py", "$X").code == 0
    task = submitted(client)
    assert (task.run, task.argv, task.gang.groups[0].ranks_per_node) == ("", ("python", "a b.py", "$X"), 2)


def test_variables_and_secrets(cli: Cli, client: FakeClient, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_HERE", "hunter2")
    done = cli("run", "-y", "-d", "--env", "A=1", "-e", "B=x=y", "--secret", "TOKEN_HERE", "--", "true")
    assert done.code == 0, done.err
    task, secrets, _ = client.called("submit")[0]
    assert task.envs == {"A": "1", "B": "x=y"}
    assert (task.secret_names, secrets) == (("TOKEN_HERE",), {"TOKEN_HERE": "hunter2"})
    assert "hunter2" not in repr(task) + done.out + done.err


@pytest.mark.parametrize(("answer", "asked"), [("n\n", 0), ("y\n", 1)])
def test_it_asks_before_it_spends(
    cli: Cli, client: FakeClient, folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str, asked: int
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    done = cli("run", "task.yaml", "-d")
    assert (done.code, len(client.called("submit"))) == (1 - asked, asked)
    assert "Start it?" in done.err


# --- Following -------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_POLL_S", 0.001)


@pytest.mark.parametrize(
    ("phase", "job_code", "code"),
    [("succeeded", 0, 0), ("failed", 7, 7), ("failed", None, 1), ("cancelled", None, 1), ("failed", 0, 1)],
)
def test_the_exit_code_is_the_jobs(
    cli: Cli, client: FakeClient, folder: Path, phase: str, job_code: int | None, code: int
) -> None:
    client.endings = iter([RUNNING, *[replace(ENDED, phase=phase, exit_code=job_code, why="no luck")] * 9999])
    client.parts = [r.LogPart(attempt=1, node=0, rank="0", text="hello\n")]
    done = cli("run", "task.yaml", "-y")
    assert done.code == code
    assert "hello\n" in done.out
    assert f"j-aaaa1111 {phase}, step 5000/5000, cost $0.0123, survived 1 preemption" in done.err
    assert ("no luck" in done.err) == (phase != "succeeded")


def test_kept_machines_are_told_and_not_waited_for(
    cli: Cli, client: FakeClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_KEPT_WORDS_S", 0.01)
    kept = replace(RUNNING, phase="releasing", exit_code=9, why="failed: rank 0 exit code 9", keep_until=NOW + 3600)
    client.endings = iter([RUNNING, *[kept] * 9999])
    done = cli("run", "task.yaml", "-y")
    assert done.code == 9
    assert "j-aaaa1111 failed, step 1200/5000" in done.err
    assert re.search(r"kept until \d\d:46:40, billed at \$0\.80/h\. Look around: everstep exec j-aaaa1111", done.err)
    assert client.called("cancel") == []


def test_plain_output_tells_each_change_once(cli: Cli, client: FakeClient, folder: Path) -> None:
    waiting = replace(RUNNING, phase="acquiring", wait="capacity")
    client.endings = iter([waiting, waiting, RUNNING, RUNNING, *[ENDED] * 9999])
    err = cli("run", "task.yaml", "-y").err
    assert err.count("waits for capacity") == 1
    assert err.count("running  step 1200/5000  loss 1.832  2/2 machines  spot $0.80/h  $0.0123 so far") == 1


def test_the_cost_steps_back_only_in_the_final_bill(cli: Cli, client: FakeClient, folder: Path) -> None:
    costs = [0.5, 0.68, 0.67]
    views = [replace(RUNNING, phase=f"running {n}", cost_usd=cost) for n, cost in enumerate(costs)]
    client.endings = iter([*views, *[replace(ENDED, cost_usd=0.6)] * 9999])
    err = cli("run", "task.yaml", "-y").err
    assert re.findall(r"\$(\S+) so far", err) == ["0.50", "0.68", "0.68", "0.60"]
    assert "cost $0.60" in err


def test_a_restarting_server_does_not_end_it(
    cli: Cli, client: FakeClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: Iterator[Any] = iter([NoServer("away"), RUNNING, NoServer("away"), *[ENDED] * 9999])

    def status(job: str) -> r.JobDetail:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, r.JobDetail)
        return answer

    monkeypatch.setattr(client, "status", status)
    assert cli("run", "task.yaml", "-y").code == 0


def test_it_says_how_to_get_the_outputs(cli: Cli, client: FakeClient, folder: Path) -> None:
    client.endings = iter([replace(ENDED, task={"outputs": ["final.pt"]})] * 9999)
    assert "everstep outputs j-aaaa1111 --to DIR" in cli("run", "task.yaml", "-y").err


def test_lost_output_is_said_and_the_job_still_followed(
    cli: Cli, client: FakeClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def logs(job: str, **filters: Any) -> Iterator[r.LogPart]:
        raise NoServer("gone")
        yield

    client.endings = iter([RUNNING, *[ENDED] * 9999])
    monkeypatch.setattr(client, "logs", logs)
    done = cli("run", "task.yaml", "-y")
    assert done.code == 0
    assert "[everstep: no more output here: gone; see: everstep logs -f j-aaaa1111]" in done.out


def test_ctrl_c_leaves_the_job_and_says_how_to_come_back(
    cli: Cli, client: FakeClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def status(job: str) -> r.JobDetail:
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "status", status)
    done = cli("run", "task.yaml", "-y")
    assert done.code == 130
    assert (
        "left j-aaaa1111 running. Come back: everstep logs -f j-aaaa1111   End it: everstep cancel j-aaaa1111"
        in done.err
    )
    assert client.called("cancel") == []


def test_on_a_terminal_there_is_one_live_line(
    cli: Cli, client: FakeClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    client.endings = iter([RUNNING, *[ENDED] * 9999])
    client.parts = [r.LogPart(attempt=1, node=0, rank="0", text="[red] is no markup\n")]
    assert cli("run", "task.yaml", "-y").code == 0
    assert "[red] is no markup" in terminal.getvalue()
    assert "step 5000/5000" in terminal.getvalue()


def test_run_starts_a_server_and_other_commands_do_not(
    cli: Cli, client: FakeClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[str] = []

    def started() -> FakeClient:
        starts.append("server")
        return client

    monkeypatch.setattr(link, "started", started)
    cli("run", "task.yaml", "-y", "-d")
    cli("jobs")
    assert starts == ["server"]
