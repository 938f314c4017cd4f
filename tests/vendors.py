"""Fake vendors for tests: started as often as a test wants, and nothing of the real ones is found."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

AWS_KEY = "AKIATESTTESTTESTTEST"
AWS_SECRET = "planted-secret-of-the-test"
F = TypeVar("F")


def hide_real_ones(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Vendors' SDKs find the keys above, no other credentials and settings, and no proxy.

    Args:
        folder: in which there is nothing called ``none``.
    """
    # Half a second per client goes into reading the model of EC2: once is enough.
    monkeypatch.setattr("botocore.session.create_loader", lambda _: _loader())
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", AWS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", AWS_SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(folder / "none"))
    aws = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL")
    for name in (*aws, "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)


@functools.cache
def _loader() -> Any:
    from botocore.loaders import create_loader

    return create_loader()


@contextlib.contextmanager
def fakes(make: Callable[..., F], world: Any, timing: Any) -> Iterator[Callable[..., F]]:
    """Makes fakes, which serve until the end of the block; none may have crashed by then.

    Args:
        make: of world, timing and options.
        world: what is for sale, unless a test says otherwise.
        timing: whose fields a test changes by their names.
    """
    made: list[Any] = []

    def start(world: Any = world, **changes: Any) -> F:
        changed = {f.name: changes.pop(f.name) for f in fields(timing) if f.name in changes}
        fake: Any = make(world, replace(timing, **changed), **changes)
        fake.start()
        made.append(fake)
        return fake  # type: ignore[no-any-return]

    yield start
    for fake in made:
        fake.stop()
        assert fake.server.crashes == []
