from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from everstep.client import api
from everstep.client.api import Client
from everstep.client.home import Home, NoServer, ServerInfo, UnsafeFile, write_private
from everstep.client.taskfile import load_task
from everstep.client.wire import ServerTrouble, Unavailable, Wire
from everstep.model import events as ev
from everstep.model.errors import BadInput, Conflict, NotAuthorized, NotFound, Throttled
from everstep.model.ids import InstanceId, JobId
from everstep.model.job import JobPhase, Saved
from everstep.model.task import Task
from everstep.server import installation
from everstep.server.logs import LogKey
from tests.server import fakes
from tests.server.fakes import Rig

JOB = JobId("j-aaaaaaaa")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = fakes.rig(tmp_path)
    yield made
    made.context.close()
    await made.context.store.close()


async def using(url: str, work: Callable[[Client], Any], *, token: str = fakes.TOKEN) -> Any:
    """Runs ``work`` with a client in a thread of its own, as scripts do."""

    def inside() -> Any:
        with Client(url, token, timeout_s=20.0) as client:
            return work(client)

    return await asyncio.to_thread(inside)


def two_attempts() -> Any:
    first = fakes.attempt(1, "i-1", saves=(Saved(5, 1.0, bytes=10),), restored_at=1.0, step=7)
    return fakes.job(JOB, fakes.machine("i-1"), attempts=(first,))


async def test_every_verb_speaks_to_the_server(rig: Rig, tmp_path: Path) -> None:
    rig.add(two_attempts())
    rig.controller.market = [fakes.offer()]
    await rig.controller.journal(JOB, ev.InstanceHeard(InstanceId("i-1")), ev.Decided(reasons=("r",)))
    rig.context.logs.append(JOB, LogKey(1, InstanceId("i-1"), "0"), 0, b"hello\n")
    archive = tmp_path / "w.tar.gz"
    archive.write_bytes(b"\x1f\x8bpacked")

    def verbs(client: Client) -> None:
        assert client.health().jobs == {"running": 1}
        assert [job.job for job in client.jobs()] == [JOB]
        assert client.status(JOB).saves[0].step == 5
        assert [event.kind for event in client.events(JOB)] == ["InstanceHeard", "Decided"]
        assert client.why(JOB)[0].reasons == ("r",)
        assert client.cost(JOB).lines[0].resource == "i-1"
        assert client.costs().jobs[0].job == JOB
        assert [(c.attempt, c.step, c.visible) for c in client.checkpoints(JOB)] == [(1, 5, True)]
        assert [part.text for part in client.logs(JOB, rank=0)] == ["hello\n"]
        assert client.offers()[0].zone == "east-a"
        assert client.plan(Task(run="x")).choice["zone"] == "east-a"
        assert client.restore(JOB, 5) == "1:5"
        exec_id = client.exec(JOB, "ls")
        assert client.exec_result(JOB, exec_id).done is False
        assert client.unknown() == []
        assert client.outputs(JOB) == []
        digest = client.upload(archive)
        assert client.has_upload(digest)
        assert client.upload(archive) == digest
        assert not client.has_upload("0" * 64)
        job = client.submit(Task(run="x", workdir_digest=digest, secret_names=("A",)), secrets={"A": "1"}, project="p")
        assert client.pause(job) == client.unpause(job) == "acquiring"
        assert client.cancel(job, reason="enough") == "cancelled"
        assert client.retry(job, secrets={"A": "2"}) == "acquiring"
        with pytest.raises(TimeoutError, match="is still acquiring"):
            client.wait(job, timeout_s=0.0)
        client.stop_server()

    stopped: list[bool] = []
    rig.context.on_stop = lambda: stopped.append(True)
    async with rig.served() as url:
        await using(url, verbs)
    assert stopped == [True]
    assert rig.controller.submitted[0]["secrets"] == {"A": "1"}
    assert rig.context.secrets.get(JobId("j-00000000")) == {"A": "2"}


async def test_what_was_read_from_a_file_is_handed_in_with_its_folder_and_its_secrets(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)\n")
    text = "workdir: code\nrun: python train.py\nsecrets: {KEY: of-the-file, OTHER: stays-as-is}\n"
    loaded = load_task("task.yaml", text=text, cwd=tmp_path)

    def hand_in(client: Client) -> None:
        assert client.plan(loaded).choice["zone"] == "east-a"
        client.submit(loaded, secrets={"KEY": "given-here"})

    async with rig.served() as url:
        await using(url, hand_in)
    [handed_in] = rig.controller.submitted
    assert handed_in["task"].run == "python train.py"
    assert rig.context.files.upload(handed_in["task"].workdir_digest) is not None
    assert handed_in["secrets"] == {"KEY": "given-here", "OTHER": "stays-as-is"}


async def test_a_retry_without_the_secrets_that_are_gone_says_which(rig: Rig) -> None:
    rig.add(fakes.job(JOB, task=Task(run="x", secret_names=("A", "B")), phase=JobPhase.CANCELLED))
    async with rig.served() as url:
        with pytest.raises(Conflict, match=r"give them again: A, B"):
            await using(url, lambda client: client.retry(JOB))
    assert not rig.controller.asked


