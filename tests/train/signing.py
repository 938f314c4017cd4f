"""A server that signs for the mirror of one job, and the desk of the agent on that job's machine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from everstep.agent.link import Session
from everstep.agent.objects import ObjectDesk
from everstep.model.task import CheckpointSpec, Task
from everstep.server.buckets import Buckets
from tests.blobs.strict_s3 import StrictS3
from tests.server import fakes

JOB = "j-1"


def buckets(s3: StrictS3, *urls: str) -> Buckets:
    """What a server with the keys of the bucket in its environment makes of its configuration."""
    with pytest.MonkeyPatch.context() as env:
        env.setenv("AWS_ACCESS_KEY_ID", s3.key)
        env.setenv("AWS_SECRET_ACCESS_KEY", s3.secret)
        return Buckets({url: {"endpoint": s3.url, "region": "us-east-1"} for url in urls})


class Signing:
    """Runs beside the test, in a thread."""

    def __init__(self, folder: Path, made: Buckets, mirror: str) -> None:
        self._folder = folder
        self._buckets = made
        self._task = Task(name="t", run="true", checkpoint=CheckpointSpec(mirror=mirror))
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self.url = ""

    def run(self) -> None:
        """Until `stop`."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    def wait(self) -> None:
        """Until it answers."""
        assert self._ready.wait(60.0), "the server did not start"

    def stop(self) -> None:
        """Ends it."""
        self._loop.call_soon_threadsafe(self._stop.set)

    async def _serve(self) -> None:
        rig = fakes.rig(self._folder / "server")
        rig.add(fakes.job(JOB, fakes.machine("i-1"), task=self._task))
        rig.context.buckets = self._buckets
        async with rig.served() as self.url:
            self._ready.set()
            await self._stop.wait()
        await rig.context.store.close()


@contextmanager
def signing(folder: Path, made: Buckets, mirror: str) -> Iterator[Path]:
    """The socket on which ranks of ``JOB``, whose task has this mirror, ask."""
    server = Signing(folder, made, mirror)
    thread = threading.Thread(target=server.run)
    thread.start()
    # A path longer than what a socket's address holds.
    path = folder / ("a-long-name-" * 9) / "objects.sock"
    try:
        server.wait()
        desk = ObjectDesk(path, lambda: Session(server.url, fingerprint="", credential=fakes.CREDENTIAL))
        desk.start()
        try:
            yield path
        finally:
            desk.close()
    finally:
        server.stop()
        thread.join()
