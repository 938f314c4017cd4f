"""``python -m everstep.testing.ec2``: a fake EC2 until Ctrl-C, for any client of the vendor's SDK or command line.

With ``--machines FOLDER`` instances really boot: their user data runs here, as processes, until they are ended. A line
on standard input makes it misbehave: ``interrupt i-0123 [SECONDS]``, ``lose i-0123``, ``hang i-0123``, ``reboot
i-0123``, ``rebalance i-0123``.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from everstep.testing.booting import Machines
from everstep.testing.ec2 import SMALL_WORLD, FakeEc2, Timing


def main(argv: Sequence[str] | None = None) -> int:
    """Serves and prints how to call it."""
    parser = argparse.ArgumentParser(prog="python -m everstep.testing.ec2", description=__doc__)
    parser.add_argument("--port", type=int, default=4566, help="0 = a free one (default: 4566)")
    parser.add_argument("--throttle", action="store_true", help="at EC2's documented rates")
    parser.add_argument("--notice", type=float, default=120.0, metavar="S", help="warning of spot machines, seconds")
    parser.add_argument("--boot", type=float, default=10.0, metavar="S", help="how long machines are pending, seconds")
    parser.add_argument("--machines", type=Path, metavar="FOLDER", help="instances boot, with their disks below FOLDER")
    parser.add_argument("--certificate", type=Path, metavar="FILE", help="write there what verifies identity documents")
    given = parser.parse_args(argv)
    with FakeEc2(
        SMALL_WORLD,
        Timing(notice_s=given.notice, boot_s=given.boot),
        throttle=given.throttle,
        machines=None if given.machines is None else Machines(given.machines),
        port=given.port,
    ) as fake:
        if given.certificate is not None:
            given.certificate.write_bytes(fake.signer.certificate_pem)
        print(f"EC2 and its price list: {fake.url}", flush=True)
        print("  export AWS_ENDPOINT_URL=" + fake.url)
        print("  export AWS_ACCESS_KEY_ID=AKIAIOSFODNN7EXAMPLE AWS_SECRET_ACCESS_KEY=any AWS_REGION=us-east-1")
        print("  aws ec2 describe-spot-price-history", flush=True)
        try:
            for line in sys.stdin:
                print(_obey(fake, line.split()), flush=True)
            threading.Event().wait()
        except KeyboardInterrupt:
            print(f"still there: {', '.join(fake.left()) or 'nothing'}")
    return 0


def _obey(fake: FakeEc2, words: list[str]) -> str:
    """Does what a line says; the answer is one line."""
    commands: dict[str, Callable[[str], object]] = {
        "interrupt": lambda machine: fake.interrupt(machine, notice_s=float(words[2]) if len(words) > 2 else None),
        "lose": fake.lose,
        "hang": fake.hang,
        "reboot": fake.reboot,
        "rebalance": fake.recommend_rebalance,
    }
    if len(words) < 2 or words[0] not in commands:
        return f"one of {', '.join(commands)}, and an instance"
    try:
        commands[words[0]](words[1])
    except (KeyError, ValueError) as error:
        return f"cannot {words[0]} {words[1]}: {error}"
    return f"{words[0]} {words[1]}"


if __name__ == "__main__":
    # Also where whoever started us in the background ignores Ctrl-C.
    for ends in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ends, signal.default_int_handler)
    raise SystemExit(main())
