"""Stands in for training where the training itself does not matter: steps, saves, listens. Standard library only.

Each node keeps its own state in the checkpoint folder and takes part in the handshake (progress, facts, control file).
Everything it does is appended to ``TRAIL``, a file that all nodes and attempts share, one JSON object a line: what the
tests judge is what the processes did, not what the server says about it.

    TRAIL=/tmp/trail.jsonl python stepper.py --steps 60 --step-s 0.05
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

EXIT_SAVED = 75


class Stepper:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.node = int(os.environ.get("EVERSTEP_NODE_RANK", "0"))
        self.attempt = int(os.environ.get("EVERSTEP_ATTEMPT", "0"))
        self.trail = os.open(os.environ["TRAIL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.reports = Path(os.environ["EVERSTEP_REPORT_DIR"])
        self.control = Path(os.environ["EVERSTEP_CONTROL_FILE"])
        folder = Path(os.environ["EVERSTEP_CHECKPOINT_DIR"])
        folder.mkdir(parents=True, exist_ok=True)
        self.state = folder / f"node-{self.node}.json"
        self.seq = 0
        self.done = 0

    def tell(self, what: str, **more: object) -> None:
        line = {"t": time.time(), "what": what, "attempt": self.attempt, "node": self.node, "pid": os.getpid(), **more}
        os.write(self.trail, (json.dumps(line) + "\n").encode())

    def fact(self, kind: str, **more: object) -> None:
        with (self.reports / f"facts-{self.node}.jsonl").open("a") as file:
            file.write(json.dumps({"t": time.time(), "kind": kind, **more}) + "\n")

    def write(self, path: Path, value: object) -> None:
        partial = path.with_name(path.name + f".{os.getpid()}")
        partial.write_text(json.dumps(value))
        partial.replace(path)

    def progress(self, step: int, first_at: float) -> None:
        told = {"t": time.time(), "rank": self.node, "step": step, "total": self.args.steps, "first_step_at": first_at}
        self.write(self.reports / f"progress-{self.node}.json", {**told, "steps_done": self.done})

    def save(self, step: int, why: str) -> None:
        self.write(self.state, {"step": step})
        self.tell("saved", step=step, why=why)
        if self.node == 0:
            self.fact("saved", step=step, bytes=self.state.stat().st_size, save_s=0.0, stall_s=0.0, durable=True)

    def asked(self) -> dict[str, object]:
        try:
            asked: dict[str, object] = json.loads(self.control.read_text())
        except (OSError, ValueError):
            return {}
        return asked

    def run(self) -> int:
        wanted = os.environ.get("EVERSTEP_BASE", "")
        try:
            step = int(json.loads(self.state.read_text())["step"])
        except FileNotFoundError:
            step = 0
        if wanted:
            step = int(wanted.partition(":")[2])
        self.tell("began", step=step, base=wanted)
        base = wanted or (f"{self.attempt - 1}:{step}" if step else None)
        if self.node == 0:
            self.fact("restored", base=base, restore_s=0.0)
        first_at = 0.0
        while step < self.args.steps:
            asked = self.asked()
            seq = int(str(asked.get("seq", 0)))
            if asked.get("stop"):
                self.save(step, "stop")
                return EXIT_SAVED
            if seq > self.seq and asked.get("save"):
                self.save(step, "asked")
            self.seq = max(self.seq, seq)
            time.sleep(self.args.step_s)
            if step == self.args.steps - 1 and self.attempt < self.args.until_attempt:
                continue  # what the test has in store must not find the job over
            step += 1
            self.done += 1
            first_at = first_at or time.time()
            self.progress(step, first_at)
            self.tell("step", step=step)
            if self.args.fail_at and step >= self.args.fail_at and self.attempt <= self.args.fail_attempts:
                print(f"failing at step {step}, as told", flush=True)
                return self.args.fail_with
            if step % self.args.every == 0 and step < self.args.steps:
                self.save(step, "every")
        self.save(step, "end")
        self.tell("ended", step=step)
        return 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--every", type=int, default=10, help="steps between saves")
    parser.add_argument("--until-attempt", type=int, default=1, help="earlier attempts stop short of the last step")
    parser.add_argument("--fail-at", type=int, default=0, help="exit with --fail-with at that step")
    parser.add_argument("--fail-with", type=int, default=1)
    parser.add_argument("--fail-attempts", type=int, default=10**9, help="fail in so many attempts only")
    return Stepper(parser.parse_args()).run()


if __name__ == "__main__":
    sys.exit(main())
