"""This computer as a machine type: its real CPUs, memory and GPUs."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from collections import Counter

from everstep.model.offers import MachineType

_NVIDIA_SMI = ("--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
#: A laptop's driver may take seconds to wake the card; a hung one must not hold up the box.
_NVIDIA_SMI_TIMEOUT_S = 20.0


def accelerator_name(product: str) -> str:
    """Canonical name of a GPU: ``Tesla V100-SXM2-16GB`` is ``V100``, ``NVIDIA GeForce RTX 4090`` is ``RTX4090``.

    The 80 GB form of the A100 keeps its size (``A100-80GB``), since it is rented as another accelerator.
    """
    text = re.sub(r"\b(NVIDIA|Tesla|Quadro|GeForce|Graphics|Device)\b", " ", product, flags=re.IGNORECASE)
    text = re.sub(r"\bRTX\s+(?=\w*\d)", "RTX", " ".join(text.split()))
    words = re.split(r"[\s]+", text.strip())
    first = re.split(r"-(?=SXM|PCI|NVL|\d+GB|\d+C)", words[0])[0] if words and words[0] else "GPU"
    if first == "A100" and "80GB" in product.upper().replace(" ", ""):
        return "A100-80GB"
    return first


def parse_nvidia_smi(text: str) -> tuple[str, int]:
    """Name and number of the most frequent GPU in ``name, memory`` lines; ``("", 0)`` if there is none."""
    names = [
        accelerator_name(row[0]) for row in csv.reader(text.splitlines()) if len(row) == 2 and row[1].strip().isdigit()
    ]
    return Counter(names).most_common(1)[0] if names else ("", 0)


def gpus() -> tuple[str, int]:
    """What nvidia-smi shows; ``("", 0)`` without it or when the driver does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "", 0
    try:
        done = subprocess.run(
            [program, *_NVIDIA_SMI], capture_output=True, text=True, timeout=_NVIDIA_SMI_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "", 0
    return parse_nvidia_smi(done.stdout) if done.returncode == 0 else ("", 0)


def this_computer(name: str) -> MachineType:
    """The machine type of this computer; CPUs are those this process may use."""
    accelerator, count = gpus()
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return MachineType(name, accelerator, count, float(len(os.sched_getaffinity(0))), round(memory_gib, 2))
