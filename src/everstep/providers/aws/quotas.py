"""How many virtual CPUs the account may hold in a region: one quota per family of machine types and market.

The families and their names: https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html and
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-spot-limits.html. The codes are the same in every region:
``aws service-quotas list-service-quotas --service-code ec2``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from everstep.model.offers import Market
from everstep.providers.aws.calls import Calls

_CODES: Mapping[str, tuple[str, str]] = {
    # Family: code on demand, code of spot.
    "DL": ("L-6E869C2A", "L-85EED4F7"),
    "F": ("L-74FC7D96", "L-88CF9481"),
    "G and VT": ("L-DB2E81BA", "L-3819A6DF"),
    "Inf": ("L-1945791B", "L-B5D1601B"),
    "P": ("L-417A185B", "L-7212CCBC"),
    "Standard": ("L-1216C47A", "L-34B43A08"),
    "Trn": ("L-2C3B7624", "L-5480EFD2"),
    "X": ("L-7295265B", "L-E3A00192"),
}
_FAMILIES = {"dl": "DL", "f": "F", "g": "G and VT", "vt": "G and VT", "inf": "Inf", "p": "P", "trn": "Trn", "x": "X"}
_STANDARD = frozenset("acdhimrtz")
ALL = tuple(_CODES)


@dataclass(frozen=True, slots=True)
class Quota:
    """A quota: its family (``G and VT``), market and code."""

    family: str
    market: Market
    code: str

    def __str__(self) -> str:
        """``G and VT, spot``."""
        return f"{self.family}, {self.market.value.replace('_', ' ')}"


def quota_of(machine_type: str, market: Market) -> Quota | None:
    """The quota that a machine counts against; None for a family that is not known."""
    found = re.match(r"[a-z]+", machine_type)
    letters = found[0] if found else ""
    family = _FAMILIES.get(letters, "Standard" if letters[:1] in _STANDARD else "")
    return Quota(family, market, code_of_family(family, market)) if family else None


def code_of_family(family: str, market: Market) -> str:
    """``L-3819A6DF``."""
    return _CODES[family][1 if market is Market.SPOT else 0]


async def limits(calls: Calls, region: str) -> dict[str, float]:
    """Virtual CPUs by code; a code that is missing is one the account's list does not tell."""
    codes = {code for pair in _CODES.values() for code in pair}
    listed = await calls.quotas(region, ServiceCode="ec2", MaxResults=100)
    return {q["QuotaCode"]: float(q["Value"]) for q in listed if q.get("QuotaCode") in codes and "Value" in q}


def how_to_raise(quota: Quota, region: str, vcpus: float) -> str:
    """The command that asks for more."""
    ask = "aws service-quotas request-service-quota-increase --service-code ec2"
    return f"{ask} --quota-code {quota.code} --desired-value {vcpus:.0f} --region {region}"
