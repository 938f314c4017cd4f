"""Commands pay only for themselves. Asserted by what is imported, since time depends on the machine."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.cli.registry import COMMANDS, build

#: Not pydantic: Typer brings it to check the values of options.
HEAVY = {
    "fastapi",
    "sqlalchemy",
    "numpy",
    "scipy",
    "torch",
    "obstore",
    "httpx",
    "uvicorn",
    "psutil",
    "yaml",
    "matplotlib",
}
PROBE = """
import json, sys
from everstep.cli.main import execute
code = execute(sys.argv[1:])
print("\\n@" + json.dumps([code, sorted(sys.modules)]))
"""


def loaded(home: Path, *words: str) -> tuple[int, set[str], str]:
    """Exit code, modules in memory at the end, and output of ``everstep WORDS`` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "EVERSTEP_HOME": str(home), "TERM": "dumb"},
    )
    out, _, told = done.stdout.rpartition("\n@")
    code, modules = json.loads(told)
    return code, set(modules), out + done.stderr


def tops(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """The home of a server that knows no jobs."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'{"jobs": []}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        (tmp_path / "token").write_text("t")
        (tmp_path / "token").chmod(0o600)
        info = {
            "url": f"http://127.0.0.1:{server.server_port}",
            "pid": 1,
            "started_at": 0,
            "deployment": "d",
            "version": "v",
        }
        (tmp_path / "server.json").write_text(json.dumps(info))
        yield tmp_path
        server.shutdown()
        thread.join()


def test_help_loads_no_command_and_nothing_heavy(tmp_path: Path) -> None:
    code, modules, out = loaded(tmp_path, "--help")
    assert code == 0
    assert not tops(modules) & HEAVY
    ours = {name for name in modules if name.startswith("everstep.cli.")}
    assert ours == {"everstep.cli.failures", "everstep.cli.main", "everstep.cli.registry"}
    assert all(entry.help.split(".")[0][:30] in out for entry in COMMANDS.values())


def test_jobs_into_a_pipe_loads_nothing_heavy_and_no_rich(home: Path) -> None:
    code, modules, out = loaded(home, "jobs")
    assert (code, "no live jobs" in out) == (0, True)
    assert not tops(modules) & {*HEAVY, "rich"}
    assert "everstep.cli.run" not in modules


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    app = build([name])
    app([name, "--help"], prog_name="everstep", standalone_mode=False)
    out = capsys.readouterr().out
    assert "Usage: everstep" in out
    if "COMMAND" not in out:
        assert "Example" in out
        assert f"everstep {name}" in out.replace("\n", " ").replace("│", "")


@pytest.mark.parametrize("name", ["ckpt", "server", "local"])
def test_every_command_of_a_group_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    group = COMMANDS[name].load()
    below = [([inner.name], inner.typer_instance.registered_commands) for inner in group.registered_groups]
    for words, commands in [([], group.registered_commands), *below]:
        for command in commands:
            line = [name, *words, command.name]
            build([name])([*line, "--help"], prog_name="everstep", standalone_mode=False)
            assert f"everstep {' '.join(line)}" in capsys.readouterr().out.partition("Example")[2]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("everstep jo", {"jobs"}),
        ("everstep logs --fo", {"--follow"}),
        ("everstep ckpt re", {"restore"}),
        ("everstep jobs -o ", {"table", "json", "yaml"}),
    ],
)
def test_shell_completion(tmp_path: Path, typed: str, offered: set[str]) -> None:
    words = {"_EVERSTEP_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "everstep"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "EVERSTEP_HOME": str(tmp_path), **words},
    )
    assert set(done.stdout.split()) == offered, done.stderr
