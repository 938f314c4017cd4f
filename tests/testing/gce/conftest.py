from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("googleapiclient", reason="the fake needs google-api-python-client")

from everstep.testing.gce import SMALL_WORLD, FakeGce, Timing, World

ZONE = "us-central1-a"
NOON = 1_900_000_000.0
IMAGE = "projects/debian-cloud/global/images/family/debian-12"


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.at = NOON

    def __call__(self) -> float:
        return self.at


class Caller:
    """Calls the API without a network: what is sent is text all the same."""

    def __init__(self, fake: FakeGce, clock: Clock) -> None:
        self.fake = fake
        self.clock = clock

    def raw(self, verb: str, path: str, body: Any = None, **query: Any) -> tuple[int, dict[str, Any]]:
        target = f"/compute/v1/projects/{self.fake.project}/{path}" + (f"?{urlencode(query)}" if query else "")
        data = json.dumps(body).encode() if body is not None else b""
        answer = self.fake.server.answer(verb, target, {"authorization": "Bearer any"}, data)
        assert answer is not None
        return answer

    def call(self, verb: str, path: str, body: Any = None, **query: Any) -> dict[str, Any]:
        status, answer = self.raw(verb, path, body, **query)
        assert status == 200, answer
        return answer

    def refused(self, verb: str, path: str, body: Any = None, **query: Any) -> tuple[int, str, str]:
        """Status, reason and words."""
        status, answer = self.raw(verb, path, body, **query)
        assert status != 200, answer
        (one,) = answer["error"]["errors"]
        return status, one["reason"], one["message"]

    def after(self, seconds: float) -> None:
        self.clock.at += seconds

    def insert(self, name: str = "m1", **changes: Any) -> dict[str, Any]:
        """A machine; returns the operation, done."""
        operation = self.call("POST", f"zones/{ZONE}/instances", machine(name, **changes))
        self.after(10.0)
        return self.call("GET", f"zones/{ZONE}/operations/{operation['name']}")

    def status(self, name: str = "m1") -> str:
        """Empty once it is gone."""
        status, answer = self.raw("GET", f"zones/{ZONE}/instances/{name}")
        return str(answer["status"]) if status == 200 else ""


def machine(name: str = "m1", **changes: Any) -> dict[str, Any]:
    """A spot machine that is deleted when it is preempted."""
    return {
        "name": name,
        "machineType": f"zones/{ZONE}/machineTypes/e2-standard-4",
        "networkInterfaces": [{"network": "global/networks/default"}],
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": IMAGE}}],
        "scheduling": {
            "provisioningModel": "SPOT",
            "automaticRestart": False,
            "instanceTerminationAction": "DELETE",
        },
        **changes,
    }


MakeCaller = Callable[..., Caller]


@pytest.fixture
def make_caller() -> Iterator[MakeCaller]:
    fakes = []

    def make(world: World = SMALL_WORLD, timing: Timing | None = None, **options: Any) -> Caller:
        clock = Clock()
        fakes.append(FakeGce(world, timing, now=clock, **options))
        return Caller(fakes[-1], clock)

    yield make
    for fake in fakes:
        fake.stop()
        assert fake.server.crashes == []


@pytest.fixture
def gce(make_caller: MakeCaller) -> Caller:
    return make_caller()
