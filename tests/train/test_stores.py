"""What every store of mirrors must do; and what the one over signed URLs does besides."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.model import handshake
from everstep.train import signed as signed_module
from everstep.train.answers import Line
from everstep.train.s3 import S3Store
from everstep.train.signed import SignedStore
from everstep.train.stores import Absent, FolderStore, Refusal, Store, Taken, Unavailable, open_store
from tests.blobs.strict_s3 import KEY, SECRET, StrictS3, serving
from tests.train.signing import JOB, buckets, signing

pytestmark = [pytest.mark.xdist_group("mirror")]

CONTENT = random.Random(3).randbytes(300_000)
URL = f"s3://stores/allowed/run/{JOB}"
KEYS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}


@pytest.fixture(scope="module")
def s3() -> Iterator[StrictS3]:
    pytest.importorskip("moto", reason="moto[server,s3] is not installed")
    with serving() as started:
        yield started


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, s3: StrictS3) -> Iterator[Path]:
    """The socket of an agent whose job's mirror is in the bucket ``stores``."""
    s3.make_bucket("stores")
    made = buckets(s3, "s3://stores/allowed")
    with signing(tmp_path_factory.mktemp("signing"), made, "s3://stores/allowed/run/") as path:
        yield path


@pytest.fixture
def owner(s3: StrictS3, desk: Path) -> Iterator[Store]:
    """What the owner of the bucket sees of the job's place; empty at first."""
    store = open_store(URL, {**KEYS, "AWS_ENDPOINT_URL": s3.url})
    yield store
    for key in store.list(""):
        store.delete(key)
    store.close()


@pytest.fixture
def signed(desk: Path, owner: Store) -> Iterator[SignedStore]:
    store = open_store(URL, {handshake.ENV_OBJECTS: str(desk), handshake.ENV_CHECKPOINT_MIRROR: URL})
    assert isinstance(store, SignedStore)
    yield store
    store.close()


@pytest.fixture(params=["folder", "keys", "signed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return FolderStore(tmp_path / "mirror")
    found: Store = request.getfixturevalue({"keys": "owner", "signed": "signed"}[request.param])
    return found


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signed_module, "_PART", 65_536)
    monkeypatch.setattr(signed_module, "_RANGE", 40_000)
    monkeypatch.setattr(signed_module, "_PIECE", 10_000)


def upload(store: Store, place: Path, key: str, content: bytes) -> None:
    (place / "file").write_bytes(content)
    with (place / "file").open("rb", buffering=0) as file:
        store.upload(key, file, len(content))


def download(store: Store, place: Path, key: str, size: int, *, there: bytes = b"") -> bytes:
    with (place / "back").open("w+b", buffering=0) as file:
        file.write(there)
        store.download(key, file, size)
    return (place / "back").read_bytes()


@pytest.mark.usefixtures("small_parts")
class TestEveryStore:
    @pytest.mark.parametrize("key", ["a", "000001/000000003/shard-00000.pt", "a b/ü+%2e&=?#"])
    @pytest.mark.parametrize("content", [b"", b"\0\xff\n", CONTENT[:70_000]], ids=["nothing", "bytes", "more"])
    def test_a_small_object_comes_back(self, store: Store, key: str, content: bytes) -> None:
        store.put(key, b"of before")
        store.put(key, content)
        assert store.get(key) == content
        assert store.list("") == {key: len(content)}

    @pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, len(CONTENT)])
    @pytest.mark.parametrize("there", [0, 50_000])
    def test_a_file_comes_back_behind_what_is_there(self, store: Store, tmp_path: Path, size: int, there: int) -> None:
        upload(store, tmp_path, "a/b.pt", CONTENT[:size])
        there = min(size, there)
        assert download(store, tmp_path, "a/b.pt", size, there=CONTENT[:there]) == CONTENT[:size]
        assert sum(store.list("a/").values()) == size

    def test_what_is_not_there_is_absent(self, store: Store, tmp_path: Path) -> None:
        store.put("a/c", b"x")
        with pytest.raises(Absent):
            store.get("a/b")
        with pytest.raises(Absent):
            download(store, tmp_path, "a/b", 3)

    def test_a_list_is_of_what_begins_so(self, store: Store) -> None:
        for key in ("a/1", "a/12", "b/1", "a2/1"):
            store.put(key, b"xy")
        assert store.list("a/1") == {"a/1": 2, "a/12": 2}
        assert set(store.list("a")) == {"a/1", "a/12", "a2/1"}
        assert store.list("c") == {}

    def test_what_is_deleted_is_gone_and_may_be_deleted_again(self, store: Store) -> None:
        store.put("a/1", b"x")
        store.put("a/2", b"x")
        store.put("b/3", b"x")
        for _ in range(2):
            store.delete("a/1", "b/3")
        store.delete()
        assert store.list("") == {"a/2": 1}

    def test_an_object_is_created_once(self, store: Store) -> None:
        store.create("attempts/000001.json", b"base 1:5")
        store.create("attempts/000001.json", b"base 1:5")
        with pytest.raises(Taken, match=r"another attempts/000001\.json"):
            store.create("attempts/000001.json", b"base 1:6")
        assert store.get("attempts/000001.json") == b"base 1:5"


# --- signed URLs ------------------------------------------------------------------------------------------------------


def test_bytes_go_to_the_bucket_and_not_through_the_server(
    s3: StrictS3, signed: SignedStore, owner: Store, tmp_path: Path, small_parts: None
) -> None:
    before = len(s3.seen())
    upload(signed, tmp_path, "shard.pt", CONTENT)
    assert download(signed, tmp_path, "shard.pt", len(CONTENT)) == CONTENT
    moved = s3.seen()[before:]
    assert {how for method, path, how in moved if "shard.pt" in path} == {"url"}
    assert [method for method, *_ in moved].count("PUT") == 5
    assert sorted(owner.list("")) == [f"shard.pt.part-{number:05d}" for number in range(5)]


