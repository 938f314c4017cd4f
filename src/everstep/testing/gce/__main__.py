"""``python -m everstep.testing.gce``: a fake Compute Engine until Ctrl-C, for any client of the API."""

from __future__ import annotations

import argparse
import json
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from everstep.testing.booting import Machines
from everstep.testing.gce import SMALL_WORLD, FakeGce, Timing


def main(argv: Sequence[str] | None = None) -> int:
    """Serves and prints how to call it."""
    parser = argparse.ArgumentParser(prog="python -m everstep.testing.gce", description=__doc__)
    parser.add_argument("--port", type=int, default=4567, help="0 = a free one (default: 4567)")
    parser.add_argument("--throttle", action="store_true", help="at the documented rates")
    parser.add_argument("--notice", type=float, default=30.0, metavar="S", help="warning of spot machines, seconds")
    parser.add_argument("--machines", type=Path, metavar="FOLDER", help="instances boot, with their disks below FOLDER")
    parser.add_argument("--key", type=Path, metavar="FILE", help="write the key of a service account that may call")
    given = parser.parse_args(argv)
    machines = None if given.machines is None else Machines(given.machines)
    timing = Timing(notice_s=given.notice)
    with FakeGce(SMALL_WORLD, timing, throttle=given.throttle, port=given.port, machines=machines) as fake:
        project = f"{fake.url}/compute/v1/projects/{fake.project}"
        print(f"Compute Engine and the billing catalog: {fake.url}, project {fake.project}", flush=True)
        print(f"  curl -H 'Authorization: Bearer any' {project}/aggregated/instances")
        print(f"  export CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE={fake.url}/compute/v1/", flush=True)
        if given.key is not None:
            given.key.write_text(json.dumps(fake.service_account()))
            print(f"  export GOOGLE_APPLICATION_CREDENTIALS={given.key}", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print(f"still there: {', '.join(fake.left()) or 'nothing'}")
    return 0


if __name__ == "__main__":
    # Also where whoever started us in the background ignores Ctrl-C.
    for ends in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ends, signal.default_int_handler)
    raise SystemExit(main())
