"""A machine that is reachable by ssh: runs ``over_there`` on it. Secrets go through the connection, never into argv."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.client.placing import over_there
from everstep.model.errors import BadInput, EverstepError, Problem

_HOST = re.compile(r"[A-Za-z0-9_.@:\[\]%][A-Za-z0-9_.@:\[\]%-]*")
_OPTIONS = ("-T", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")
_NO_PYTHON = "the machine has no Python from 3.11 on"
# The first Python that is new enough runs what comes on its input. No single quote may stand in it.
_BEGIN = (
    "for p in python3.14 python3.13 python3.12 python3.11 python3; do "
    'if "$p" -c "import sys; sys.exit(sys.version_info < (3, 11))" >/dev/null 2>&1; then '
    'exec "$p" -c "import sys; i = sys.stdin.buffer; exec(i.read(int(i.readline())))"; fi; done; '
    f'echo "{_NO_PYTHON}" >&2; exit 3'
)


class MachineTrouble(EverstepError):
    """The machine cannot be reached, or could not do what it was asked; the text says why in one line."""


@dataclass(frozen=True, slots=True)
class SshMachine:
    """A machine by the name that ssh knows.

    Attributes:
        host: ``HOST``, ``USER@HOST``, or an alias of the ssh configuration.
        config: another ssh configuration than the user's own; empty = that.
    """

    host: str
    config: str = ""

    def __post_init__(self) -> None:
        if not _HOST.fullmatch(self.host):
            raise BadInput(Problem("everstep server up ssh", "HOST", f"'{self.host}' is no name of a machine"))
        if shutil.which("ssh") is None:
            raise BadInput(Problem("everstep server up ssh", "", "there is no ssh command here", "install OpenSSH"))

    def address(self) -> str:
        """The name or address that ssh connects to, once its configuration was looked at."""
        done = subprocess.run([*self._ssh(), "-G", "--", self.host], capture_output=True, text=True, check=False)
        for line in done.stdout.splitlines():
            name, _, value = line.partition(" ")
            if name == "hostname":
                return value
        raise MachineTrouble(f"ssh does not understand '{self.host}': {_last_line(done.stderr)}")

    def ask(self, request: Mapping[str, Any], data: bytes = b"", *, say: Callable[[str], None]) -> dict[str, Any]:
        """Runs ``over_there`` with a request.

        Args:
            request: what ``over_there`` understands.
            data: bytes for it.
            say: told what is being done, line by line.

        Raises:
            MachineTrouble: no connection, no Python, or what went wrong there.
        """
        script = Path(over_there.__file__).read_bytes()
        line = json.dumps({**request, "bytes": len(data)}).encode()
        sent = b"%d\n%b%b\n%b" % (len(script), script, line, data)
        with tempfile.TemporaryFile() as errors:
            command = [*self._ssh(), *_OPTIONS, "--", self.host, f"sh -c '{_BEGIN}'"]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
            assert process.stdin is not None
            assert process.stdout is not None
            feeder = threading.Thread(target=_feed, args=(process.stdin, sent), daemon=True)
            feeder.start()
            answer: dict[str, Any] | None = None
            try:
                for raw in process.stdout:
                    text = raw.decode(errors="replace").rstrip("\r\n")
                    if text.startswith(over_there.SAYS):
                        say(text.removeprefix(over_there.SAYS))
                    elif text.startswith(over_there.ANSWER):
                        answer = json.loads(text.removeprefix(over_there.ANSWER))
                code = process.wait()
            finally:
                process.kill()
                process.wait()
                process.stdout.close()
                feeder.join()
            errors.seek(0)
            last = _last_line(errors.read().decode(errors="replace"))
        if answer is None:
            raise MachineTrouble(f"{self.host}: {last or f'ssh ended with exit code {code} and no answer'}")
        if "error" in answer:
            raise MachineTrouble(f"{self.host}: {' '.join(str(answer['error']).split())}")
        return answer

    def _ssh(self) -> list[str]:
        return ["ssh", *(["-F", self.config] if self.config else [])]


def _feed(pipe: Any, data: bytes) -> None:
    try:
        with pipe:
            pipe.write(data)
    except OSError:
        pass  # the other end has given up; its exit code and its last words say why


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
