"""How fast commands answer: ``everstep --help`` and ``everstep jobs`` in < 300 ms, ``import everstep`` in < 100 ms.

``jobs`` asks an HTTP server of 20 jobs in this process, so that what is measured is the command and not a busy server.
"""

from __future__ import annotations

import argparse
import http.server
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.runs import interleaved_ms, python, report

_RUNS = 20
_JOB = {
    "name": "charlm",
    "phase": "running",
    "step": 1200,
    "total": 5000,
    "nodes": 2,
    "market": "spot",
    "cost_usd": 1.5,
}


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"jobs": [{"job": f"j-{n:08d}", **_JOB} for n in range(20)]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def _home() -> Iterator[str]:
    """The folder of an installation whose server is this process."""
    with (
        tempfile.TemporaryDirectory() as folder,
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        token = Path(folder, "token")
        token.touch(mode=0o600)
        token.write_text("benchmark")
        info = {
            "url": f"http://127.0.0.1:{server.server_port}",
            "pid": 1,
            "started_at": 0,
            "deployment": "b",
            "version": "b",
        }
        Path(folder, "server.json").write_text(json.dumps(info))
        yield folder
        server.shutdown()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks cli --")
    parser.add_argument("--runs", type=int, default=_RUNS)
    runs = parser.parse_args(arguments).runs
    everstep = str(Path(sys.executable).with_name("everstep"))
    cases = {
        "python -c pass": python("-c", "pass"),
        "import everstep": python("-c", "import everstep"),
        "everstep --help": [everstep, "--help"],
        "everstep jobs": [everstep, "jobs"],
    }
    with _home() as home:
        taken = interleaved_ms(cases, runs=runs, env={"EVERSTEP_HOME": home, "PYTHONDONTWRITEBYTECODE": "1"})
    bare = taken["python -c pass"]
    beyond = [imported - plain for imported, plain in zip(taken["import everstep"], bare, strict=True)]
    command = f"python -m benchmarks cli -- --runs {runs}"
    results = [
        report("cli", "python -c pass", bare, unit="ms", command=command),
        report("cli", "import everstep, beyond python -c pass", beyond, unit="ms", command=command, goal=100),
        report("cli", "everstep --help", taken["everstep --help"], unit="ms", command=command, goal=300),
        report("cli", "everstep jobs", taken["everstep jobs"], unit="ms", command=command, goal=300),
    ]
    return 0 if all(result.get("reached", True) for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
