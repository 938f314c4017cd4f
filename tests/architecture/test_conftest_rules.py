"""The rules that conftest.py lays on all other tests: sampling, sockets, leaks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import guards, sampling
from tests.architecture.planted import REPOSITORY

FAMILIES = {name: [f"{name}[{n}]" for n in range(40)] for name in ("boundaries", "matrix")}


@given(commit=st.text(min_size=1), fraction=st.floats(0, 1))
def test_every_family_is_represented(commit: str, fraction: float) -> None:
    chosen = sampling.choose(FAMILIES, commit, fraction)
    assert all(chosen & set(members) for members in FAMILIES.values())
    assert chosen == sampling.choose(FAMILIES, commit, fraction)


def test_commits_choose_differently_and_cover_everything_in_time() -> None:
    samples = [sampling.choose(FAMILIES, f"commit {n}") for n in range(300)]
    assert samples[0] != samples[1]
    assert set().union(*samples) == {test_id for members in FAMILIES.values() for test_id in members}
    assert all(1 <= len(set(members) & chosen) <= sampling.MOST for members in FAMILIES.values() for chosen in samples)


INNER = """
import pytest

@pytest.mark.parametrize("n", range(20))
@pytest.mark.expensive(family="inner")
def test_costly(n):
    pass

def test_cheap():
    pass
"""


def run_inner(folder: Path, *arguments: str, **environment: str) -> str:
    """Collect a planted test file with this repository's conftest.py in a pytest of its own."""
    tests = folder / "tests"
    tests.mkdir(exist_ok=True)
    for name in ("conftest.py", "guards.py", "sampling.py", "__init__.py"):
        (tests / name).write_text((REPOSITORY / "tests" / name).read_text())
    (folder / "pyproject.toml").write_text((REPOSITORY / "pyproject.toml").read_text())
    (tests / "test_inner.py").write_text(INNER)
    command = [sys.executable, "-B", "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments]
    variables = {"PATH": "/usr/bin:/bin", **environment}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_sample_deselects_and_the_full_run_does_not(tmp_path: Path) -> None:
    expected = len(sampling.choose({"inner": [f"tests/test_inner.py::test_costly[{n}]" for n in range(20)]}, "abc"))
    sampled = run_inner(tmp_path, EVERSTEP_TEST_COMMIT="abc")
    assert f"{expected + 1} passed, {20 - expected} deselected" in sampled
    assert f"{20 - expected} expensive cases left out" in sampled
    assert "21 passed" in run_inner(tmp_path, EVERSTEP_TEST_ALL="1")
    assert "1 passed" in run_inner(tmp_path, "tests/test_inner.py::test_costly[7]", EVERSTEP_TEST_COMMIT="abc")


def test_the_sample_is_the_same_on_every_worker(tmp_path: Path) -> None:
    expected = len(sampling.choose({"inner": [f"tests/test_inner.py::test_costly[{n}]" for n in range(20)]}, "abc"))
    output = run_inner(tmp_path, "-n2", "--dist=loadgroup", EVERSTEP_TEST_COMMIT="abc")
    assert f"{expected + 1} passed" in output
    assert f"{20 - expected} expensive cases left out" in output


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "", None, "10.213.4.5", "0.0.0.0", b"127.0.0.1"]
)
def test_this_machine_may_be_reached(host: object) -> None:
    assert guards.allowed_host(host)


@pytest.mark.parametrize("host", ["192.0.2.1", "10.214.0.1", "example.org", "::2", "169.254.169.254", b"example.org"])
def test_other_machines_may_not(host: object) -> None:
    assert not guards.allowed_host(host)


def test_a_socket_cannot_leave_the_machine() -> None:
    with socket.socket() as tcp, pytest.raises(guards.TrafficBeyondLoopbackError):
        tcp.connect(("192.0.2.1", 80))
    with socket.socket(type=socket.SOCK_DGRAM) as udp, pytest.raises(guards.TrafficBeyondLoopbackError):
        udp.sendto(b"x", ("192.0.2.1", 53))
    with pytest.raises(guards.TrafficBeyondLoopbackError):
        socket.getaddrinfo("example.org", 80)


def test_a_socket_reaches_loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getpeername() == server.getsockname()


def test_a_process_left_behind_is_seen_and_ended(leak_guard: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"], stdin=-1, stdout=-1)
    with child:
        assert child.stdout
        assert child.stdout.readline() == b"up\n"
        survivors = guards.settle(leak_guard, patience_s=0)
        assert [survivor.pid for survivor in survivors] == [child.pid]
        assert "input()" in survivors[0].command
        guards.end(survivors)
        assert child.wait() == -9
    assert guards.settle(leak_guard, patience_s=0) == []


def test_processes_of_other_runs_are_left_alone(leak_guard: str) -> None:
    with subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"], stdin=-1, stdout=-1) as child:
        assert child.stdout
        child.stdout.readline()
        assert guards.processes_of("another run") == []
        child.kill()


def test_a_commit_of_documents_alone_runs_the_same_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVERSTEP_TEST_COMMIT", raising=False)
    for variable in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(variable)

    def commit(name: str, text: str) -> str:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        who = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
        for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "one"]):
            subprocess.run(["git", *command], cwd=tmp_path, check=True)
        return sampling.current_commit(tmp_path / "tests")

    (tmp_path / "pyproject.toml").touch()
    assert commit("tests/test_a.py", "") == "no-commit"  # there is no code yet
    first = commit("src/a.py", "1")
    assert commit("README.md", "new") == first != "no-commit"
    assert len({first, commit("src/a.py", "2"), commit("tests/test_a.py", "2")}) == 3
