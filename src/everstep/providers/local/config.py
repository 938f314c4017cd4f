"""What a cloud in a box offers: zones, machine types, prices, times, faults; read from YAML and checked key by key.

``EXAMPLE_CONFIG`` shows every key.
"""

from __future__ import annotations

import difflib
import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from everstep.model.errors import PROVIDER_ERRORS, BadInput, Problem
from everstep.model.offers import BillingRule, MachineType, Market
from everstep.providers.local.trace import AfterTrace, Trace, read_trace

DEFAULT_CONFIG = """\
# This computer, as it is: its real CPUs, memory and GPUs, one machine, never preempted, free of charge.
zones:
  here:
    region: this-computer
    static: {capacity: 1, usd_per_h: 0}
"""

EXAMPLE_CONFIG = """\
trace_hour_s: 10              # one hour of market time lasts 10 s; 3600 (the default) is real time
trace_start: first_launch     # or daemon_start (the default): when the traces begin to play
after_trace: hold             # or loop: what follows the last tick
boot_s: 1                     # seconds of the clock, as the next four
notice_s: 6                   # between the notice and the kill
max_life_s: 86400             # spot machines end after that; none by default
stop_grace_s: 5               # between SIGTERM for the agent and the kill when the owner terminates
restart_agent_s: 1            # an agent that died is started again after that; null = never
preempt_order: newest         # or oldest
quota: 20                     # live machines of the account; none by default
disk_usd_per_gib_h: 0.0001    # volumes; a machine's own disk is part of its price
billing: {granularity_s: 1, minimum_s: 60, free_if_reclaimed_within_s: 0}   # market seconds
machines:
  p3.2xlarge: {cpus: 8, memory_gib: 61, accelerator: V100, accelerator_count: 1, prices: {on_demand: 3.06}}
  c5.large: {cpus: 2, memory_gib: 4, prices: {on_demand: 0.085, spot: 0.03}}   # without spot: as the trace says
zones:
  us-east-1a:
    region: us-east-1
    machines: [c5.large]      # all of them by default
    spot: {capacity: 4}       # shared by the machine types of the zone
    on_demand: {capacity: 10} # without limit by default
  us-east-1b:
    region: us-east-1
    spot: {trace: us-east-1b.json, offset_h: 0, after_trace: loop}   # path relative to this file
  here:
    static: {capacity: 1, usd_per_h: 0}    # this computer itself
fail:                         # launches that match fail so many times; error: kind of a ProviderError
  - {zone: us-east-1a, market: spot, machine: c5.large, error: no_capacity, times: 2, retry_after_s: 1}
"""

#: Name of the machine type that stands for the workstation itself.
THIS_COMPUTER = "this-computer"


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """A machine type with its list prices, USD per market hour; no spot price = only what a trace says."""

    machine: MachineType
    on_demand_usd_per_h: float
    spot_usd_per_h: float | None


@dataclass(frozen=True, slots=True)
class Supply:
    """How many machines of a market a zone has; ``capacity`` None = without limit, unless a trace says."""

    capacity: int | None = None
    trace: Trace | None = None
    usd_per_h: float = 0.0


@dataclass(frozen=True, slots=True)
class Zone:
    """A place with its machine types (names) and what it has of each market."""

    name: str
    region: str
    machines: tuple[str, ...]
    supply: Mapping[Market, Supply]


@dataclass(frozen=True, slots=True)
class LaunchFault:
    """The next ``times`` launches that match fail; empty fields match anything."""

    error: str
    times: int = 1
    zone: str = ""
    market: str = ""
    machine: str = ""
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class BoxConfig:
    """A validated configuration.

    ``boot_s``, ``notice_s``, ``max_life_s``, ``stop_grace_s`` and ``restart_agent_s`` are seconds of the clock,
    because real processes live through them; traces, prices and the billing rule speak in market time.

    Attributes:
        digest: of the text and of every trace; another digest is another market, whose traces start from the beginning.
        restart_agent_s: pause before an agent that died is started again, as an init system would; None = never.
        quota: live machines this account may hold; None = any number.
    """

    digest: str
    zones: Mapping[str, Zone]
    machines: Mapping[str, MachineSpec]
    billing: BillingRule
    faults: tuple[LaunchFault, ...] = ()
    trace_from_first_launch: bool = False
    boot_s: float = 0.0
    notice_s: float = 120.0
    max_life_s: float | None = None
    stop_grace_s: float = 5.0
    restart_agent_s: float | None = 1.0
    preempt_oldest: bool = False
    disk_usd_per_gib_h: float = 0.0
    quota: int | None = None
    agent_argv: tuple[str, ...] = ()


