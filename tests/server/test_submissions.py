"""A submission is taken in once, whatever happens to its answer."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from everstep.client import api, launcher
from everstep.client.api import Client
from everstep.client.home import Home, NoServer
from everstep.model.codec import to_dict
from everstep.model.errors import BadInput
from everstep.model.ids import JobId
from everstep.model.job import JobPhase
from everstep.model.task import Task
from everstep.providers.local import LocalProvider
from everstep.server.submissions import KEPT_S, Lost, Submissions
from tests.server import fakes
from tests.server.fakes import Rig

BODY: dict[str, Any] = {"task": to_dict(Task(name="t", run="true"))}
KEY = {"Idempotency-Key": "k-1"}


async def post(rig: Rig, *, headers: dict[str, str] | None = None, **more: Any) -> Any:
    async with rig.client() as client:
        return await client.post("/api/v1/jobs", json={**BODY, **more}, headers=headers or {})


async def test_a_repeated_key_gives_the_same_job_and_another_key_another(rig: Rig) -> None:
    first, again = await post(rig, headers=KEY), await post(rig, headers=KEY)
    other = await post(rig, headers={"Idempotency-Key": "k-2"})
    assert first.json() == again.json() == {"job": "j-00000000"}
    assert other.json() == {"job": "j-00000001"}
    assert len(rig.controller.submitted) == 2


async def test_without_a_key_each_request_is_a_submission(rig: Rig) -> None:
    assert (await post(rig)).json() != (await post(rig)).json()


async def test_requests_at_the_same_time_are_one_submission(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    go, submit = asyncio.Event(), rig.controller.submit

    async def slow(*words: Any, **more: Any) -> JobId:
        await go.wait()
        return await submit(*words, **more)

    monkeypatch.setattr(rig.controller, "submit", slow)
    both = [asyncio.create_task(post(rig, headers=KEY)) for _ in range(2)]
    await asyncio.sleep(0.01)
    go.set()
    assert [(await one).json()["job"] for one in both] == ["j-00000000"] * 2


async def test_a_client_that_goes_away_does_not_stop_it(tmp_path: Path) -> None:
    book, go, made = Submissions(tmp_path / "s"), asyncio.Event(), []

    async def submit() -> JobId:
        await go.wait()
        made.append(1)
        return JobId("j-1")

    first = asyncio.create_task(book.once("k", "d", now=1.0, submit=submit, find=nothing))
    await asyncio.sleep(0)
    first.cancel()
    go.set()
    assert await book.once("k", "d", now=1.0, submit=submit, find=nothing) == "j-1"
    assert made == [1]


async def test_a_key_of_another_submission_is_a_conflict(rig: Rig) -> None:
    await post(rig, headers=KEY)
    answer = await post(rig, headers=KEY, project="other")
    assert (answer.status_code, answer.json()["error"]["kind"]) == (409, "conflict")
    assert len(rig.controller.submitted) == 1


@pytest.mark.parametrize("key", ["x" * 201, "a\tb"])
async def test_a_key_that_is_none_is_bad_input(tmp_path: Path, key: str) -> None:
    with pytest.raises(BadInput, match="printable ASCII"):
        await Submissions(tmp_path / "s").once(key, "d", now=1.0, submit=never, find=nothing)


async def test_what_was_refused_may_be_tried_again_with_the_same_key(rig: Rig) -> None:
    rig.controller.failure = BadInput()
    assert (await post(rig, headers=KEY)).status_code == 422
    rig.controller.failure = None
    assert (await post(rig, headers=KEY)).json() == {"job": "j-00000000"}


async def test_a_restarted_server_remembers(rig: Rig, tmp_path: Path) -> None:
    await post(rig, headers=KEY)
    other = fakes.rig(tmp_path)
    assert (await post(other, headers=KEY)).json() == {"job": "j-00000000"}
    assert not other.controller.submitted
    await other.context.store.close()


async def test_a_server_killed_right_after_it_took_the_job_in_does_not_make_a_second_one(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file still says that nothing is known of the job: the successor finds it by its task."""
    monkeypatch.setattr(Submissions, "_keep", lambda *_: None)
    for key in ("k-1", "k-2"):
        await post(rig, headers={"Idempotency-Key": key})
    monkeypatch.undo()
    other = fakes.rig(tmp_path)
    other.context.started_at = other.context.clock.now()
    task = Task(name="t", run="true")
    jobs: dict[str, dict[str, Any]] = {
        "j-early": {"submitted_at": 5.0},
        "j-other": {"task": Task(name="other", run="true")},
        "j-late": {"submitted_at": other.context.started_at + 5.0},
        "j-mine": {"phase": JobPhase.SUCCEEDED},
        "j-twin": {},
    }
    for name, values in jobs.items():
        other.add(fakes.job(name, **{"task": task, "submitted_at": other.context.started_at, **values}))
    found = {(await post(other, headers={"Idempotency-Key": key})).json()["job"] for key in ("k-1", "k-2")}
    assert found == {"j-mine", "j-twin"}
    assert not other.controller.submitted
    await other.context.store.close()


