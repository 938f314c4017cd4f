"""The agent that machines fetch: to anyone, by its digest, and nothing else of the folder."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from everstep.model import handshake as hs
from everstep.server.agentfile import AgentFiles
from tests.server.fakes import Rig


async def test_whoever_asks_gets_what_the_digest_names(rig: Rig, tmp_path: Path) -> None:
    agents = rig.context.agents = AgentFiles(tmp_path / "agents")
    async with rig.client(token="") as client:
        answer = await client.get(f"{hs.PATH_AGENT}{agents.sha256}.pyz")
        assert answer.status_code == 200
        assert hashlib.sha256(answer.content).hexdigest() == agents.sha256
        assert len(answer.content) == agents.size == int(answer.headers["content-length"])
    fetched = tmp_path / "fetched.pyz"
    fetched.write_bytes(answer.content)
    told = subprocess.run([sys.executable, "-I", fetched], env={}, capture_output=True, text=True, check=False)
    assert hs.BOOT_SERVER in told.stderr, "it is an agent, and it misses its settings"


@pytest.mark.parametrize(
    "name",
    ["", "new.pyz", f"{'0' * 64}.pyz", "0" * 64, "../token", "..%2Ftoken", f"{'A' * 64}.pyz", "%00.pyz", "x" * 9000],
)
async def test_nothing_else_is_given_away(rig: Rig, tmp_path: Path, name: str) -> None:
    rig.context.agents = AgentFiles(tmp_path / "agents")
    (tmp_path / "token").write_text("secret")
    async with rig.client(token="") as client:
        answer = await client.get(hs.PATH_AGENT + name)
    assert answer.status_code == 404
    assert "secret" not in answer.text
    rig.context.agents = None
    async with rig.client(token="") as client:
        assert (await client.get(hs.PATH_AGENT + name)).status_code == 404


def test_the_same_sources_give_the_same_file_and_old_ones_go_after_a_month(tmp_path: Path) -> None:
    first = AgentFiles(tmp_path)
    earlier, ancient = (tmp_path / f"{digit * 64}.pyz" for digit in "ab")
    for path, age_days in ((earlier, 29), (ancient, 31)):
        path.write_bytes(b"older")
        os.utime(path, (time.time() - age_days * 86_400,) * 2)
    again = AgentFiles(tmp_path)
    assert again.sha256 == first.sha256
    assert again.file(earlier.name) == earlier, "a machine that was launched by an older server may still boot"
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([earlier.name, f"{first.sha256}.pyz"])
