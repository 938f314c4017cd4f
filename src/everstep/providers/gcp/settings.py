"""What ``providers: gcp:`` in ``config.yaml`` may say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from everstep.model.errors import BadInput, Problem

GPU_IMAGE = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accelerator-2404-amd64-with-nvidia-580"
"""Ubuntu with NVIDIA's driver: https://docs.cloud.google.com/compute/docs/images/os-details."""
CPU_IMAGE = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64"
DISK_TYPES = ("pd-balanced", "pd-ssd", "pd-standard")
_REGION = re.compile(r"[a-z]+-[a-z]+\d+")
_PROJECT = re.compile(r"(?:[-a-z0-9.]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]")
_IMAGE = re.compile(r"(?:https://\S+/)?projects/[^/\s]+/global/images/(?:family/)?[^/\s]+")
_TYPE = re.compile(r"[a-z0-9*?-]+(?:\+[A-Za-z0-9-]+:\d+)?")


@dataclass(frozen=True, slots=True)
class Settings:
    """The checked options; ``GcpProvider`` explains them."""

    project: str
    regions: tuple[str, ...]
    types: tuple[str, ...]
    gpu_image: str = GPU_IMAGE
    cpu_image: str = CPU_IMAGE
    subnetworks: Mapping[str, str] = field(default_factory=dict)
    network: str = "global/networks/default"
    external_address: bool = True
    service_account: str = "default"
    disk_type: str = "pd-balanced"
    boot_disk_gib: int = 50
    keep: str = "volume"
    legacy_preemptible: bool = False
    compact_placement: bool = True


def checked(
    *,
    project: str,
    regions: Sequence[str],
    types: Sequence[str],
    images: Mapping[str, str] | None,
    subnetworks: Mapping[str, str] | None,
    external_address: bool,
    service_account: str,
    disk_type: str,
    boot_disk_gib: object,
    keep: str,
    legacy_preemptible: bool,
    compact_placement: bool,
) -> Settings:
    """The options, or BadInput naming every fault at once."""
    problems = []
    if not _is_text(project) or not _PROJECT.fullmatch(project):
        problems.append(_problem("project", f"{project!r} is no project id", "see: gcloud projects list"))
    problems += _faults_of_lists(regions, types)
    for key, image in (images or {}).items():
        if key not in ("gpu", "cpu"):
            problems.append(_problem(f"images.{key}", "unknown key", "known: cpu, gpu"))
        elif not _IMAGE.fullmatch(str(image)):
            fix = "images look like projects/PROJECT/global/images/family/FAMILY"
            problems.append(_problem(f"images.{key}", f"{image!r} is no image", fix))
    if disk_type not in DISK_TYPES:
        problems.append(_problem("disk_type", f"unknown type {disk_type!r}", f"known: {', '.join(DISK_TYPES)}"))
    if not isinstance(boot_disk_gib, int) or not 10 <= boot_disk_gib <= 65_536:
        problems.append(
            _problem("boot_disk_gib", f"{boot_disk_gib!r} is no size", "from 10 to 65536, as the image needs")
        )
    if keep not in ("volume", "boot_disk"):
        problems.append(_problem("keep", f"unknown value {keep!r}", "known: volume, boot_disk"))
    if problems:
        raise BadInput(*problems)
    return Settings(
        project=project,
        regions=tuple(dict.fromkeys(regions)),
        types=tuple(dict.fromkeys(types)),
        gpu_image=(images or {}).get("gpu", GPU_IMAGE),
        cpu_image=(images or {}).get("cpu", CPU_IMAGE),
        subnetworks=dict(subnetworks or {}),
        external_address=external_address,
        service_account=service_account,
        disk_type=disk_type,
        boot_disk_gib=int(str(boot_disk_gib)),
        keep=keep,
        legacy_preemptible=legacy_preemptible,
        compact_placement=compact_placement,
    )


def _faults_of_lists(regions: Sequence[str], types: Sequence[str]) -> list[Problem]:
    problems = []
    examples = (("regions", regions, "[us-central1]"), ("types", types, '["g2-standard-8", "n1-standard-8+T4:1"]'))
    for key, given, example in examples:
        if isinstance(given, str) or not given or not all(map(_is_text, given)):
            problems.append(_problem(key, f"expected a list, found {given!r}", f"write for example {key}: {example}"))
    if not problems:
        problems += [
            _problem("regions", f"{r!r} is no region", "regions look like us-central1")
            for r in regions
            if not _REGION.fullmatch(r)
        ]
        problems += [
            _problem("types", f"{t!r} is no machine type", "types look like g2-standard-8 or n1-standard-8+T4:1")
            for t in types
            if not _TYPE.fullmatch(t)
        ]
    return problems


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _problem(key: str, message: str, fix: str) -> Problem:
    return Problem("config.yaml", f"providers.gcp.{key}", message, fix)
