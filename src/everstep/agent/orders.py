"""The orders document as a checked value, and the thread that long-polls for it."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Any, Callable

from everstep.agent.link import Backoff, LinkDown, Refused, Session
from everstep.model import handshake as hs

log = logging.getLogger(__name__)

PHASES = (hs.PHASE_PREPARE, hs.PHASE_CHECK, hs.PHASE_RUN, hs.PHASE_HOLD, hs.PHASE_RELEASE)
_WAIT_S = 20.0
_Number = (int, float)


class BadOrders(Exception):
    """The document is not what the handshake says; the text names the key."""


@dataclass(frozen=True)
class Peer:
    """Another node of the gang. ``instance`` is its machine if the server says so, else ""."""

    rank: int
    address: str
    probe_port: int
    instance: str = ""


@dataclass(frozen=True)
class Save:
    """A wish to save: at the next step, and again shortly before ``by`` (UTC seconds)."""

    seq: int
    by: float | None


@dataclass(frozen=True)
class Stop:
    """A wish to stop the ranks within ``grace_s`` seconds, after a save if ``save``."""

    save: bool
    grace_s: float
    reason: str


@dataclass(frozen=True)
class Spec:
    """What to prepare and run; keys as in the handshake."""

    job: str = ""
    name: str = ""
    setup: str = ""
    run: str = ""
    argv: tuple[str, ...] | None = None
    ranks_per_node: int | None = None
    num_nodes: int = 1
    envs: dict[str, str] = field(default_factory=dict)
    secret_names: tuple[str, ...] = ()
    workdir: str = ""
    file_mounts: dict[str, Any] = field(default_factory=dict)
    checkpoint_dir: str = ""
    checkpoint_shared: bool = False
    checkpoint_every: str = "auto"
    checkpoint_keep: int = 2
    checkpoint_mirror: str = ""
    checkpoint_audit: int = 0
    checkpoint_mode: str = hs.MODE_LIBRARY
    on_notice: str = ""
    outputs: tuple[str, ...] = ()
    release_outputs: bool = False
    slot: int = 0
    stop_grace_s: float = 30.0

    @property
    def secrets(self) -> list[str]:
        """Values that must not leave this machine."""
        return [self.envs[name] for name in self.secret_names if self.envs.get(name)]


@dataclass(frozen=True)
class Orders:
    """What this instance should be doing now."""

    version: int
    phase: str
    attempt: int | None
    spec: Spec
    node_rank: int
    peers: tuple[Peer, ...]
    master: tuple[str, int] | None
    base: str
    base_since: int
    save: Save | None
    stop: Stop | None
    execs: tuple[tuple[str, str], ...]
    hazard_per_h: float


def parse(document: dict[str, Any]) -> Orders:
    """Check a document. Unknown keys are ignored (a newer server). Raises :class:`BadOrders`."""
    phase = _get(document, hs.ORDERS_PHASE, str, "")
    if phase not in PHASES:
        raise BadOrders(f"{hs.ORDERS_PHASE}: unknown phase {phase!r}")
    attempt = document.get(hs.ORDERS_ATTEMPT)
    if attempt is not None:
        attempt = _get(document, hs.ORDERS_ATTEMPT, int, 0)
    master = _optional(document, hs.ORDERS_MASTER)
    save = _optional(document, hs.ORDERS_SAVE)
    stop = _optional(document, hs.ORDERS_STOP)
    spec = _spec(_optional(document, hs.ORDERS_SPEC) or {})
    orders = Orders(
        version=_get(document, hs.ORDERS_VERSION, int, None),
        phase=phase,
        attempt=attempt,
        spec=spec,
        # Outside an attempt an instance has no rank; its slot tells the set-up of one machine from another's.
        node_rank=spec.slot
        if document.get(hs.ORDERS_NODE_RANK) is None
        else _get(document, hs.ORDERS_NODE_RANK, int, 0),
        peers=tuple(_peer(item) for item in _get(document, hs.ORDERS_PEERS, list, [])),
        master=(_get(master, "address", str, None), _get(master, "port", int, None)) if master else None,
        base=_get(document, hs.ORDERS_BASE, str, ""),
        base_since=_get(document, hs.ORDERS_BASE_SINCE, int, 0),
        save=Save(_get(save, "seq", int, None), _number(save, "by")) if save else None,
        stop=Stop(_get(stop, "save", bool, False), _number(stop, "grace_s") or 0.0, _get(stop, "reason", str, ""))
        if stop
        else None,
        execs=tuple(_exec(item) for item in _get(document, hs.ORDERS_EXEC, list, [])),
        hazard_per_h=_number(document, hs.ORDERS_HAZARD_PER_H) or 0.0,
    )
    if phase in (hs.PHASE_CHECK, hs.PHASE_RUN) and attempt is None:
        raise BadOrders(f"{hs.ORDERS_ATTEMPT}: missing in phase {phase}")
    if phase == hs.PHASE_RUN and orders.master is None:
        raise BadOrders(f"{hs.ORDERS_MASTER}: missing in phase {phase}")
    return orders


class OrdersPoller:
    """Long-polls and hands every new, well-formed document to ``on_orders`` (in this thread)."""

    def __init__(
        self, session: Session, *, on_orders: Callable[[Orders], None], on_refused: Callable[[Refused], None]
    ) -> None:
        self._session = session
        self._on_orders = on_orders
        self._on_refused = on_refused
        self._backoff = Backoff()
        self._seen: Any = -1
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orders", daemon=True)

    def start(self, first: dict[str, Any] | None) -> None:
        """Begin with the document that came with the join, if any."""
        if first is not None:
            self._accept(first)
        self._thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._poll()
                self._backoff.reset()
                continue
            except LinkDown as error:
                log.debug("no orders: %s", error)
                pause = self._backoff.next_s(error)
            except Refused as error:
                log.warning("orders refused: %s", error)
                self._on_refused(error)
                pause = max(1.0, self._backoff.next_s())
            except Exception:  # a surprise must not end the conversation
                log.exception("polling orders failed")
                pause = max(1.0, self._backoff.next_s())
            self._stopping.wait(pause)
        self._session.close()

    def _poll(self) -> None:
        query = {"seen": self._seen, "wait_s": _WAIT_S}
        answer = self._session.request("GET", hs.PATH_ORDERS, query=query, timeout_s=_WAIT_S + 5.0)
        if answer.status != 204 and not self._accept(answer.json()):
            raise LinkDown("unusable orders")

    def _accept(self, document: dict[str, Any]) -> bool:
        try:
            orders = parse(document)
        except BadOrders as error:
            log.error("orders ignored: %s", error)
            return False
        self._seen = orders.version
        self._on_orders(orders)
        return True


def _spec(data: dict[str, Any]) -> Spec:
    argv, ranks = data.get(hs.SPEC_ARGV), data.get(hs.SPEC_RANKS_PER_NODE)
    if ranks is not None and (_get(data, hs.SPEC_RANKS_PER_NODE, int, 0) < 1):
        raise BadOrders(f"{hs.SPEC_RANKS_PER_NODE}: expected at least 1")
    envs = _get(data, hs.SPEC_ENVS, dict, {})
    return Spec(
        job=_get(data, hs.SPEC_JOB, str, ""),
        name=_get(data, hs.SPEC_TASK_NAME, str, ""),
        setup=_get(data, hs.SPEC_SETUP, str, ""),
        run=_get(data, hs.SPEC_RUN, str, ""),
        argv=None if argv is None else tuple(str(item) for item in _get(data, hs.SPEC_ARGV, list, [])),
        ranks_per_node=ranks,
        num_nodes=_get(data, hs.SPEC_NUM_NODES, int, 1),
        envs={str(name): str(value) for name, value in envs.items()},
        secret_names=_texts(data, hs.SPEC_SECRET_NAMES),
        workdir=_get(data, hs.SPEC_WORKDIR, str, ""),
        file_mounts=_get(data, hs.SPEC_FILE_MOUNTS, dict, {}),
        checkpoint_dir=_get(data, hs.SPEC_CHECKPOINT_DIR, str, ""),
        checkpoint_shared=_get(data, hs.SPEC_CHECKPOINT_SHARED, bool, False),
        checkpoint_every=str(data.get(hs.SPEC_CHECKPOINT_EVERY) or "auto"),
        checkpoint_keep=_get(data, hs.SPEC_CHECKPOINT_KEEP, int, 2),
        checkpoint_mirror=_get(data, hs.SPEC_CHECKPOINT_MIRROR, str, ""),
        checkpoint_audit=_get(data, hs.SPEC_CHECKPOINT_AUDIT, int, 0),
        checkpoint_mode=_get(data, hs.SPEC_CHECKPOINT_MODE, str, hs.MODE_LIBRARY),
        on_notice=_get(data, hs.SPEC_ON_NOTICE, str, ""),
        outputs=_texts(data, hs.SPEC_OUTPUTS),
        release_outputs=_get(data, hs.SPEC_RELEASE_OUTPUTS, bool, False),
        slot=_get(data, hs.SPEC_SLOT, int, 0),
        stop_grace_s=30.0 if data.get(hs.SPEC_STOP_GRACE_S) is None else _number(data, hs.SPEC_STOP_GRACE_S) or 0.0,
    )


def _peer(item: Any) -> Peer:
    data = _object(item, hs.ORDERS_PEERS)
    return Peer(
        _get(data, "rank", int, None),
        _get(data, "address", str, None),
        _get(data, "probe_port", int, None),
        _get(data, "instance", str, ""),
    )


def _exec(item: Any) -> tuple[str, str]:
    data = _object(item, hs.ORDERS_EXEC)
    name = _get(data, "id", str, None)
    if not name or not name.replace("-", "").replace("_", "").isalnum():
        raise BadOrders(f"{hs.ORDERS_EXEC}: id {name!r} is not made of letters, digits, - and _")
    return name, _get(data, "command", str, None)


def _object(value: Any, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadOrders(f"{key}: expected an object, got {type(value).__name__}")
    return value


def _optional(data: dict[str, Any], key: str) -> dict[str, Any] | None:
    return None if data.get(key) is None else _object(data[key], key)


def _texts(data: dict[str, Any], key: str) -> tuple[str, ...]:
    values = _get(data, key, list, [])
    if not all(isinstance(value, str) for value in values):
        raise BadOrders(f"{key}: expected a list of texts")
    return tuple(values)


def _get(data: dict[str, Any], key: str, kind: type[Any], default: Any) -> Any:
    value = data.get(key)
    value = default if value is None else value  # null is as good as absent
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise BadOrders(f"{key}: expected {kind.__name__}, got {type(value).__name__}")
    return value


def _number(data: dict[str, Any], key: str) -> float | None:
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(value, _Number) or isinstance(value, bool):
        raise BadOrders(f"{key}: expected a number, got {type(value).__name__}")
    return float(value)
