"""Whose a region or a file is, by its name."""

from __future__ import annotations

import re

CLOUDS = (
    *("aws", "azure", "cudo", "do", "fluidstack", "gcp", "hyperbolic", "ibm", "lambda", "nebius", "oci", "ovhcloud"),
    *("paperspace", "primeintellect", "runpod", "scaleway", "scp", "seeweb", "shadeform", "vast", "vsphere"),
)
"""Clouds that have public catalogs, by the names that these use."""

_REGIONS = (
    ("aws", re.compile(r"[a-z]{2,4}(?:-[a-z]+)+-\d")),
    ("gcp", re.compile(r"[a-z]+-[a-z]+\d{1,2}")),
    ("azure", re.compile(r"[a-z]+\d?")),
)


def cloud_of_region(region: str) -> str:
    """``aws`` for ``us-east-1``, ``gcp`` for ``us-central1``, ``azure`` for ``eastus2``; empty for other names."""
    return next((cloud for cloud, shape in _REGIONS if shape.fullmatch(region)), "")


def cloud_of_file(name: str) -> str:
    """The cloud that the end of a path or URL names: ``v8/aws/vms.csv``, ``gcp_gpu_vms.csv``; empty when none is."""
    for part in re.split(r"[/\\]", name.lower())[-1:-3:-1]:
        for word in re.split(r"[^a-z]+", part):
            if word in CLOUDS:
                return word
    return ""


def region_of_zone(cloud: str, zone: str) -> str:
    """``us-east-1`` of AWS's ``us-east-1a``, ``us-central1`` of GCP's ``us-central1-f``; other zones as they are."""
    if cloud == "aws":
        return re.sub(r"(\d)[a-z]$", r"\1", zone)
    if cloud == "gcp":
        return re.sub(r"-[a-z]$", "", zone)
    return zone
