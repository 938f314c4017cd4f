"""Writes lines of a market stream until it is killed, and says how many are durable; for ``test_market_stream.py``."""

from __future__ import annotations

import asyncio
import os
import sys

from everstep.control.clock import SystemClock
from everstep.control.journal import Journal
from everstep.control.kernel import Outcome
from everstep.control.sights import SEEN, Sight
from everstep.store.sqlite import SqliteStore


async def main(path: str) -> None:
    journal = Journal(SqliteStore(path), clock=SystemClock(), holder="writer", sights_kept=500)
    number = 0
    while True:
        body = {"full": False, "looked": {"box": 0.0}, "pools": [["box/a/m/spot", 1.0, number % 2]], "number": number}
        await journal.write(Outcome(sights=[Sight(SEEN, body, float(number))]))
        # One write call: a line is told whole or not at all.
        os.write(1, f"{number}\n".encode())
        number += 1


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