def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is signed from now on."""
    found: list[tuple[str, str]] = []
    real = SignedStore._sign

    def sign(self: SignedStore, method: str, keys: list[str]) -> list[str]:
        found.extend((method, key) for key in keys)
        return real(self, method, keys)

    monkeypatch.setattr(SignedStore, "_sign", sign)
    return found


def test_a_url_is_used_again_until_it_has_run_out(
    s3: StrictS3, signed: SignedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signs = asked(monkeypatch)
    for content in (b"1", b"2"):
        signed.put("a", content)
        assert signed.get("a") == content
    assert signs == [("PUT", "a"), ("GET", "a")]
    s3.expire()
    signed.put("a", b"3")
    assert signed.get("a") == b"3"
    assert signs == [("PUT", "a"), ("GET", "a")] * 2
    signed._urls = {what: (url, time.monotonic()) for what, (url, _) in signed._urls.items()}
    assert signed.get("a") == b"3"
    assert signs == [("PUT", "a"), ("GET", "a")] * 2 + [("GET", "a")]


def test_a_new_url_that_is_refused_is_no_reason_to_go_on(s3: StrictS3, signed: SignedStore) -> None:
    signed.put("a", b"1")
    s3.later(901.0)
    try:
        with pytest.raises(Refusal, match="expired"):
            signed.put("a", b"2")
    finally:
        s3.later(-901.0)
    assert signed.get("a") == b"1"


def test_a_url_that_is_refused_is_replaced(s3: StrictS3, signed: SignedStore) -> None:
    signed.put("a", b"1")
    url, until = signed._urls["PUT", "a"]
    signed._urls["PUT", "a"] = (url.replace("X-Amz-Signature=", "X-Amz-Signature=0"), until)
    signed.put("a", b"2")
    assert signed.get("a") == b"2"
    assert signed._urls["PUT", "a"][0] != url.replace("X-Amz-Signature=", "X-Amz-Signature=0")


def test_what_broke_off_goes_on_where_it_was(
    signed: SignedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    # A name of its own: a URL that is signed twice in one second is the same, and `expire` may have ended it.
    sent: list[str] = []
    real = Line.ask

    def ask(self: Line, method: str, target: str, **more: Any) -> Any:
        if method == "PUT":
            sent.append(target.partition("?")[0][-5:])
            if len(sent) == 3:
                raise Unavailable("broken off")
        return real(self, method, target, **more)

    monkeypatch.setattr(Line, "ask", ask)
    with pytest.raises(Unavailable):
        upload(signed, tmp_path, "other.pt", CONTENT)
    upload(signed, tmp_path, "other.pt", CONTENT)
    assert sent == ["00000", "00001", "00002", "00002", "00003", "00004"]
    assert download(signed, tmp_path, "other.pt", len(CONTENT)) == CONTENT


def test_more_can_be_deleted_than_fits_into_one_request(
    s3: StrictS3, signed: SignedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signed_module, "_DELETED_AT_ONCE", 2)
    keys = [f"a/{number}" for number in range(5)]
    for key in keys:
        signed.put(key, b"x")
    signed.delete(*keys)
    assert signed.list("") == {}


def test_a_file_that_lacks_a_part_is_refused(signed: SignedStore, tmp_path: Path, small_parts: None) -> None:
    upload(signed, tmp_path, "shard.pt", CONTENT)
    signed.delete("shard.pt.part-00003")
    with pytest.raises(Refusal, match=rf"has 234464 bytes, not {len(CONTENT)}"):
        download(signed, tmp_path, "shard.pt", len(CONTENT))


def test_texts_of_errors_hold_no_url(s3: StrictS3, signed: SignedStore) -> None:
    signed.put("a", b"1")
    s3.later(1000.0)
    with pytest.raises(Refusal) as caught:
        signed.get("a")
    s3.later(-1000.0)
    assert "Amz" not in str(caught.value)
    assert KEY not in str(caught.value)


def test_an_agent_that_is_gone_is_worth_another_try(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        SignedStore("s3://b/j", tmp_path / "nobody.sock").list("")


def test_a_mirror_that_the_server_has_no_keys_of_is_refused_in_its_words(tmp_path: Path, s3: StrictS3) -> None:
    with signing(tmp_path, buckets(s3, "s3://other"), "s3://mine/run") as path:
        store = SignedStore("s3://mine/run/j-1", path)
        with pytest.raises(Refusal, match="signs nothing for s3://mine/run/j-1: name the bucket under 'buckets'"):
            store.list("")
        store.close()


def test_keys_of_the_job_come_first_and_other_places_are_not_signed_for(tmp_path: Path) -> None:
    url = "s3://bucket/run/j-1"
    env = {handshake.ENV_OBJECTS: str(tmp_path / "sock"), handshake.ENV_CHECKPOINT_MIRROR: url}
    assert isinstance(open_store(url, env), SignedStore)
    assert isinstance(open_store(url, {**env, **KEYS}), S3Store)
    with pytest.raises(ValueError, match="or a server that has the bucket's keys"):
        open_store("s3://bucket/run/j-2", env)
    gs = {**env, **KEYS, handshake.ENV_CHECKPOINT_MIRROR: "gs://bucket/j-1"}
    assert isinstance(open_store("gs://bucket/j-1", gs), SignedStore)
    with pytest.raises(ValueError, match="needs a server that has the bucket's keys"):
        open_store("gs://bucket/j-2", gs)


def test_the_socket_is_for_its_owner_alone(desk: Path) -> None:
    assert os.stat(desk.parent).st_mode & 0o777 == 0o700
