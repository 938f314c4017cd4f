"""The mirror: what is in it is whole, what is lost in the folder comes back from it, and it never stops training."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import torch

from everstep import train
from everstep.model import handshake
from everstep.train import attempt as attempt_module
from everstep.train import mirror as mirror_module
from everstep.train import s3 as s3_module
from everstep.train import signed as signed_module
from everstep.train.s3 import Credentials, S3Store
from everstep.train.stores import Absent, FolderStore, Refusal, Store, Unavailable, open_store
from tests.blobs.strict_s3 import serving
from tests.blobs.test_s3 import SERVE
from tests.train.counter import Counter
from tests.train.signing import JOB, buckets, signing

BIG = 5_000_000  # floats: 20 MB, two parts


@pytest.fixture(autouse=True)
def hurry(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "_PAUSE_S", 0.01)
    monkeypatch.setattr(mirror_module, "_OPENING_PATIENCE_S", 0.1)
    monkeypatch.setattr(attempt_module, "_MIRROR_PATIENCE_S", 20.0)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    pytest.importorskip("moto", reason="moto[server,s3] is not installed")
    with subprocess.Popen(
        [sys.executable, "-c", SERVE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


_numbers = itertools.count(1)


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"mirror-{next(_numbers)}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT")).close()
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    return name


@pytest.fixture
def signed(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A mirror in a bucket that this process has no keys of."""
    pytest.importorskip("moto", reason="moto[server,s3] is not installed")
    monkeypatch.setattr(signed_module, "_PART", 5 << 20)
    with serving() as s3:
        s3.make_bucket("mirror")
        with signing(place / "signing", buckets(s3, "s3://mirror"), "s3://mirror/jobs") as desk:
            monkeypatch.setenv(handshake.ENV_OBJECTS, str(desk))
            monkeypatch.setenv(handshake.ENV_CHECKPOINT_MIRROR, f"s3://mirror/jobs/{JOB}")
            yield f"s3://mirror/jobs/{JOB}"


@pytest.fixture(params=["folder", "s3", "signed"])
def url(request: pytest.FixtureRequest, place: Path) -> str:
    if request.param == "signed":
        found: str = request.getfixturevalue("signed")
        return found
    return str(place / "mirror") if request.param == "folder" else f"s3://{request.getfixturevalue('bucket')}/some/jobs"


def go(steps: int, *, until: int | None = None, size: int = 1, **options: Any) -> Counter:
    counter = Counter(size)
    run = train.attach(counter=counter, every=0, **options)
    for step, batch in run.steps(list(range(5)), total=steps):
        counter.value += batch + random.random() + torch.rand(())
        if step == until:
            if run._around.mirror is not None:
                run._around.mirror.wait(time.monotonic() + 20)
            break
    return counter


def seeded(steps: int, **options: Any) -> Counter:
    torch.manual_seed(0)
    random.seed(0)
    return go(steps, **options)


def facts(place: Path, kind: str) -> list[dict[str, Any]]:
    lines = (place / "reports" / "facts-0.jsonl").read_text().splitlines()
    return [fact for fact in map(json.loads, lines) if fact["kind"] == kind]


def manifests(store: Store) -> list[str]:
    found = sorted(name for name in store.list("") if name.endswith("manifest.json"))
    store.close()
    return found


def test_whoever_began_elsewhere_under_the_same_number_does_not_publish(place: Path, url: str) -> None:
    run = train.attach(counter=Counter(), every=0, mirror=url)
    store = open_store(url, os.environ)
    store.create("attempts/000001.json", b'{"attempt": 1, "base": null, "world_size": 2}')
    for _ in run.steps([0], total=3):
        pass
    assert any("there is another attempts/000001.json" in fact["text"] for fact in facts(place, "warning"))
    assert (place / "saves/000001/000000003/manifest.json").exists()
    assert manifests(store) == []


@pytest.mark.parametrize("size", [1, BIG], ids=["small", "in parts"])
def test_a_lost_folder_comes_back(place: Path, url: str, size: int) -> None:
    undisturbed = seeded(9, dir=place / "other", size=size).value
    seeded(9, until=6, mirror=url, size=size)
    newest = manifests(open_store(url, os.environ))[-1]
    shutil.rmtree(place / "saves")
    assert torch.equal(go(9, mirror=url, size=size).value, undisturbed)
    restored = facts(place, "restored")[-1]["base"]
    assert newest == f"000001/{int(restored.split(':')[1]):09d}/manifest.json"
    assert sorted(p.name for p in (place / "saves" / "attempts").glob("*.json")) == ["000001.json", "000002.json"]