async def test_a_server_killed_before_it_took_the_job_in_takes_it_in_later(tmp_path: Path) -> None:
    book = Submissions(tmp_path / "s")
    with pytest.raises(RuntimeError):
        await book.once("k", "d", now=1.0, submit=broken, find=nothing)
    asked: list[Lost] = []

    async def find(lost: Lost) -> JobId | None:
        asked.append(lost)
        return None

    assert await Submissions(tmp_path / "s").once("k", "d", now=9.0, submit=one, find=find) == "j-1"
    assert asked == [Lost(1.0, frozenset())]


async def test_a_full_disk_before_the_job_takes_nothing_in_and_after_it_forgets_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [0]

    def full(descriptor: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refused = await post(rig, headers=KEY)
    assert (refused.status_code, len(rig.controller.submitted)) == (507, 0)
    left[0] = 1
    taken, again = await post(rig, headers=KEY), await post(rig, headers=KEY)
    assert taken.json() == again.json() == {"job": "j-00000000"}
    assert len(rig.controller.submitted) == 1


async def test_keys_are_private_hold_no_secret_and_go_after_a_day(rig: Rig) -> None:
    task = to_dict(Task(name="t", run="true", secret_names=("A",)))
    await post(rig, headers=KEY, task=task, secrets={"A": "hunter2"})
    [file] = (rig.folder / "submissions").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "hunter2" not in file.read_text()
    now = rig.context.clock.now()
    rig.context.submissions.sweep(now + KEPT_S - 60.0)
    assert file.exists()
    rig.context.submissions.sweep(now + KEPT_S + 60.0)
    assert not file.exists()


# --- The client -------------------------------------------------------------------------------------------------------


class LossyDoor:
    """Passes requests on to a server; the first ``lost`` answers never reach their client."""

    def __init__(self, url: str, lost: int) -> None:
        self._port = int(url.rpartition(":")[2])
        self.lost = lost
        self.requests = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        body = await reader.readexactly(length)
        self.requests += 1
        inside, out = await asyncio.open_connection("127.0.0.1", self._port)
        out.write(head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + body)
        answer = await inside.read()
        out.close()
        if self.requests > self.lost:
            writer.write(answer)
        writer.close()
        await writer.wait_closed()


async def submit_through(rig: Rig, lost: int) -> tuple[LossyDoor, Any]:
    async with rig.served() as url:
        door = LossyDoor(url, lost)
        server = await asyncio.start_server(door, "127.0.0.1", 0)
        async with server:
            outside = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

            def inside() -> Any:
                with Client(outside, fakes.TOKEN) as client:
                    try:
                        return client.submit(Task(name="t", run="true"))
                    except NoServer as error:
                        return error

            return door, await asyncio.to_thread(inside)


async def test_the_client_asks_once_more_for_a_lost_answer(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_RETRY_PAUSE_S", 0.0)
    door, job = await submit_through(rig, 1)
    assert (job, door.requests, len(rig.controller.submitted)) == ("j-00000000", 2, 1)


async def test_the_client_says_that_it_does_not_know(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_RETRY_PAUSE_S", 0.0)
    door, error = await submit_through(rig, 9)
    assert (door.requests, len(rig.controller.submitted)) == (2, 1)
    assert "does not answer" in str(error)
    assert "it may have taken the job in: see everstep jobs" in str(error)


def test_a_server_that_was_never_reached_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everstep.client.api.time.sleep", lambda _: pytest.fail("there is nothing to wait for"))
    with pytest.raises(NoServer, match="does not answer") as caught:
        Client("http://127.0.0.1:9", "t").submit(Task(run="x"))
    assert "may have" not in str(caught.value)


async def nothing(lost: Lost) -> JobId | None:
    return None


async def one() -> JobId:
    return JobId("j-1")


async def never() -> JobId:
    raise AssertionError("must not be submitted")


async def broken() -> JobId:
    raise RuntimeError("the journal is gone")


# --- As a process -----------------------------------------------------------------------------------------------------


@pytest.mark.e2e
@pytest.mark.parametrize("point", ["append.before", "submit.after"])
def test_a_server_that_dies_over_a_submission_ends_up_with_one_job(
    tmp_path: Path, leak_guard: str, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Killed before the job is durable, or right after it was and before anybody knew."""
    home = Home(tmp_path / "home")
    struck = tmp_path / "struck"
    monkeypatch.setenv("EVERSTEP_FAULT_POINT", point)
    monkeypatch.setenv("EVERSTEP_FAULT_ONCE", str(struck))
    value = {"task": to_dict(Task(name="t", run="true"))}
    try:
        launcher.start_background(home)
        with Client(home=home) as client, pytest.raises(NoServer):
            client.wire.ask("POST", "/api/v1/jobs", value=value, headers=KEY)
        assert struck.exists()
        launcher.start_background(home)
        with Client(home=home) as client:
            asked = [client.wire.ask("POST", "/api/v1/jobs", value=value, headers=KEY)["job"] for _ in range(2)]
            assert [job.job for job in client.jobs(all=True)] == [asked[0]]
            assert asked[0] == asked[1]
            assert client.wait(asked[0], timeout_s=60).phase == "succeeded"
    finally:
        launcher.stop(home)
        if (home.path / "local").exists():
            asyncio.run(LocalProvider(home.path / "local").stop())
