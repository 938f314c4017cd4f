"""The metadata endpoint of every instance, shaped like EC2's, on the loopback:
``http://127.0.0.1:PORT/i-xxx/latest/...``.

``/latest/meta-data/instance-id``; ``/latest/meta-data/spot/instance-action``: 404, or ``{"action": "terminate", "time":
"...Z", "kind": "terminate" | "max_life"}``; ``/latest/meta-data/events/recommendations/rebalance``: 404, or
``{"noticeTime": "...Z"}``; ``/latest/meta-data/events/maintenance/scheduled``: a list, empty without maintenance;
``/latest/meta-data/placement/availability-zone``; ``/latest/meta-data/local-ipv4``; ``PUT /latest/api/token`` (any
token is accepted). Times carry milliseconds: a notice in a box may be short.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime

from everstep.model.causes import NoticeKind
from everstep.providers.local.state import InstanceRecord

_READ_TIMEOUT_S = 10.0
_NO_ANSWER = (
    OSError,
    TimeoutError,
    ValueError,
    asyncio.IncompleteReadError,
    asyncio.LimitOverrunError,
    asyncio.CancelledError,
)


def answer(records: Mapping[str, InstanceRecord], method: str, path: str) -> tuple[int, str]:
    """Status and body for one request."""
    instance, _, rest = path.partition("?")[0].strip("/").partition("/")
    record = records.get(instance)
    if record is None or not record.alive:
        return 404, "no such instance"
    if rest == "latest/api/token" and method == "PUT":
        return 200, "token-of-" + instance
    if method != "GET":
        return 405, "only GET"
    return _pages(record).get(rest.removeprefix("latest/meta-data/"), (404, "not found"))


def _pages(r: InstanceRecord) -> dict[str, tuple[int, str]]:
    pages = {
        "instance-id": (200, r.id),
        "instance-type": (200, r.machine_type),
        "local-ipv4": (200, r.address),
        "placement/availability-zone": (200, r.zone),
        "events/maintenance/scheduled": (200, "[]"),
    }
    if r.notice in (NoticeKind.TERMINATE, NoticeKind.MAX_LIFE) and r.deadline is not None:
        action = {"action": "terminate", "time": iso(r.deadline), "kind": r.notice.value}
        pages["spot/instance-action"] = (200, json.dumps(action))
    elif r.notice is NoticeKind.REBALANCE and r.noticed_at is not None:
        pages["events/recommendations/rebalance"] = (200, json.dumps({"noticeTime": iso(r.noticed_at)}))
    elif r.notice is NoticeKind.MAINTENANCE:
        event = {"Code": "system-reboot", "State": "active", "NotBefore": iso(r.deadline) if r.deadline else ""}
        pages["events/maintenance/scheduled"] = (200, json.dumps([event]))
    return pages


def iso(at: float) -> str:
    """UTC seconds as ``2026-11-20T10:00:00.000Z``."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def serve(
    records: Mapping[str, InstanceRecord], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answers one connection, one request."""
    try:
        async with asyncio.timeout(_READ_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
        method, path, *_ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        status, body = answer(records, method, path)
        reason = {200: "OK", 404: "Not Found", 405: "Method Not Allowed"}[status]
        text = body.encode()
        writer.write(
            f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
            "Connection: close\r\n\r\n".encode()
            + text
        )
        await writer.drain()
    except _NO_ANSWER:
        pass  # a client that hangs up or talks nonsense gets none
    finally:
        writer.close()
