"""The thread that delivers the outbox: in order, at once, again and again until acknowledged."""

from __future__ import annotations

import logging
import threading
from typing import Callable

from everstep.agent.link import Backoff, LinkDown, Refused, Session
from everstep.agent.outbox import Outbox
from everstep.model import handshake as hs

log = logging.getLogger(__name__)

_BAD_REQUEST = (400, 413, 415, 422)


class Reporter:
    """Sends batches of the outbox over its own session.

    Args:
        on_refused: told of 401, 409 and 410 answers; runs in this thread.
    """

    def __init__(self, session: Session, outbox: Outbox, on_refused: Callable[[Refused], None]) -> None:
        self._session = session
        self._outbox = outbox
        self._on_refused = on_refused
        self._wake = threading.Event()
        self._delivered = threading.Condition()
        self._backoff = Backoff()
        self._batch_limit = 200
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)
        outbox.on_put = self._wake.set

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        """Deliver no more (an exchange under way finishes by itself)."""
        self._stopping = True
        self._wake.set()

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything is acknowledged; False if the time ran out first."""
        self._wake.set()
        with self._delivered:
            return self._delivered.wait_for(lambda: self._outbox.unacked() == 0, timeout_s)

    def _run(self) -> None:
        while not self._stopping:
            if self._outbox.unacked() == 0:
                self._wake.wait(1.0)
            self._wake.clear()
            try:
                pause = self._deliver()
            except Exception:  # a surprise must not silence the agent
                log.exception("delivering reports failed")
                pause = self._backoff.next_s()
            if pause and not self._stopping:
                threading.Event().wait(pause)
        self._session.close()

    def _deliver(self) -> float:
        """Send one batch; returns the pause before the next try (0: none)."""
        batch = self._outbox.batch(self._batch_limit)
        if not batch:
            return 0.0
        try:
            answer = self._session.post_json(hs.PATH_REPORTS, {"messages": batch})
            ack = answer.get("ack")
            if not isinstance(ack, int) or isinstance(ack, bool):
                raise LinkDown("the server's answer to reports has no ack")
        except LinkDown as error:
            log.debug("reports not delivered: %s", error)
            return self._backoff.next_s(error)
        except Refused as error:
            return self._refused(error, batch[0]["seq"], len(batch))
        before = self._outbox.unacked()
        self._outbox.acknowledge(ack)
        self._batch_limit = 200
        with self._delivered:
            self._delivered.notify_all()
        if self._outbox.unacked() >= before and ack < batch[-1]["seq"]:
            return self._backoff.next_s()  # the server took nothing: do not spin
        self._backoff.reset()
        return 0.0

    def _refused(self, error: Refused, first_seq: int, count: int) -> float:
        if error.status in _BAD_REQUEST:
            # One message the server cannot read must not hold up all others: find it by halving, then pass it over.
            if count > 1:
                self._batch_limit = max(1, count // 2)
                return 0.0
            return self._pass_over(first_seq, error)
        log.warning("reports refused: %s", error)
        self._on_refused(error)
        return max(1.0, self._backoff.next_s())

    def _pass_over(self, seq: int, error: Refused) -> float:
        """Offer a heartbeat under the number of a refused message: if that is refused too, the message is fine."""
        log.error("the server refuses message %d (%s)", seq, error)
        stand_in = {
            "seq": seq,
            "t": self._outbox.batch(1)[0]["t"],
            "kind": hs.MSG_HEARTBEAT,
            "attempt": None,
            "ranks_alive": 0,
            "warnings": [f"message {seq} refused: {error.error}"],
        }
        try:
            answer = self._session.post_json(hs.PATH_REPORTS, {"messages": [stand_in]})
        except (LinkDown, Refused):
            return self._backoff.next_s()
        if answer.get("ack") == seq:
            self._outbox.acknowledge(seq)
        return self._backoff.next_s()
