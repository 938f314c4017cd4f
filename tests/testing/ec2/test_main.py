"""The fake as a program: any client of the vendor's SDK drives it, a line on its standard input breaks it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.agent.conftest import until
from tests.testing.ec2.conftest import client, machine

HELLO = "#!/bin/sh\necho hello > hello\nexec sleep 600\n"


def test_machines_boot_and_are_lost_on_command(tmp_path: Path, leak_guard: str) -> None:
    command = [sys.executable, "-m", "everstep.testing.ec2", "--port", "0", "--boot", "0.1"]
    command += ["--machines", str(tmp_path / "cloud"), "--certificate", str(tmp_path / "cert.pem")]
    fake = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert fake.stdin is not None
    assert fake.stdout is not None
    try:
        ec2 = client(fake.stdout.readline().split()[-1])
        lines = [fake.stdout.readline() for _ in range(3)]
        assert "AWS_ENDPOINT_URL" in lines[0]
        assert "BEGIN CERTIFICATE" in (tmp_path / "cert.pem").read_text()
        made = ec2.run_instances(**machine(spot=True, UserData=HELLO))["Instances"][0]["InstanceId"]
        hello = tmp_path / "cloud" / "machines" / made / "root" / "hello"
        until(hello.exists, "what the user data does")
        for line in ("make coffee\n", "lose i-0\n", f"lose {made}\n"):
            fake.stdin.write(line)
            fake.stdin.flush()
            lines.append(fake.stdout.readline())
        assert lines[3] == "one of interrupt, lose, hang, reboot, rebalance, and an instance\n"
        assert lines[4] == "cannot lose i-0: 'i-0'\n"
        assert lines[5] == f"lose {made}\n"
        until(lambda: not hello.parent.exists(), "the end of its disk")
        (reservation,) = until(lambda: ec2.describe_instances()["Reservations"], "a list that shows it")
        assert reservation["Instances"][0]["StateReason"]["Code"] == "Server.InternalError"
    finally:
        fake.send_signal(2)
        rest, _ = fake.communicate(timeout=30)
    assert rest.strip() == "still there: nothing"
    assert fake.returncode == 0