def read_config(path: Path | None) -> BoxConfig:
    """Reads a configuration; None = the embedded default (this computer).

    Raises:
        BadInput: every fault found in the file, one line each.
    """
    if path is None:
        return parse_config(DEFAULT_CONFIG, where="(default configuration)", folder=Path())
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(Problem(str(path), "", f"cannot be read: {error.strerror}", "check the path")) from None
    except UnicodeDecodeError:
        raise BadInput(Problem(str(path), "", "is not a text file in UTF-8", "write it again as YAML")) from None
    return parse_config(text, where=str(path), folder=path.parent)


def parse_config(text: str, *, where: str, folder: Path) -> BoxConfig:
    """Checks a configuration; ``where`` names it in messages, trace paths are relative to ``folder``."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be parsed"
        raise BadInput(Problem(f"{where}{line}", "", f"is not YAML: {problem}", "")) from None
    reader = _Reader(where, folder, hashlib.sha256(text.encode()))
    config = reader.box(document)
    if reader.problems or config is None:
        raise BadInput(*reader.problems)
    return config


_TOP = (
    "zones", "machines", "billing", "fail", "trace_hour_s", "trace_start", "after_trace", "boot_s", "notice_s",
    "max_life_s", "stop_grace_s", "restart_agent_s", "preempt_order", "disk_usd_per_gib_h", "quota", "agent_argv",
)  # fmt: skip
_MACHINE = ["cpus", "memory_gib", "accelerator", "accelerator_count", "prices"]
_BILLING = ["granularity_s", "minimum_s", "free_if_reclaimed_within_s"]
_FAIL = ["zone", "market", "machine", "error", "times", "retry_after_s"]
_ABOVE_ZERO = "expected a number above 0"
_ZERO_OR_MORE = "expected a number, 0 or more"


class _Reader:
    """Walks the document and collects every problem instead of stopping at the first."""

    def __init__(self, where: str, folder: Path, digest: Any) -> None:
        self.where = where
        self.folder = folder
        self.digest = digest
        self.problems: list[Problem] = []

    def bad(self, key: str, message: str, fix: str = "") -> None:
        self.problems.append(Problem(self.where, key, message, fix))

    def mapping(self, value: Any, key: str, allowed: Collection[str] | None = None) -> dict[str, Any]:
        """``value`` as a mapping; unknown keys are reported with the nearest valid one."""
        if not isinstance(value, dict):
            self.bad(key, f"expected a mapping, found {_shown(value)}")
            return {}
        for name in value:
            if allowed is not None and name not in allowed:
                near = difflib.get_close_matches(str(name), allowed, 1)
                fix = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(allowed)}"
                self.bad(_join(key, name), "unknown key", fix)
        return {str(name): item for name, item in value.items()}

    def number(self, data: dict[str, Any], prefix: str, name: str, default: Any, *, least: float = 0.0) -> Any:
        value = data.get(name, default)
        if value is None or value is default:
            return default
        ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not ok or value < least or (least > 0 and value == 0):
            self.bad(_join(prefix, name), f"{_ABOVE_ZERO if least > 0 else _ZERO_OR_MORE}, found {_shown(value)}")
            return default
        return float(value)

    def whole(self, data: dict[str, Any], prefix: str, name: str, default: Any, *, least: int = 0) -> Any:
        value = data.get(name, default)
        if value is None or value is default:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self.bad(_join(prefix, name), f"expected a whole number, {least} or more, found {_shown(value)}")
            return default
        return value

    def choice(self, data: dict[str, Any], prefix: str, name: str, options: Collection[str], default: str) -> str:
        value = data.get(name, default)
        if value not in options:
            near = difflib.get_close_matches(str(value), options, 1)
            fix = f"did you mean {near[0]!r}?" if near else f"one of: {', '.join(options)}"
            self.bad(_join(prefix, name), f"{_shown(value)} is not known", fix)
            return default
        return str(value)

    # --- the parts ---------------------------------------------------------------------------------------------------

    def box(self, document: Any) -> BoxConfig | None:
        data = self.mapping(document, "", _TOP)
        if not data:
            self.bad("zones", "there are no zones", "give at least one zone")
            return None
        hour_s = self.number(data, "", "trace_hour_s", 3600.0, least=1e-6)
        after = AfterTrace(self.choice(data, "", "after_trace", [a.value for a in AfterTrace], "hold"))
        machines = self.machines(data.get("machines") or {})
        zones = self.zones(data.get("zones"), machines, after)
        argv = data.get("agent_argv") or []
        if not isinstance(argv, list) or not all(isinstance(a, str) for a in argv):
            self.bad("agent_argv", f"expected a list of texts, found {_shown(argv)}")
            argv = []
        start = self.choice(data, "", "trace_start", ("daemon_start", "first_launch"), "daemon_start")
        restart = None if data.get("restart_agent_s", 1.0) is None else self.number(data, "", "restart_agent_s", 1.0)
        return BoxConfig(
            digest=self.digest.hexdigest(),
            zones=zones,
            machines=machines,
            billing=self.billing(data.get("billing") or {}, 3600.0 / hour_s),
            faults=self.faults(data.get("fail") or [], zones, machines),
            trace_from_first_launch=start == "first_launch",
            boot_s=self.number(data, "", "boot_s", 0.0),
            notice_s=self.number(data, "", "notice_s", 120.0),
            max_life_s=self.number(data, "", "max_life_s", None, least=1e-6),
            stop_grace_s=self.number(data, "", "stop_grace_s", 5.0),
            restart_agent_s=restart,
            preempt_oldest=self.choice(data, "", "preempt_order", ("newest", "oldest"), "newest") == "oldest",
            disk_usd_per_gib_h=self.number(data, "", "disk_usd_per_gib_h", 0.0),
            quota=self.whole(data, "", "quota", None),
            agent_argv=tuple(argv),
        )

    def billing(self, value: Any, time_scale: float) -> BillingRule:
        data = self.mapping(value, "billing", _BILLING)
        return BillingRule(
            granularity_s=self.number(data, "billing", "granularity_s", 1.0, least=1e-6),
            minimum_s=self.number(data, "billing", "minimum_s", 60.0),
            free_if_reclaimed_within_s=self.number(data, "billing", "free_if_reclaimed_within_s", 0.0),
            time_scale=time_scale,
        )

    def machines(self, value: Any) -> dict[str, MachineSpec]:
        specs = {}
        for name, item in self.mapping(value, "machines").items():
            key = _join("machines", name)
            data = self.mapping(item, key, _MACHINE)
            prices = self.mapping(data.get("prices") or {}, _join(key, "prices"), ("on_demand", "spot"))
            if prices.get("on_demand") is None:
                self.bad(_join(key, "prices.on_demand"), "is missing", "give the list price in USD per hour")
            accelerator = data.get("accelerator") or ""
            if not isinstance(accelerator, str):
                self.bad(_join(key, "accelerator"), f"expected a name, found {_shown(accelerator)}")
                accelerator = ""
            count = self.whole(data, key, "accelerator_count", 1 if accelerator else 0)
            cpus = self.number(data, key, "cpus", 1.0, least=1e-6)
            memory_gib = self.number(data, key, "memory_gib", 1.0, least=1e-6)
            specs[name] = MachineSpec(
                MachineType(name, accelerator, count, cpus, memory_gib),
                self.number(prices, _join(key, "prices"), "on_demand", 0.0),
                self.number(prices, _join(key, "prices"), "spot", None),
            )
        return specs

    def zones(self, value: Any, machines: Mapping[str, MachineSpec], after: AfterTrace) -> dict[str, Zone]:
        zones = {}
        if value is not None and not value:
            self.bad("zones", "there are no zones", "give at least one zone")
        for name, item in (self.mapping(value, "zones") if value is not None else {}).items():
            zones[name] = self.zone(name, item, machines, after)
        if value is None:
            self.bad("zones", "is missing", "give at least one zone")
        return zones

    def zone(self, name: str, value: Any, machines: Mapping[str, MachineSpec], after: AfterTrace) -> Zone:
        key = _join("zones", name)
        data = self.mapping(value, key, ("region", "machines", *(m.value for m in Market if m != Market.RESERVED)))
        names = data.get("machines", list(machines))
        if not isinstance(names, list):
            self.bad(_join(key, "machines"), f"expected a list of machine types, found {_shown(names)}")
            names = []
        for machine in names:
            if machine not in machines:
                near = difflib.get_close_matches(str(machine), machines, 1)
                fix = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(machines) or 'none'}"
                self.bad(_join(key, "machines"), f"{_shown(machine)} is not in machines", fix)
        supply: dict[Market, Supply] = {}
        if data.get("spot") is not None:
            supply[Market.SPOT] = self.spot(data["spot"], _join(key, "spot"), after)
        if data.get("static") is not None:
            supply[Market.STATIC] = self.plain(data["static"], _join(key, "static"), 1)
        # A zone of a cloud sells on demand unless told otherwise; a workstation sells only itself.
        if data.get("on_demand") is not None or Market.STATIC not in supply:
            supply[Market.ON_DEMAND] = self.plain(data.get("on_demand") or {}, _join(key, "on_demand"), None)
        if Market.STATIC not in supply and not names:
            self.bad(key, "has no machine types", "name them under 'machines' at the top of the file")
        region = data.get("region") or name
        return Zone(name, str(region), tuple(str(n) for n in names if n in machines), supply)

    def spot(self, value: Any, key: str, after: AfterTrace) -> Supply:
        data = self.mapping(value, key, ("capacity", "trace", "offset_h", "after_trace"))
        if ("trace" in data) == ("capacity" in data):
            self.bad(key, "expected either 'trace' or 'capacity'", "give one of the two")
            return Supply(0)
        if "capacity" in data:
            return Supply(self.whole(data, key, "capacity", 0))
        if not isinstance(data["trace"], str):
            self.bad(_join(key, "trace"), f"expected a path, found {_shown(data['trace'])}")
            return Supply(0)
        after = AfterTrace(self.choice(data, key, "after_trace", [a.value for a in AfterTrace], after.value))
        path = self.folder / data["trace"]
        offset_s = self.number(data, key, "offset_h", 0.0) * 3600.0
        try:
            trace = read_trace(path, after=after, offset_s=offset_s)
        except BadInput as error:
            self.problems.extend(error.problems)
            return Supply(0)
        self.digest.update(repr(trace).encode())
        return Supply(None, trace)

    def plain(self, value: Any, key: str, capacity: int | None) -> Supply:
        data = self.mapping(value, key, ("capacity", "usd_per_h") if capacity is not None else ("capacity",))
        return Supply(self.whole(data, key, "capacity", capacity), None, self.number(data, key, "usd_per_h", 0.0))

    def faults(
        self, value: Any, zones: Mapping[str, Zone], machines: Mapping[str, MachineSpec]
    ) -> tuple[LaunchFault, ...]:
        if not isinstance(value, list):
            self.bad("fail", f"expected a list, found {_shown(value)}")
            return ()
        faults = []
        for index, item in enumerate(value):
            key = f"fail[{index}]"
            data = self.mapping(item, key, _FAIL)
            faults.append(
                LaunchFault(
                    error=self.choice(data, key, "error", list(PROVIDER_ERRORS), "no_capacity"),
                    times=self.whole(data, key, "times", 1),
                    zone=self.choice(data, key, "zone", ("", *zones), ""),
                    market=self.choice(data, key, "market", ("", *(m.value for m in Market)), ""),
                    machine=self.choice(data, key, "machine", ("", *machines), ""),
                    retry_after_s=self.number(data, key, "retry_after_s", None),
                )
            )
        return tuple(faults)


def _join(prefix: str, name: object) -> str:
    return f"{prefix}.{name}" if prefix else str(name)


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)
