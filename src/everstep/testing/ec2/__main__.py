"""``python -m everstep.testing.ec2``: a fake EC2 until Ctrl-C, for any client of the vendor's SDK or command line."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence

from everstep.testing.ec2 import SMALL_WORLD, FakeEc2, Timing


def main(argv: Sequence[str] | None = None) -> int:
    """Serves and prints how to call it."""
    parser = argparse.ArgumentParser(prog="python -m everstep.testing.ec2", description=__doc__)
    parser.add_argument("--port", type=int, default=4566, help="0 = a free one (default: 4566)")
    parser.add_argument("--throttle", action="store_true", help="at EC2's documented rates")
    parser.add_argument("--notice", type=float, default=120.0, metavar="S", help="warning of spot machines, seconds")
    parser.add_argument("--boot", type=float, default=10.0, metavar="S", help="how long machines are pending, seconds")
    given = parser.parse_args(argv)
    with FakeEc2(
        SMALL_WORLD, Timing(notice_s=given.notice, boot_s=given.boot), throttle=given.throttle, port=given.port
    ) as fake:
        print(f"EC2 and its price list: {fake.url}", flush=True)
        print("  export AWS_ENDPOINT_URL=" + fake.url)
        print("  export AWS_ACCESS_KEY_ID=AKIAIOSFODNN7EXAMPLE AWS_SECRET_ACCESS_KEY=any AWS_REGION=us-east-1")
        print("  aws ec2 describe-spot-price-history", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print(f"still there: {', '.join(fake.left()) or 'nothing'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
