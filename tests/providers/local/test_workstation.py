from __future__ import annotations

import os
from pathlib import Path

import pytest

from everstep.providers.local.workstation import accelerator_name, gpus, parse_nvidia_smi, this_computer


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla T4", "T4"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA RTX A6000", "RTXA6000"),
        ("NVIDIA L4", "L4"),
        ("", "GPU"),
    ],
)
def test_canonical_names(product: str, name: str) -> None:
    assert accelerator_name(product) == name


def test_the_most_frequent_gpu_counts() -> None:
    text = "NVIDIA L4, 23034\nTesla T4, 15360\nTesla T4, 15360\n"
    assert parse_nvidia_smi(text) == ("T4", 2)
    assert parse_nvidia_smi("No devices were found\n") == ("", 0)


def fake_nvidia_smi(folder: Path, body: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


def test_a_workstation_with_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi(tmp_path, 'echo "NVIDIA H200, 143771"; echo "NVIDIA H200, 143771"')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    machine = this_computer("this-computer")
    assert (machine.accelerator, machine.accelerator_count) == ("H200", 2)
    assert machine.cpus == len(os.sched_getaffinity(0))
    assert machine.memory_gib > 0


def test_a_driver_that_does_not_answer_means_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi(tmp_path, "echo 'Driver/library version mismatch, 1'; exit 18")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus() == ("", 0)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert gpus() == ("", 0)