@pytest.mark.parametrize("gone", [False, True])
def test_the_base_that_a_server_names_comes_back_or_else_the_newest(
    place: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    url = str(place / "mirror")
    seeded(3, mirror=url)
    go(5, mirror=url)  # the end of each is there, whatever else the mirror had time for
    oldest, *_, newest = (":".join(str(int(n)) for n in name.split("/")[:2]) for name in manifests(open_store(url, {})))
    shutil.rmtree(place / "saves")
    monkeypatch.setenv(handshake.ENV_BASE, "1:77" if gone else oldest)
    monkeypatch.setenv(handshake.ENV_BASE_SINCE, "3")
    go(9, mirror=url)
    told = facts(place, "restored")[-1]
    assert (told["base"], told.get("missed")) == ((newest, "1:77") if gone else (oldest, None))


def test_durable_is_what_the_mirror_has(place: Path, url: str) -> None:
    seeded(4, mirror=url)
    told: dict[int, list[bool]] = {}
    for fact in facts(place, "saved"):
        told.setdefault(fact["step"], []).append(fact["durable"])
    assert told[4] == [False, True]
    assert all(durable[0] is False for durable in told.values())
    there = {int(name.split("/")[1]) for name in manifests(open_store(url, os.environ))}
    assert there <= {step for step, durable in told.items() if True in durable}


def test_only_the_newest_stay_in_the_mirror(place: Path, url: str) -> None:
    for steps in range(1, 6):
        go(steps, mirror=url, keep=2)
    store = open_store(url, os.environ)
    assert not any("collect" in name for name in store.list(""))
    assert manifests(store) == [f"{n:06d}/{n:09d}/manifest.json" for n in (4, 5)]


def test_a_stale_folder_gets_what_is_newer(place: Path) -> None:
    url = str(place / "mirror")
    seeded(3, mirror=url)
    shutil.copytree(place / "saves", place / "stale")
    undisturbed = go(6, mirror=url, until=None).value
    shutil.rmtree(place / "saves")
    (place / "stale").rename(place / "saves")
    assert torch.equal(go(6, mirror=url).value, undisturbed)
    assert facts(place, "restored")[-1]["base"] == "2:6"


class _Flaky(FolderStore):
    """Fails every second request."""

    calls = 0

    def _maybe(self) -> None:
        type(self).calls += 1
        if type(self).calls % 2:
            raise Unavailable("come back later")

    def put(self, key: str, content: bytes) -> None:
        self._maybe()
        super().put(key, content)

    def upload(self, key: str, file: IO[bytes], size: int) -> None:
        self._maybe()
        super().upload(key, file, size)

    def get(self, key: str) -> bytes:
        self._maybe()
        return super().get(key)


def use(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    monkeypatch.setattr("everstep.train.opening.open_store", lambda url, env: store)


def test_a_store_that_fails_now_and_then_gets_everything(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, _Flaky(place / "mirror"))
    seeded(3, mirror="x")
    assert manifests(FolderStore(place / "mirror"))[-1] == "000001/000000003/manifest.json"
    assert not facts(place, "warning")


class _Stuck(FolderStore):
    """Takes uploads when it is let go, and not before."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.go = threading.Event()
        self.uploads = 0

    def upload(self, key: str, file: IO[bytes], size: int) -> None:
        self.uploads += 1
        self.go.wait(20)
        super().upload(key, file, size)


def test_a_slow_store_stops_nothing_and_gets_the_newest(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _Stuck(place / "mirror")
    use(monkeypatch, store)
    counter = Counter()
    run = train.attach(counter=counter, every=0, keep=1, mirror="x")
    for step, _ in run.steps([0], total=5):
        counter.value += 1
        if step == 5:
            assert store.uploads == 1
            assert (place / "saves/000001/000000004/manifest.json").exists()
            store.go.set()
    assert manifests(store)[-1] == "000001/000000005/manifest.json"


def test_a_store_that_never_answers_is_told_at_the_end(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _Stuck(place / "mirror")
    use(monkeypatch, store)
    monkeypatch.setattr(attempt_module, "_MIRROR_PATIENCE_S", 0.1)
    threading.Timer(1.0, store.go.set).start()
    seeded(3, mirror="x")
    assert any("does not have the newest checkpoint yet" in fact["text"] for fact in facts(place, "warning"))
    assert (place / "saves/000001/000000003/manifest.json").exists()


class _Down(FolderStore):
    def list(self, prefix: str) -> dict[str, int]:
        raise Unavailable("connection refused")


def test_an_unreadable_mirror_is_no_reason_to_start_over(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, _Down(place / "mirror"))
    with pytest.raises(train.Refused) as caught:
        go(3, mirror="x")
    assert "connection refused; " in caught.value.text
    assert "is empty, and starting over might lose what the mirror has" in caught.value.text


def test_an_unreadable_mirror_beside_a_good_folder_is_a_warning(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeded(3)
    use(monkeypatch, _Down(place / "mirror"))
    go(5, mirror="x")
    assert facts(place, "restored")[-1]["base"] == "1:3"
    assert any("connection refused" in fact["text"] for fact in facts(place, "warning"))


def test_a_damaged_mirror_is_skipped_for_an_older_checkpoint(place: Path) -> None:
    url = str(place / "mirror")
    seeded(3, mirror=url)
    go(5, mirror=url)
    shutil.rmtree(place / "saves")
    older = Path(manifests(open_store(url, {}))[-2]).parent
    shard = place / "mirror/000002/000000005/shard-00000.pt"
    shard.write_bytes(shard.read_bytes()[:-3])
    go(6, mirror=url)
    assert any("checkpoint 2:5 did not come from the mirror" in fact["text"] for fact in facts(place, "warning"))
    assert facts(place, "restored")[-1]["base"] == f"{int(older.parent.name)}:{int(older.name)}"


def test_what_is_damaged_in_the_folder_comes_from_the_mirror(place: Path) -> None:
    url = str(place / "mirror")
    seeded(3, mirror=url)
    shard = place / "saves/000001/000000003/shard-00000.pt"
    shard.write_bytes(shard.read_bytes()[:-3])
    go(5, mirror=url)
    assert facts(place, "restored")[-1]["base"] == "1:3"


# --- S3 ---------------------------------------------------------------------------------------------------------------


def test_an_upload_that_broke_off_goes_on_where_it_was(
    place: Path, endpoint: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_module, "_PART", 5 << 20)
    content = random.Random(1).randbytes(12 << 20)
    (place / "file").write_bytes(content)
    sent: list[str] = []
    real = S3Store._ask

    def ask(self: S3Store, method: str, key: str, **more: Any) -> Any:
        if method == "PUT":
            sent.append((more.get("query") or {}).get("partNumber", ""))
            if len(sent) == 3:
                raise Unavailable("broken off")
        return real(self, method, key, **more)

    monkeypatch.setattr(S3Store, "_ask", ask)
    for expected in (["1", "2", "3"], ["1", "2", "3", "3"]):
        store = open_store(f"s3://{bucket}/p", os.environ)
        with (place / "file").open("rb") as file:
            if expected[-2:] == ["2", "3"]:
                with pytest.raises(Unavailable):
                    store.upload("a b/ü", file, len(content))
            else:
                store.upload("a b/ü", file, len(content))
        assert sent == expected
    assert store.list("a b/") == {"a b/ü": len(content)}
    with (place / "back").open("w+b") as back:
        back.write(content[:100])
        back.flush()
        store.download("a b/ü", back, len(content))
    assert (place / "back").read_bytes() == content


def test_more_objects_than_one_page(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"s3://{bucket}", os.environ)
    for number in range(5):
        store.put(f"k/{number}", b"x" * number)
    real = S3Store._ask

    def ask(self: S3Store, method: str, key: str, **more: Any) -> Any:
        if "list-type" in (more.get("query") or {}):
            more["query"] = {**more["query"], "max-keys": "2"}
        return real(self, method, key, **more)

    monkeypatch.setattr(S3Store, "_ask", ask)
    assert store.list("k/") == {f"k/{number}": number for number in range(5)}


def test_what_a_store_says_is_told_apart(endpoint: str, bucket: str) -> None:
    store = open_store(f"s3://{bucket}", os.environ)
    with pytest.raises(Absent, match="NoSuchKey"):
        store.get("nothing")
    with pytest.raises(Refusal, match="NoSuchBucket"):
        open_store("s3://no-such-bucket-here", os.environ).list("")
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        S3Store("b", "", "http://127.0.0.1:1", Credentials("k", "s", "", "r")).list("")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("s3://bucket/x", "AWS_ACCESS_KEY_ID"),
        ("az://bucket", "a mirror is s3://"),
        ("gs://bucket", "needs a server"),
        ("s3://", "needs a bucket"),
    ],
)
def test_places_that_are_none(url: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        open_store(url, {})


def test_requests_are_signed_as_the_reference_implementation_does(monkeypatch: pytest.MonkeyPatch) -> None:
    auth = pytest.importorskip("botocore.auth")
    requests = pytest.importorskip("botocore.awsrequest")
    credentials = pytest.importorskip("botocore.credentials")
    store = S3Store("buc.ket", "p", "https://host:9000", Credentials("AKID", "SECRET", "TOKEN", "eu-west-1"))
    query = "partNumber=7&uploadId=a%2Fb"
    headers = store._sign("PUT", "/buc.ket/p/a%20b", query, {}, b"content")
    request = requests.AWSRequest("PUT", f"https://host:9000/buc.ket/p/a%20b?{query}", data=b"content")
    for name in ("content-type", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token"):
        request.headers[name] = headers[name]
    request.context["timestamp"] = headers["x-amz-date"]
    signer = auth.S3SigV4Auth(credentials.Credentials("AKID", "SECRET", "TOKEN"), "s3", "eu-west-1")
    to_sign = signer.string_to_sign(request, signer.canonical_request(request))
    assert headers["authorization"].endswith(f"Signature={signer.signature(to_sign, request)}")