async def test_errors_come_back_as_what_they_mean(rig: Rig) -> None:
    rig.add(fakes.job(JOB, phase=JobPhase.SUCCEEDED))
    async with rig.served() as url:
        with pytest.raises(NotFound, match="there is no job 'nobody'"):
            await using(url, lambda client: client.status("nobody"))
        with pytest.raises(Conflict, match="has succeeded"):
            await using(url, lambda client: client.cancel(JOB))
        with pytest.raises(NotAuthorized, match="not the token"):
            await using(url, lambda client: client.jobs(), token="wrong")
        with pytest.raises(BadInput) as caught:
            await using(url, lambda client: client.submit(Task(run="x", secret_names=("A",))))
        assert [problem.key for problem in caught.value.problems] == ["secrets.A"]
        with pytest.raises(BadInput):
            await using(url, lambda client: client.status(""))
        rig.controller.failure = Throttled("slow down")
        with pytest.raises(Unavailable, match="slow down"):
            await using(url, lambda client: client.offers())
        rig.controller.failure = RuntimeError("boom")
        with pytest.raises(ServerTrouble, match="RuntimeError"):
            await using(url, lambda client: client.offers())


async def test_a_job_is_named_by_whatever_a_task_may_be_called(rig: Rig) -> None:
    rig.add(fakes.job(JOB, task=Task(name="b c?ü&x=1#", run="x")))
    async with rig.served() as url:
        assert (await using(url, lambda client: client.status("b c?ü&x=1#"))).job == JOB


async def test_following_survives_a_restart_of_the_server(rig: Rig, tmp_path: Path) -> None:
    """The address may change as well: the client looks it up again."""
    rig.add(two_attempts())
    home = Home(tmp_path / "home")
    home.path.mkdir()
    write_private(home.token_file, fakes.TOKEN + "\n")

    def announce(url: str) -> None:
        installation.announce(home, ServerInfo(url, 1, 0.0, "d", "v"))

    key = LogKey(1, InstanceId("i-1"), "0")
    rig.context.logs.append(JOB, key, 0, b"one\n")
    texts: list[str] = []
    first_seen = asyncio.Event()
    loop = asyncio.get_running_loop()

    def follow() -> None:
        with Client(home=home) as client:
            for part in client.logs(JOB, follow=True):
                texts.append(part.text)
                loop.call_soon_threadsafe(first_seen.set)

    async with rig.served() as url:
        announce(url)
        following = asyncio.create_task(asyncio.to_thread(follow))
        await first_seen.wait()
    other = fakes.rig(tmp_path)  # the same folders: what a restarted server finds
    other.add(fakes.job(JOB, fakes.machine("i-1"), attempts=two_attempts().attempts, phase=JobPhase.SUCCEEDED))
    other.context.logs.append(JOB, key, 4, b"two\n")
    async with other.served() as url:
        announce(url)
        await following
    await other.context.store.close()
    assert texts == ["one\n", "two\n"]


async def test_a_follower_gives_up_when_no_server_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "PATIENCE_S", 0.0)
    with pytest.raises(NoServer, match="does not answer"):
        list(Client("http://127.0.0.1:9", "t").events(JOB, follow=True))


def test_without_a_server_the_error_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(NoServer, match=r"no server runs for .*; start one with: everstep server start"):
        Client(home=tmp_path).jobs()


def test_a_token_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t\n")
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(UnsafeFile):
        Client("http://127.0.0.1:9", home=tmp_path).jobs()


@pytest.mark.parametrize("url", ["ftp://x", "nonsense", "http://"])
def test_a_url_that_is_none_is_bad_input(url: str) -> None:
    with pytest.raises(BadInput, match="is not the URL of a server"):
        Wire(url, "t")


async def test_something_else_that_answers_is_not_taken_for_a_server() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ServerTrouble, match="is that an everstep server"):
            await using(url, lambda client: client.health())


async def test_a_question_is_asked_again_when_an_idle_connection_was_closed_but_a_wish_is_not() -> None:
    requests: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Answers one request and then closes, without having said that it would.
        head = await reader.readuntil(b"\r\n\r\n")
        requests.append(head.split(b" ", 1)[0].decode())
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"a": 1}')
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

        def ask(client: Client) -> None:
            assert client.wire.ask("GET", "/") == {"a": 1}
            assert client.wire.ask("GET", "/") == {"a": 1}
            with pytest.raises(NoServer):
                client.wire.ask("POST", "/", value={})

        await using(url, ask)
    assert requests == ["GET", "GET"]


def test_the_client_is_light() -> None:
    heavy = "{'fastapi', 'starlette', 'uvicorn', 'sqlalchemy', 'httpx', 'numpy', 'scipy', 'yaml', 'asyncio', 'rich'}"
    script = f"import sys, everstep.client.api, everstep.client.launcher; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
