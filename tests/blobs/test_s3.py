"""S3 through a real HTTP server."""

from __future__ import annotations

import http.client
import http.server
import itertools
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from obstore.exceptions import BaseError

from everstep.blobs import open_blobs
from everstep.blobs.objects import ObstoreBlobs
from everstep.ports import BlobMissing, Blobs
from everstep.testing.blobs_suite import BlobsSuite

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("s3")]

# One request at a time: the server's own check for "if absent" is not atomic across threads.
SERVE = """
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False)
print(server.server_port, flush=True)
server.serve_forever()
"""
OPTIONS: dict[str, Any] = {"region": "us-east-1", "access_key_id": "test", "secret_access_key": "test"}
_bucket_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    pytest.importorskip("moto", reason="moto[server,s3] is not installed")
    with subprocess.Popen(
        [sys.executable, "-c", SERVE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            port = process.stdout.readline().strip()
            assert port, "the S3 server did not start"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


@pytest.fixture
def bucket(endpoint: str) -> str:
    name = f"bucket-{next(_bucket_numbers)}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT")).close()
    return name


class TestS3(BlobsSuite):
    @pytest.fixture
    def blobs(self, endpoint: str, bucket: str) -> Blobs:
        return open_blobs(f"s3://{bucket}/some/prefix", endpoint=endpoint, **OPTIONS)


async def test_signed_urls_work_without_credentials(endpoint: str, bucket: str) -> None:
    blobs = ObstoreBlobs(f"s3://{bucket}/prefix", endpoint=endpoint, **OPTIONS)
    put_url = await blobs.presign("a b/c", method="PUT", ttl_s=60)
    assert put_url is not None
    # The test server takes urllib's default type for a form, and would drop the body.
    headers = {"Content-Type": "application/octet-stream"}
    upload = urllib.request.Request(put_url, data=b"from the agent", headers=headers, method="PUT")
    urllib.request.urlopen(upload).close()
    assert await blobs.get("a b/c") == b"from the agent"
    get_url = await blobs.presign("a b/c", method="GET", ttl_s=60)
    assert get_url is not None
    with urllib.request.urlopen(get_url) as response:
        assert isinstance(response, http.client.HTTPResponse)
        assert response.read() == b"from the agent"


@pytest.mark.parametrize(("method", "ttl_s"), [("DELETE", 60.0), ("GET", 0.0), ("GET", 8 * 24 * 3600.0)])
async def test_what_cannot_be_signed_is_refused(endpoint: str, bucket: str, method: str, ttl_s: float) -> None:
    blobs = ObstoreBlobs(f"s3://{bucket}", endpoint=endpoint, **OPTIONS)
    with pytest.raises(ValueError, match="a URL can be signed"):
        await blobs.presign("a", method=method, ttl_s=ttl_s)


async def test_prefixes_of_one_bucket_do_not_see_each_other(endpoint: str, bucket: str) -> None:
    one, two = (ObstoreBlobs(f"s3://{bucket}/{name}", endpoint=endpoint, **OPTIONS) for name in ("one", "two"))
    await one.put("a", b"x")
    with pytest.raises(BlobMissing):
        await two.get("a")
    assert await two.list("") == []
    whole = ObstoreBlobs(f"s3://{bucket}", endpoint=endpoint, **OPTIONS)
    assert [info.key for info in await whole.list("")] == ["one/a"]


@pytest.fixture
def failing_server() -> Iterator[tuple[str, list[str]]]:
    """Answers every put with 503; the condition each came with."""
    asked: list[str] = []

    class Fails(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            asked.append(self.headers.get("If-None-Match", "plain"))
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Fails) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


async def test_a_conditional_put_is_sent_once_and_others_are_repeated(failing_server: tuple[str, list[str]]) -> None:
    url, asked = failing_server
    blobs = ObstoreBlobs("s3://bucket", endpoint=url, retry_config={"max_retries": 2}, **OPTIONS)
    with pytest.raises(BaseError):
        await blobs.put("a", b"x", if_absent=True)
    assert asked == ["*"]
    with pytest.raises(BaseError):
        await blobs.put("a", b"x")
    assert asked == ["*", "plain", "plain", "plain"]
