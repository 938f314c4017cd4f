"""Appends batches until it is killed, and says which were acknowledged. Run by ``test_sqlite_crash.py``."""

from __future__ import annotations

import asyncio
import os
import sys

from everstep.ports import Append, NewRecord
from everstep.store.sqlite import SqliteStore


async def main(path: str, round_no: int) -> None:
    store = SqliteStore(path)

    async def caller(name: int) -> None:
        batch = 0
        while True:
            size = 1 + (batch + name) % 5
            record = NewRecord(float(batch), "Written", 1, {"caller": [round_no, name], "batch": batch, "size": size})
            await store.append([Append(f"job/{round_no}-{name}", (record,) * size)], None)  # type: ignore[arg-type]
            # One write call: a line is told whole or not at all.
            os.write(1, f"{name} {batch}\n".encode())
            batch += 1
            if batch % 50 == 0:
                await store.save_snapshot("state", seq=1, body=bytes(100_000))

    await asyncio.gather(*(caller(name) for name in range(8)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
