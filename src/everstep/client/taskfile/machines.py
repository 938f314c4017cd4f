"""The ``resources`` section: its kinds of value, and how alternatives become one `MachineRequirement`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from everstep.client.taskfile.kinds import PATH, SCALARS, custom
from everstep.client.taskfile.nodes import Node
from everstep.client.taskfile.reading import Got, Mismatch, Scope, Section, closest, nearest
from everstep.model import units
from everstep.model.offers import AcceleratorWish, MachineRequirement
from everstep.model.task import SpotMode

Place = tuple[str, str, str]

MAX_ACCELERATORS = 1024
MAX_CPUS = 100_000
BUILT_IN = ("local", "aws", "gcp")
OTHER_CLOUDS = frozenset(
    [
        *("azure", "cudo", "do", "fluidstack", "hyperbolic", "ibm", "lambda", "nebius", "oci", "paperspace"),
        *("primeintellect", "runpod", "scp", "seeweb", "shadeform", "slurm", "ssh", "vast", "vsphere"),
    ]
)
"""Names that are no slip of the pen, though nothing of ours is behind them."""
KUBERNETES = ("k8s", "kubernetes")

_ACCELERATOR = re.compile(r"([A-Za-z][A-Za-z0-9._-]*)(?:\s*:\s*([^\s:]+))?")
_COUNT = re.compile(r"[1-9][0-9]{0,3}")
_CPUS = re.compile(r"([0-9]+(?:\.[0-9]+)?)(\+?)")
_PER_CPU = re.compile(r"([0-9]+(?:\.[0-9]+)?)[xX]\+?")

ACCELERATORS_EXPECTED = (
    "an accelerator such as A100:8, a mapping {A100: 8, V100: 8} (any of them) "
    "or a list [A100:8, V100:8] (in that order)"
)
_COUNT_EXPECTED = f"a whole number of accelerators from 1 to {MAX_ACCELERATORS}"
CPUS_EXPECTED = "a number of CPUs such as 4, or 4+ for at least 4"
MEMORY_EXPECTED = "memory in GiB such as 32, 32+ or 64GB+, or 4x for 4 GiB per CPU"
INFRA_EXPECTED = "PROVIDER, PROVIDER/REGION or PROVIDER/REGION/ZONE such as aws/us-east-1, with * for any"


@dataclass(frozen=True, slots=True)
class Bound:
    """At least ``least``, or exactly ``exact``, or (memory) at least ``per_cpu`` for each CPU."""

    least: float | None = None
    exact: float | None = None
    per_cpu: float | None = None


@dataclass(frozen=True, slots=True)
class Wishes:
    """Accelerators, any of which will do; ``ordered``: the first is liked best."""

    any_of: tuple[AcceleratorWish, ...]
    ordered: bool


# --- kinds ---------------------------------------------------------------------------------------------------------


def _count(text: str, shown: str) -> int:
    # YAML reads `A100: 8.0` as a number that is whole all the same.
    plain = text.removesuffix(".0")
    if not _COUNT.fullmatch(plain) or int(plain) > MAX_ACCELERATORS:
        raise Mismatch(f"expected {_COUNT_EXPECTED}, found {shown}")
    return int(plain)


def _wish(text: str, shown: str) -> AcceleratorWish:
    found = _ACCELERATOR.fullmatch(text.strip())
    if found is None:
        raise Mismatch(f"expected {ACCELERATORS_EXPECTED}, found {shown}")
    return AcceleratorWish(found[1], _count(found[2], shown) if found[2] else 1)


def _accelerators(node: Node, scope: Scope) -> Wishes:
    if node.kind == "text":
        return Wishes((_wish(node.text, node.shown),), ordered=False)
    wishes: list[AcceleratorWish] = []
    if node.kind == "map" and node.entries:
        for name, entry in node.entries.items():
            wishes += _try_wish(name, entry.value, scope)
    elif node.kind == "list" and node.items:
        for index, item in enumerate(node.items):
            if item.kind in SCALARS:
                wishes += _try_wish(item.text, None, scope.item(index), where=item.where)
            else:
                scope.item(index).wrong(item, f"expected an accelerator such as A100:8, found {item.shown}")
    else:
        raise Mismatch(f"expected {ACCELERATORS_EXPECTED}, found {node.shown}")
    return Wishes(tuple(dict.fromkeys(wishes)), ordered=node.kind == "list" and len(wishes) > 1)


def _try_wish(name: str, count: Node | None, scope: Scope, *, where: str = "") -> Iterator[AcceleratorWish]:
    try:
        if count is None or count.kind == "null":  # {A100:8, V100:8} is a YAML set: keys without values
            yield _wish(name, f"'{name}'")
        elif ":" in name:
            raise Mismatch("expected the count once, as in A100: 8")
        else:
            yield replace(_wish(name, f"'{name}'"), count=_count(count.text, count.shown))
    except Mismatch as mismatch:
        inner = scope if count is None else scope.at(name)
        scope.report.problem(where or (count.where if count else ""), inner.key, mismatch.message, mismatch.fix)


def _cpus(node: Node, _scope: Scope) -> Bound:
    found = _CPUS.fullmatch(node.text) if node.kind in ("text", "int", "float") else None
    if found is None or not 0 < float(found[1]) <= MAX_CPUS:
        raise Mismatch(f"expected {CPUS_EXPECTED}, found {node.shown}")
    return Bound(least=float(found[1])) if found[2] else Bound(exact=float(found[1]))


def _memory(node: Node, _scope: Scope) -> Bound:
    wrong = Mismatch(f"expected {MEMORY_EXPECTED}, found {node.shown}")
    if node.kind not in ("text", "int", "float"):
        raise wrong
    per_cpu = _PER_CPU.fullmatch(node.text)
    if per_cpu:
        if not 0 < float(per_cpu[1]) <= 10_000:
            raise wrong
        return Bound(per_cpu=float(per_cpu[1]))
    try:
        gib = units.parse_size(node.text.removesuffix("+"), unit="GiB") / 2**30
    except ValueError:
        raise wrong from None
    if not 0 < gib <= 2**20:
        raise wrong
    return Bound(least=gib) if node.text.endswith("+") else Bound(exact=gib)


def _infra(node: Node, scope: Scope) -> Place:
    parts = node.text.strip().split("/") if node.kind == "text" else []
    if parts and parts[0].lower() in KUBERNETES:
        raise Mismatch("Kubernetes is not supported", "leave infra out, or choose local, aws or gcp")
    if not 1 <= len(parts) <= 3 or not all(re.fullmatch(r"\*|[A-Za-z0-9][A-Za-z0-9._-]*", p) for p in parts):
        raise Mismatch(f"expected {INFRA_EXPECTED}, found {node.shown}")
    provider, region, zone = ["" if p == "*" else p for p in [*parts, "", ""][:3]]
    return _provider(provider, node, scope), region, zone


def _provider(name: str, node: Node, scope: Scope) -> str:
    lowered = name.lower()
    if lowered in ("", *BUILT_IN):
        return lowered
    if lowered not in OTHER_CLOUDS:
        hint = nearest(lowered, BUILT_IN)
        if hint.startswith("did"):
            raise Mismatch(f"unknown provider '{name}'", hint)
    near = "" if lowered in OTHER_CLOUDS else closest(lowered, OTHER_CLOUDS)
    hint = f"; did you mean '{near}'?" if near else ""
    scope.report.warn(
        node.where,
        scope.key,
        f"'{name}' is not built in ({', '.join(BUILT_IN)} are): a plugin on the server must provide it{hint}",
    )
    return lowered


def _cloud(node: Node, scope: Scope) -> str:
    if node.kind != "text" or "/" in node.text:
        raise Mismatch(
            f"expected the name of a provider such as aws, found {node.shown}", "region and zone have their own keys"
        )
    return _infra(node, scope)[0]


def _alternatives(node: Node, scope: Scope) -> tuple[Section, ...]:
    if node.kind != "list" or not node.items:
        found = "an empty list" if node.kind == "list" else node.shown
        raise Mismatch(f"expected a list of resources such as [{{infra: aws}}, {{infra: gcp}}], found {found}")
    return tuple(scope.item(i).section(item, "alternative") for i, item in enumerate(node.items))


_ACCELERATORS_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "object", "additionalProperties": {"type": ["number", "null"]}, "minProperties": 1},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
    ]
}
_STRING_OR_NUMBER = {"type": ["string", "number"]}
ACCELERATORS = custom(ACCELERATORS_EXPECTED, _accelerators, _ACCELERATORS_SCHEMA)
CPUS = custom(CPUS_EXPECTED, _cpus, _STRING_OR_NUMBER)
MEMORY = custom(MEMORY_EXPECTED, _memory, _STRING_OR_NUMBER)
INFRA = custom(INFRA_EXPECTED, _infra, {"type": "string"})
CLOUD = custom("the name of a provider", _cloud, {"type": "string"})
TYPE_NAME = PATH
ALTERNATIVES = custom(
    "a list of resources", _alternatives, {"type": "array", "items": {"$ref": "#/$defs/alternative"}, "minItems": 1}
)


# --- one requirement -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Machines:
    """What ``resources`` says about machines."""

    machine: MachineRequirement
    spot: SpotMode
    max_price_usd_per_h: float | None


_ANY: frozenset[Any] = frozenset()
"""An empty set stands for "whatever there is"."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """One alternative. The first four may differ between alternatives, the rest may not."""

    accelerators: tuple[AcceleratorWish, ...]
    places: tuple[Place, ...]
    types: tuple[str, ...]
    markets: tuple[str, ...]
    ordered: bool
    rest: MachineRequirement
    max_price: float | None


def machines(resources: Section, scope: Scope) -> Machines:
    """The requirement that ``resources`` asks for; what cannot be expressed is reported to ``scope``."""
    outer = {k: v for k, v in resources.items() if k not in ("any_of", "ordered")}
    lists = [resources[k] for k in ("any_of", "ordered") if k in resources]
    if len(lists) == 2:
        scope.report.problem(
            lists[1].where, lists[1].key, "any_of and ordered exclude each other", "keep one of the two"
        )
    if not lists:
        return _one(_choice(outer, scope))
    for inner in lists[0].value:
        for name in _COMMON_KEYS & inner.keys():
            message = "is the same for all alternatives"
            scope.report.problem(inner[name].where, inner[name].key, message, f"write it directly under {scope.key}")
    choices = [_choice(_overridden(outer, inner), scope) for inner in lists[0].value]
    return _merged(choices, lists[0], scope, ordered="ordered" in resources)


_COMMON_KEYS = frozenset(["ranks_per_node", "labels", "job_recovery"])
_PLACE_KEYS = ("infra", "cloud", "region", "zone")


def _overridden(outer: Section, inner: Section) -> Section:
    """The inner keys win; a place given inside replaces the whole place outside, and likewise spot."""
    drop: set[str] = set()
    for group in (_PLACE_KEYS, ("spot", "use_spot")):
        if any(k in inner for k in group):
            drop.update(group)
    return {**{k: v for k, v in outer.items() if k not in drop}, **inner}


def _choice(given: Section, scope: Scope) -> _Choice:
    def value(name: str, default: Any) -> Any:
        return given[name].value if name in given else default

    wishes: Wishes = value("accelerators", Wishes((), ordered=False))
    cpus: Bound = value("cpus", Bound())
    memory: Bound = value("memory", Bound())
    place = _place(given, scope)
    return _Choice(
        accelerators=wishes.any_of,
        places=(place,) if any(place) else (),
        types=(given["instance_type"].value,) if "instance_type" in given else (),
        markets=_markets(given),
        ordered=wishes.ordered,
        rest=MachineRequirement(
            cpus_min=cpus.least,
            cpus_exact=cpus.exact,
            memory_gib_min=memory.least,
            memory_gib_exact=memory.exact,
            memory_per_cpu_min=memory.per_cpu,
            disk_gib=value("disk_size", None),
        ),
        max_price=value("max_price", None),
    )


def _markets(given: Section) -> tuple[str, ...]:
    got = given.get("spot")
    return {"true": ("spot",), "false": ("on_demand",)}.get(str(got.value).lower() if got else "auto", ())


def _place(given: Section, scope: Scope) -> Place:
    older = [given[k] for k in ("cloud", "region", "zone") if k in given]
    if "infra" in given:
        for got in older:
            scope.report.problem(
                got.where, got.key, f"says the same as {given['infra'].key}", "write the place in infra alone"
            )
        place: Place = given["infra"].value
        return place
    cloud, region, zone = (given[k].value if k in given else "" for k in ("cloud", "region", "zone"))
    return cloud, region.replace("*", ""), zone.replace("*", "")


_SPOT_OF: dict[tuple[str, ...], SpotMode] = {("spot",): SpotMode.TRUE, ("on_demand",): SpotMode.FALSE}


def _one(choice: _Choice) -> Machines:
    machine = replace(
        choice.rest,
        accelerators=choice.accelerators,
        ordered=choice.ordered,
        places=choice.places,
        machine_types=choice.types,
    )
    return Machines(machine, _SPOT_OF.get(choice.markets, SpotMode.AUTO), choice.max_price)


def _merged(choices: list[_Choice], got: Got, scope: Scope, *, ordered: bool) -> Machines:
    first = choices[0]
    if any(c.rest != first.rest or c.max_price != first.max_price for c in choices):
        scope.report.problem(
            got.where,
            got.key,
            "the alternatives differ in cpus, memory, disk_size or max_price, which everstep cannot combine yet",
            "give these the same value everywhere",
        )
        return _one(first)
    union = {d: _union([getattr(c, d) for c in choices]) for d in _DIMENSIONS}
    if not _is_product(choices, union):
        scope.report.problem(
            got.where,
            got.key,
            "these alternatives are not every combination of their accelerators, places, types and markets",
            "keep one of the lists the same in all alternatives, or submit several jobs",
        )
    if ordered and len({c.accelerators for c in choices}) < len(choices):
        scope.report.warn(
            got.where,
            got.key,
            "only the order of accelerators is kept; among the rest the selector chooses by price and risk",
        )
    merged = _Choice(
        accelerators=union["accelerators"],
        places=union["places"],
        types=union["types"],
        markets=union["markets"],
        ordered=len(union["accelerators"]) > 1 and (ordered or any(c.ordered for c in choices)),
        rest=first.rest,
        max_price=first.max_price,
    )
    return _one(merged)


_DIMENSIONS = ("accelerators", "places", "types", "markets")


def _union(values: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    if not all(values):
        return ()
    union = tuple(dict.fromkeys(v for value in values for v in value))
    return () if set(union) == {"spot", "on_demand"} else union


def _is_product(choices: list[_Choice], union: dict[str, tuple[Any, ...]]) -> bool:
    """Whether the union of the alternatives is the product of their unions: only then one requirement says the same."""
    axes = [union[d] or (("spot", "on_demand") if d == "markets" else (None,)) for d in _DIMENSIONS]
    if len(axes[0]) * len(axes[1]) * len(axes[2]) * len(axes[3]) > 100_000:
        return False
    return all(
        any(
            all(not getattr(c, d) or part in getattr(c, d) for d, part in zip(_DIMENSIONS, combination, strict=True))
            for c in choices
        )
        for combination in itertools.product(*axes)
    )
