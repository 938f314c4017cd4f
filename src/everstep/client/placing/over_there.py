"""What runs on the other machine: sets a server up, ends it, tells about it. Sent there as text, by ssh.

Only the standard library, and nothing of ours: it is what brings ours. It reads one line of JSON from its input, then
the bytes of a wheel if there is one, and answers on its output in lines that begin with a word of ours, since login
scripts print all sorts of things there.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

SAYS, ANSWER = "everstep-says: ", "everstep-answer: "


class Trouble(Exception):
    """What went wrong, in one line."""


def say(text: str) -> None:
    """Tells what is being done."""
    print(SAYS + text, flush=True)


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no reason was given")


def run(what: str, command: list[str], *, env: dict[str, str] | None = None) -> str:
    """Runs a command; ``what`` names it when it fails."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        raise Trouble(what + ": " + last_line(done.stderr.strip() or done.stdout))
    return done.stdout


def write(path: str, data: bytes) -> bool:
    """Writes a private file whole or not at all; tells whether it changed."""
    try:
        with open(path, "rb") as file:
            if file.read() == data:
                return False
    except FileNotFoundError:
        pass
    with open(path + ".part", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".part", path)
    return True


class Place:
    """The folder of the server on this machine."""

    def __init__(self, folder: str) -> None:
        # A machine of ours says in a variable where its disk is.
        self.folder = os.path.abspath(os.path.expanduser(os.path.expandvars(folder)))
        self.home = os.path.join(self.folder, "home")
        self.venv = os.path.join(self.folder, "venv")
        self.mark = os.path.join(self.folder, "installed")

    def everstep(self, *words: str) -> str:
        """Runs a command of the everstep that was installed here."""
        environment = {**os.environ, "EVERSTEP_HOME": self.home}
        return run("everstep", [os.path.join(self.venv, "bin", "everstep"), *words], env=environment)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps others from doing the same at the same time; whoever is killed lets go."""
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        with open(os.path.join(self.folder, "lock"), "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Trouble("somebody else sets up or ends the server in " + self.folder + " just now") from None
            yield

    def installed(self) -> str:
        """Name of what is installed, empty if nothing whole is."""
        try:
            with open(self.mark) as file:
                return file.read().strip()
        except FileNotFoundError:
            return ""

    def install(self, name: str, wheel: bytes, extras: list[str]) -> bool:
        """Makes the folder hold exactly this wheel; tells whether that changed anything."""
        # Where it is belongs to it: an environment knows its own path, and a disk may have come from another machine.
        wanted = " ".join([hashlib.sha256(wheel).hexdigest(), ",".join(extras), self.folder])
        if self.installed() == wanted and self.has_python():
            return False
        python = os.path.join(self.venv, "bin", "python")
        if not self.has_python():
            say("making a Python environment")
            hint = "python3 -m venv (on Debian and Ubuntu: apt install python3-venv)"
            run(hint, [sys.executable, "-m", "venv", "--clear", self.venv])
        if os.path.exists(self.mark):
            os.unlink(self.mark)
        path = os.path.join(self.folder, name)
        write(path, wheel)
        say("installing everstep and what it needs")
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        older = os.path.exists(os.path.join(self.venv, "bin", "everstep"))
        run("pip", [*pip, path + ("[" + ",".join(extras) + "]" if extras else "")])
        if older:
            # Another build of the same version counts as installed.
            run("pip", [*pip, "--force-reinstall", "--no-deps", path])
        write(self.mark, wanted.encode())
        return True

    def has_python(self) -> bool:
        """Whether the environment is whole; one on a disk that came from another machine may miss its Python."""
        if not os.path.exists(os.path.join(self.venv, "bin", "pip")):
            return False
        told = self.installed()
        if told and not told.endswith(" " + self.folder):
            return False
        try:
            subprocess.run([os.path.join(self.venv, "bin", "python"), "-c", ""], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return False
        return True

    def is_running(self) -> bool:
        """Whether a server holds the folder."""
        try:
            with open(os.path.join(self.home, "server.lock")) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def up(self, request: dict[str, Any], wheel: bytes) -> dict[str, Any]:
        """Installs what is new and sees that the server runs with it."""
        os.makedirs(self.home, mode=0o700, exist_ok=True)
        os.chmod(self.folder, 0o700)
        changed = self.install(request["wheel"], wheel, request["extras"])
        if request["restore"]:
            say("restoring the backup")
            self.everstep("server", "restore", request["restore"])
        changed = write(os.path.join(self.home, "config.yaml"), request["config"].encode()) or changed
        self.write_start()
        unit = Unit(self)
        with_unit = bool(request.get("unit")) and unit.possible()
        changed = (with_unit and unit.write()) or changed
        if changed and self.is_running():
            say("stopping the server that runs, to start the new one")
            self.everstep("server", "stop")
        say("starting the server")
        if with_unit:
            unit.start()
        elif request.get("unit"):
            say("nothing starts it after a reboot, for there is no systemd here; the same command again does")
        self.wait_started()
        with open(os.path.join(self.home, "server.json")) as file:
            info = json.load(file)
        with open(os.path.join(self.home, "token")) as file:
            token = file.read().strip()
        return {"fingerprint": info["fingerprint"], "deployment": info["deployment"], "token": token}

    def wait_started(self) -> None:
        """Starts it unless it runs, and returns when it answers: a small machine may need minutes."""
        for left in reversed(range(8)):
            try:
                self.everstep("server", "start")
                return
            except Trouble as error:
                if not left or not self.is_running() or "is starting or stopping" not in str(error):
                    raise

    def write_start(self) -> None:
        """A command that starts the server, for whoever boots the machine."""
        command = [os.path.join(self.venv, "bin", "everstep"), "server", "start"]
        text = "#!/bin/sh\nEVERSTEP_HOME={} exec {}\n".format(
            shlex.quote(self.home), " ".join(map(shlex.quote, command))
        )
        path = os.path.join(self.folder, "start")
        write(path, text.encode())
        os.chmod(path, 0o700)

    def down(self) -> dict[str, Any]:
        """Ends the server; its files stay."""
        if not self.installed():
            raise Trouble("there is no everstep server in " + self.folder)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.folder, "start"))
        Unit(self).remove()
        return {"said": last_line(self.everstep("server", "stop"))}


class Unit:
    """The unit of systemd that starts the server at boot, and again when it crashes: root's is the system's own."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.name = "everstep-server-" + hashlib.sha256(place.folder.encode()).hexdigest()[:8] + ".service"
        self.is_root = os.getuid() == 0
        folder = "/etc/systemd/system" if self.is_root else os.path.expanduser("~/.config/systemd/user")
        self.path = os.path.join(folder, self.name)

    def systemctl(self, *words: str) -> str:
        """Asks systemd. Raises Trouble."""
        # A login that no session stands behind does not know where the manager of its user is.
        environment = {"XDG_RUNTIME_DIR": "/run/user/" + str(os.getuid()), **os.environ}
        return run(
            "systemctl " + words[0], ["systemctl", *([] if self.is_root else ["--user"]), *words], env=environment
        )

    def possible(self) -> bool:
        """Whether systemd runs here and listens to this user."""
        try:
            self.systemctl("show-environment")
        except (Trouble, OSError):
            return False
        return True

    def write(self) -> bool:
        """Tells whether it changed."""
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        home = self.place.home
        command = [os.path.join(self.place.venv, "bin", "python"), "-m", "everstep.server", "--home", home]
        lines = [
            "[Unit]",
            "Description=everstep server in " + self.place.folder.replace("%", "%%"),
            "Wants=network-online.target",
            "After=network-online.target",
            "StartLimitIntervalSec=0",  # its disk may be mounted late
            "[Service]",
            "ExecStart=" + " ".join(map(quoted, [*command, "--log-file", os.path.join(home, "server.log")])),
            "Restart=on-failure",
            "RestartSec=5",
            "KillMode=process",  # machines of a cloud in a box outlive it
            "[Install]",
            "WantedBy=" + ("multi-user.target" if self.is_root else "default.target"),
            "",
        ]
        return write(self.path, "\n".join(lines).encode())

    def start(self) -> None:
        """Starts the server, now and at every boot. Returns when it holds its folder."""
        self.systemctl("daemon-reload")
        self.systemctl("enable", self.name)
        self.systemctl("start", self.name)
        if not self.is_root:
            try:
                run("loginctl", ["loginctl", "enable-linger"])
            except (Trouble, OSError) as error:
                say("after a reboot it starts when you log in, for lingering was refused (" + str(error) + ")")
        deadline = time.monotonic() + 30.0
        while not self.place.is_running():
            if time.monotonic() > deadline:
                raise Trouble("systemd does not start it; see: journalctl -u " + self.name)
            time.sleep(0.05)

    def remove(self) -> None:
        """It starts no more; one that runs goes on."""
        if not os.path.exists(self.path):
            return
        try:
            self.systemctl("disable", self.name)
            os.unlink(self.path)
            self.systemctl("daemon-reload")
        except (Trouble, OSError) as error:
            raise Trouble("the unit " + self.path + " cannot be removed: " + str(error)) from None


def quoted(text: str) -> str:
    """A word of a unit file."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$") + '"'


def answer() -> dict[str, Any]:
    """Does what the request says."""
    os.umask(0o077)
    request = json.loads(sys.stdin.buffer.readline())
    place = Place(request["folder"])
    wheel = sys.stdin.buffer.read()
    if len(wheel) != request["bytes"]:
        raise Trouble("the connection broke before everything was here")
    with place.alone():
        found = place.up(request, wheel) if request["do"] == "up" else place.down()
    return {**found, "folder": place.folder}


if __name__ == "__main__":
    try:
        print(ANSWER + json.dumps(answer()), flush=True)
    except (Trouble, OSError, KeyError, ValueError) as error:
        print(ANSWER + json.dumps({"error": str(error) or type(error).__name__}), flush=True)
        sys.exit(1)
