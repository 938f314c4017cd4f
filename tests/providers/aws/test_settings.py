from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from everstep.client.home import Home
from everstep.model.errors import BadInput
from everstep.providers import load
from everstep.providers.aws import AwsProvider
from everstep.server import daemon
from everstep.server.options import parse


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"regions": "us-east-1"},
            "regions: expected a list, found 'us-east-1'; write for example regions: [us-east-1]",
        ),
        ({"regions": []}, "regions: expected a list, found []"),
        ({"regions": ["mars"]}, "regions: 'mars' is no region; regions look like us-east-1"),
        ({"types": [3]}, "types: expected a list, found [3]; write for example types: [p3.2xlarge, g5.*]"),
        ({"boot_disk_gib": 0}, "boot_disk_gib: expected GiB, found 0; write a whole number from 1 to 16384"),
        ({"boot_disk_gib": "8"}, "boot_disk_gib: expected GiB, found '8'"),
        ({"images": {"tpu": "ami-1"}}, "images.tpu: unknown key; known: cpu, gpu"),
        ({"images": "ami-1"}, "images: expected a mapping, found 'ami-1'; see docs/aws.md"),
        ({"subnets": ["subnet-1"]}, "subnets: expected a mapping, found ['subnet-1']"),
        ({"security_groups": ["sg-1"]}, "security_groups: expected a mapping, found ['sg-1']"),
        ({"security_groups": {"us-east-1": "sg-1"}}, "security_groups.us-east-1: expected a list of group ids"),
    ],
)
def test_faults_are_one_line(options: dict[str, Any], text: str) -> None:
    with pytest.raises(BadInput) as caught:
        AwsProvider(**{"regions": ["us-east-1"], "types": ["g5.*"], **options})
    assert str(caught.value).startswith(f"config.yaml: providers.aws.{text}")


def test_it_is_registered_and_imports_no_sdk() -> None:
    assert load("aws", found=()) is AwsProvider
    program = (
        "import sys, everstep.providers.aws\n"
        "everstep.providers.aws.AwsProvider(['us-east-1'], ['g5.*'])\n"
        "assert not {'boto3', 'botocore', 'moto'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_boto3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "everstep.providers.aws.provider.find_spec", lambda name: None if name == "boto3" else real(name)
    )
    with pytest.raises(BadInput, match=r"needs boto3, which is not installed; pip install 'everstep\[aws\]'"):
        AwsProvider(["us-east-1"], ["g5.*"])


def test_a_server_learns_of_it_from_its_configuration(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.config_file.write_text("providers: {aws: {regions: [us-east-1], types: [g5.xlarge, 'p4d.*']}}\n")
    options = parse(["--home", str(tmp_path)])
    (provider,) = daemon.make_providers(options).values()
    assert isinstance(provider, AwsProvider)
    assert provider.settings.types == ("g5.xlarge", "p4d.*")
    home.config_file.write_text("providers: {aws: {regions: [us-east-1], type: [g5.xlarge]}}\n")
    with pytest.raises(BadInput, match=r"providers\.aws\.type: unknown key; did you mean 'types'\?") as told:
        daemon.make_providers(parse(["--home", str(tmp_path)]))
    assert "providers.aws: types is missing" in str(told.value)
