"""What can be wrong with a server in the background, each told in one clear line."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from everstep.cli import link
from everstep.cli.local import left_behind
from everstep.client import launcher
from everstep.client.api import Client
from everstep.client.home import HOME_VARIABLE, Home, NoServer, UnsafeFile, default_home
from everstep.client.launcher import ServerFailed
from everstep.client.wire import Unavailable
from everstep.model.errors import BadInput, EverstepError
from everstep.server import files as files_module
from tests.cli.conftest import PLAN, Cli, cli  # noqa: F401 - a fixture
from tests.server import fakes
from tests.server.fakes import Rig


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.path.mkdir()
    token(made)
    return made


@pytest.fixture
def no_server_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_spawn", lambda *_: pytest.fail("a server was started"))


def token(home: Home, mode: int = 0o600) -> None:
    home.token_file.write_text("t\n")
    home.token_file.chmod(mode)


def announced(home: Home, url: str, pid: int = 2**22 + 1) -> None:
    home.server_file.write_text(
        json.dumps({"url": url, "pid": pid, "started_at": 0.0, "deployment": "d", "version": "v"})
    )


@pytest.fixture
def locked(home: Home) -> Iterator[IO[str]]:
    """The lock as a living server holds it."""
    with home.lock_file.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def one_line(done: Any) -> str:
    assert done.out == ""
    assert len(done.err.splitlines()) == 1, done.err
    return str(done.err)


# --- Looking at a server that is gone ---------------------------------------------------------------------------------


def test_the_file_of_a_killed_server_is_known_for_what_it_is(cli: Cli, home: Home) -> None:  # noqa: F811
    url = f"http://127.0.0.1:{closed_port()}"
    announced(home, url)
    done = cli("jobs")
    assert done.code == 3
    assert one_line(done) == (
        f"everstep jobs: the server at {url} does not answer ([Errno 111] Connection refused); "
        "it was killed: start it again with: everstep server start (jobs and machines go on)\n"
    )


def test_a_server_that_holds_the_lock_is_starting_or_stopping(home: Home, locked: IO[str]) -> None:
    announced(home, f"http://127.0.0.1:{closed_port()}")
    with pytest.raises(NoServer, match=r"it is starting or stopping$"):
        Client(home=home).jobs()


def test_a_server_named_by_url_gets_no_advice_about_this_folder(home: Home) -> None:
    with pytest.raises(NoServer, match=r"refused\)$"):
        Client(f"http://127.0.0.1:{closed_port()}", home=home).jobs()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": 1}'])
def test_a_torn_file_is_no_server(cli: Cli, home: Home, text: str) -> None:  # noqa: F811
    home.server_file.write_text(text)
    done = cli("jobs")
    assert done.code == 3
    assert "no server runs for" in one_line(done)


# --- everstep run -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_server_is_started", "locked")
def test_run_gives_up_on_a_server_that_does_not_answer(
    cli: Cli,  # noqa: F811
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    defaults = launcher.start_background.__kwdefaults__ or {}
    monkeypatch.setattr(launcher.start_background, "__kwdefaults__", {**defaults, "timeout_s": 0.05})
    announced(home, f"http://127.0.0.1:{closed_port()}", pid=77)
    done = cli("run", "-y", "--", "true")
    assert done.code == 1
    line = one_line(done)
    assert line.startswith("everstep run: the server (pid 77) runs but does not answer: ")
    assert line.endswith(f"its log is {home.log_file}\n")


@pytest.mark.usefixtures("no_server_is_started")
@pytest.mark.parametrize("words", [("run", "-y", "--", "true"), ("jobs",)])
def test_a_token_that_others_can_read(cli: Cli, home: Home, words: tuple[str, ...]) -> None:  # noqa: F811
    token(home, 0o644)
    announced(home, "http://127.0.0.1:9")
    done = cli(*words)
    assert done.code == 1
    fix = f"make it private with: chmod 600 {home.token_file}"
    assert one_line(done) == f"everstep {words[0]}: {home.token_file} can be read by others (mode 0644); {fix}\n"


@pytest.mark.usefixtures("no_server_is_started", "locked")
def test_a_token_that_cannot_be_used_is_not_waited_for(home: Home) -> None:
    token(home, 0o640)
    with pytest.raises(UnsafeFile):
        launcher.start_background(home, timeout_s=3600.0)


@pytest.mark.usefixtures("no_server_is_started")
@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_folder_that_cannot_be_written(
    cli: Cli,  # noqa: F811
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    error: int,
) -> None:
    def refuse(path: Any, *_: Any, **__: Any) -> int:
        raise OSError(error, os.strerror(error), str(path))

    monkeypatch.setattr("everstep.client.launcher.os.open", refuse)
    done = cli("run", "-y", "--", "true")
    monkeypatch.undo()
    assert done.code == 1
    why = os.strerror(error).lower()
    assert one_line(done) == (
        f"everstep run: the folder {home.path} cannot be used: {why}; EVERSTEP_HOME names another\n"
    )


@pytest.mark.usefixtures("no_server_is_started")
def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ServerFailed, match=r"cannot be used: (file exists|not a directory); EVERSTEP_HOME names"):
            launcher.start_background(Home(path))


def test_a_server_that_was_told_something_wrong_says_what(cli: Cli, home: Home) -> None:  # noqa: F811
    nowhere = home.path / "nowhere.yaml"
    done = cli("server", "start", "--cloud", str(nowhere))
    assert done.code == 2
    assert one_line(done) == (
        f"the server did not start: --cloud: there is no file {nowhere}; its log is {home.log_file}\n"
    )
    home.config_file.write_text("port: seven\n")
    done = cli("run", "-y", "--", "true")
    assert done.code == 2
    fault = f"{home.config_file}: port: expected a whole number"
    assert one_line(done) == f"the server did not start: {fault}; its log is {home.log_file}\n"


def test_a_home_that_is_a_file_is_named_with_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv(HOME_VARIABLE, str(file))
    with pytest.raises(BadInput, match=f"{HOME_VARIABLE}: {file} is not a folder"):
        default_home()


def test_a_server_that_ends_at_once_says_its_last_words(home: Home) -> None:
    home.journal_file.mkdir()
    with pytest.raises(ServerFailed) as caught:
        launcher.start_background(home)
    assert str(caught.value).startswith("the server did not start (exit code 1): "), str(caught.value)
    assert str(caught.value).endswith(f"; its log is {home.log_file}")
    assert left_behind(home) == "", "a cloud in a box was started for a server that cannot serve"


@pytest.mark.usefixtures("no_server_is_started", "locked")
def test_who_waits_is_told_once_what_for_and_in_the_end_what_the_server_said_last(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "SLOW_S", 0.0)
    home.log_file.write_text("serving\neverstep server: the disk is slow\n")
    told: list[str] = []
    with pytest.raises(ServerFailed) as caught:
        launcher.start_background(home, timeout_s=0.2, on_slow=told.append)
    waits = f"a server for {home.path} is starting or stopping"
    assert told == [f"still waiting, at most 0 s: {waits}; its log is {home.log_file}"]
    assert str(caught.value) == f"{waits} (waited 0 s): the disk is slow; its log is {home.log_file}"


@pytest.mark.parametrize("terminal", [True, False])
def test_only_a_terminal_is_told_what_a_command_waits_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    link.tell_slow("still waiting")
    assert capsys.readouterr() == ("", "still waiting\n" if terminal else "")


# --- Uploads ----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def archive(tmp_path: Path) -> Path:
    made = tmp_path / "w.tar.gz"
    made.write_bytes(b"\x1f\x8b" + os.urandom(8 << 20))
    return made


async def uploading(rig: Rig, archive: Path) -> Exception:
    def inside(url: str) -> Exception:
        with Client(url, fakes.TOKEN) as client, pytest.raises(EverstepError) as caught:
            client.upload(archive)
        return caught.value

    async with rig.served() as url:
        error = await asyncio.to_thread(inside, url)
    assert isinstance(error, Exception)
    return error


async def test_a_full_disk_of_the_server_is_what_the_uploader_hears(
    rig: Rig, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.context.files._upload_bytes = 1 << 30

    def full(path: Path) -> IO[bytes]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files_module, "_create", full)
    error = await uploading(rig, archive)
    assert isinstance(error, Unavailable), repr(error)
    assert str(error).startswith("the server's disk is full")


async def test_an_upload_that_is_too_large_is_what_the_uploader_hears(rig: Rig, archive: Path) -> None:
    error = await uploading(rig, archive)
    assert not isinstance(error, NoServer), repr(error)
    assert "the upload is larger than 1 MiB" in str(error)


def test_a_full_disk_here_is_said_with_what_helps(
    cli: Cli,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("everstep.client.bringing.list_workdir", full)
    monkeypatch.setattr("everstep.cli.link.started", lambda: Client("http://127.0.0.1:9", "t"))
    monkeypatch.setattr(Client, "plan", lambda *_: PLAN)
    done = cli("run", "-y", "--workdir", str(tmp_path), "--", "true")
    assert done.code == 1
    assert one_line(done).startswith("everstep run: no space left on device; free some, or set TMPDIR to a folder")


@pytest.fixture
async def rig(tmp_path: Path) -> Any:
    made = fakes.rig(tmp_path)
    yield made
    made.context.close()
    await made.context.store.close()
