"""Where data comes from: files, addresses, copies and their dates."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from everstep.market.freshness import age, date_of_file, stale
from everstep.market.rows import instant
from everstep.market.source import FRESH_S, Found, find
from everstep.model.errors import BadInput

URL = "https://example.com/v8/aws/vms.csv"
NOW = 1_900_000_000.0
DAY_S = 86_400.0


class Web:
    """A server that is not there: answers in order, and what it was asked."""

    def __init__(self, *answers: httpx.Response | Callable[[httpx.Request], httpx.Response]) -> None:
        self.answers = list(answers)
        self.asked: list[httpx.Request] = []

    def client(self) -> httpx.Client:
        return httpx.Client(transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = self.answers.pop(0)
        return answer if isinstance(answer, httpx.Response) else answer(request)


def down(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("name or service not known", request=request)


def get(web: Web, cache: Path, now: float = NOW) -> Found:
    with web.client() as client:
        return find(URL, cache=cache, now=now, client=client)


def test_a_file_is_found_by_path_and_by_address(tmp_path: Path) -> None:
    path = tmp_path / "with space.csv"
    path.write_text("x")
    os.utime(path, (5.0, 5.0))
    for where in (str(path), path.as_uri()):
        assert find(where, cache=tmp_path / "c", now=NOW) == Found(path, where, 5.0)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("{}/absent.csv", "{}/absent.csv: cannot be read: no such file or directory; check the path"),
        ("{}/" + 300 * "x", "{}/" + 300 * "x" + ": cannot be read: file name too long; check the path"),
        ("~nobody-of-that-name/x", "~nobody-of-that-name/x: cannot be read: there is no such user; check the path"),
        ("https://[bad", "https://[bad: is no address: invalid ipv6 url; check the address"),
        ("file://{}/absent.csv", "{}/absent.csv: cannot be read: no such file or directory; check the path"),
        ("{}", "{}: is a folder; name a file in it"),
        ("http://example.com/a", "http://example.com/a: http:// is not fetched; name a file, file:// or https://"),
        ("s3://b/a.csv", "s3://b/a.csv: s3:// is not fetched; name a file, file:// or https://"),
    ],
)
def test_what_is_not_there_is_one_line(tmp_path: Path, where: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        find(where.format(tmp_path), cache=tmp_path / "c", now=NOW)
    assert str(caught.value) == message.format(tmp_path)


def test_what_was_fetched_is_kept_with_its_date(tmp_path: Path) -> None:
    stamp = "Thu, 31 Jan 2030 00:00:00 GMT"
    web = Web(httpx.Response(200, content=b"rows", headers={"last-modified": stamp}))
    found = get(web, tmp_path)
    assert found.path.read_bytes() == b"rows"
    assert found.path.name.endswith("-vms.csv")
    assert (found.source, found.as_of, found.note) == (URL, instant("2030-01-31"), "")
    # Younger than six hours: the copy does, with the date that it had.
    assert get(web, tmp_path, NOW + FRESH_S - 1) == found
    assert len(web.asked) == 1


def test_without_a_date_prices_are_of_the_time_they_were_fetched(tmp_path: Path) -> None:
    found = get(Web(httpx.Response(200, content=b"rows")), tmp_path)
    assert found.as_of == NOW
    ahead = {"last-modified": "Thu, 31 Jan 2999 00:00:00 GMT"}
    assert get(Web(httpx.Response(200, content=b"rows", headers=ahead)), tmp_path / "other").as_of == NOW


def test_an_older_copy_is_asked_for_again_and_may_be_unchanged(tmp_path: Path) -> None:
    web = Web(
        httpx.Response(200, content=b"old", headers={"etag": '"1"'}),
        httpx.Response(304),
        httpx.Response(200, content=b"new"),
    )
    get(web, tmp_path)
    same = get(web, tmp_path, NOW + DAY_S)
    assert web.asked[1].headers["if-none-match"] == '"1"'
    assert (same.path.read_bytes(), same.as_of) == (b"old", NOW + DAY_S)
    assert get(web, tmp_path, NOW + DAY_S + 1) == same
    changed = get(web, tmp_path, NOW + 2 * DAY_S)
    assert (changed.path.read_bytes(), changed.as_of) == (b"new", NOW + 2 * DAY_S)


def test_a_copy_does_when_nothing_can_be_fetched_and_that_is_said(tmp_path: Path) -> None:
    web = Web(httpx.Response(200, content=b"rows"), down, httpx.Response(500))
    get(web, tmp_path)
    later = get(web, tmp_path, NOW + DAY_S)
    assert (later.path.read_bytes(), later.as_of) == (b"rows", NOW)
    assert later.note == f"{URL}: cannot be fetched (name or service not known): an earlier copy is used"
    assert "HTTP 500 Internal Server Error" in get(web, tmp_path, NOW + DAY_S).note


def test_without_a_copy_it_is_one_line(tmp_path: Path) -> None:
    for answer, said in ((down, "name or service not known"), (httpx.Response(404), "HTTP 404 Not Found")):
        with pytest.raises(BadInput) as caught:
            get(Web(answer), tmp_path)
        assert str(caught.value) == f"{URL}: cannot be fetched: {said}; check the address"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "about", ["", "[]", "{}", '{"url": "x", "as_of": 1, "fetched_at": 1, "etag": "", "last_modified": ""}']
)
def test_a_copy_that_nothing_is_known_of_is_fetched_anew(tmp_path: Path, about: str) -> None:
    first = get(Web(httpx.Response(200, content=b"one")), tmp_path)
    first.path.with_name(f"{first.path.name}.about.json").write_text(about)
    assert get(Web(httpx.Response(200, content=b"two")), tmp_path).path.read_bytes() == b"two"


@pytest.mark.parametrize(
    ("old_s", "words"),
    [
        (0, "fresh"),
        (60, "fresh"),
        (600, "10 min old"),
        (7200, "2 h old"),
        (2 * DAY_S, "2 d old"),
        (31.9 * DAY_S, "31 d old"),
    ],
)
def test_age_is_told_in_one_unit(old_s: float, words: str) -> None:
    assert age(NOW - old_s, NOW) == words


def test_a_price_of_the_future_is_told_and_a_week_is_stale() -> None:
    assert age(NOW + 3600, NOW) == "dated in the future"
    assert [stale(NOW - days * DAY_S, NOW) for days in (6.9, 7.1)] == [False, True]


@pytest.mark.parametrize(
    ("name", "date"),
    [
        ("aws_2030-01-31.csv", "2030-01-31"),
        ("x-2030-02-01/aws.csv", "2030-02-01"),
        ("aws-2030-99-99.csv", "2031-01-01"),
    ],
)
def test_the_date_of_a_file_is_in_its_name_or_that_of_its_folder(tmp_path: Path, name: str, date: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("x")
    os.utime(path, (instant("2031-01-01"),) * 2)
    assert date_of_file(path) == instant(date)


def test_a_password_in_an_address_is_told_to_nobody(tmp_path: Path) -> None:
    url = "https://me:secret@example.com/aws/vms.csv"
    web = Web(httpx.Response(200, content=b"x"), down, down)
    with web.client() as client:
        fetched = find(url, cache=tmp_path, now=NOW, client=client)
        again = find(url, cache=tmp_path, now=NOW + 2 * FRESH_S, client=client)
        with pytest.raises(BadInput) as caught:
            find(f"{url}2", cache=tmp_path, now=NOW, client=client)
    assert "authorization" in web.asked[0].headers
    assert fetched.source == again.source == "https://me:***@example.com/aws/vms.csv"
    told = [again.note, str(caught.value), *(p.read_text() for p in tmp_path.iterdir())]
    assert "me:***@example.com" in again.note
    assert not any("secret" in text for text in told)
