"""What ``providers: aws:`` in ``config.yaml`` may say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from everstep.model.errors import BadInput, Problem

GPU_IMAGE = "resolve:ssm:/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
"""AWS's own image with NVIDIA's driver, by its public parameter; EC2 resolves it at launch."""
CPU_IMAGE = "resolve:ssm:/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
_LARGEST_GIB = 16_384
"""Of gp3: https://docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html"""
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")


@dataclass(frozen=True, slots=True)
class Settings:
    """The checked options; ``AwsProvider`` explains them."""

    regions: tuple[str, ...]
    types: tuple[str, ...]
    gpu_image: str = GPU_IMAGE
    cpu_image: str = CPU_IMAGE
    subnets: Mapping[str, str] = field(default_factory=dict)
    security_groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    boot_disk_gib: int = 100
    root_device: str = "/dev/sda1"


def checked(
    *,
    regions: Sequence[str],
    types: Sequence[str],
    images: Mapping[str, str] | None,
    subnets: Mapping[str, str] | None,
    security_groups: Mapping[str, Sequence[str]] | None,
    boot_disk_gib: int = 100,
) -> Settings:
    """The options, or BadInput naming every fault at once."""
    problems = []
    for key, given, example in (("regions", regions, "[us-east-1]"), ("types", types, "[p3.2xlarge, g5.*]")):
        if isinstance(given, str) or not given or not all(map(_is_text, given)):
            problems.append(_problem(key, f"expected a list, found {given!r}", f"write for example {key}: {example}"))
    if not problems:
        problems += [
            _problem("regions", f"{r!r} is no region", "regions look like us-east-1")
            for r in regions
            if not _REGION.fullmatch(r)
        ]
    maps: tuple[tuple[str, object], ...] = (
        ("images", images),
        ("subnets", subnets),
        ("security_groups", security_groups),
    )
    shapeless = [(key, given) for key, given in maps if given is not None and not isinstance(given, Mapping)]
    problems += [_problem(key, f"expected a mapping, found {given!r}", "see docs/aws.md") for key, given in shapeless]
    if shapeless:
        raise BadInput(*problems)
    unknown = set(images or {}) - {"gpu", "cpu"}
    problems += [_problem(f"images.{key}", "unknown key", "known: cpu, gpu") for key in sorted(unknown)]
    for key, group in (security_groups or {}).items():
        if isinstance(group, str):
            problems.append(_problem(f"security_groups.{key}", "expected a list of group ids", f"write [{group}]"))
    if type(boot_disk_gib) is not int or not 1 <= boot_disk_gib <= _LARGEST_GIB:
        fix = f"write a whole number from 1 to {_LARGEST_GIB}; an image needs at least the size it was made with"
        problems.append(_problem("boot_disk_gib", f"expected GiB, found {boot_disk_gib!r}", fix))
    if problems:
        raise BadInput(*problems)
    return Settings(
        regions=tuple(dict.fromkeys(regions)),
        types=tuple(dict.fromkeys(types)),
        gpu_image=(images or {}).get("gpu", GPU_IMAGE),
        cpu_image=(images or {}).get("cpu", CPU_IMAGE),
        subnets=dict(subnets or {}),
        boot_disk_gib=boot_disk_gib,
        security_groups={region: tuple(groups) for region, groups in (security_groups or {}).items()},
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _problem(key: str, message: str, fix: str) -> Problem:
    return Problem("config.yaml", f"providers.aws.{key}", message, fix)
