"""Whether anything on sale could ever be a machine of a task: said before it is submitted, not after hours of waiting.

What is sold out is on sale. What is not on sale comes only by a change of the server's configuration, or from a
provider that does not answer now.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from everstep.client.taskfile.reading import closest
from everstep.model.offers import MachineRequirement, MachineType, Offer
from everstep.model.task import Task

_SHOWN = 6
"""More machine types than that hide the line that they stand in."""


def unsold(task: Task, offers: Sequence[Offer], silent: Collection[str]) -> str:
    """One line with what is on sale and the nearest of it, if none of it fits the task; else empty.

    Args:
        task: what is to be run.
        offers: the whole market, sold-out pools included. An empty one says nothing: all may be yet to come.
        silent: providers that do not answer: what they sell is not known, and may fit.
    """
    for group in task.gang.groups:
        machine = group.machine
        if not offers or any(map(machine.fits, offers)) or may_fit(machine, silent):
            continue
        here = [o for o in offers if MachineRequirement(places=machine.places).fits(o)]
        return _no_machine(machine, here) if here else _no_place(machine, offers)
    return ""


def may_fit(machine: MachineRequirement, providers: Collection[str]) -> list[str]:
    """Those of ``providers`` that the machine may come from."""
    return sorted(p for p in providers if not machine.places or any(place[0] in ("", p) for place in machine.places))


def _no_machine(need: MachineRequirement, offers: Sequence[Offer]) -> str:
    kinds = sorted({o.machine for o in offers}, key=lambda m: (_distance(need, m), m.name))
    names = list(dict.fromkeys(_in_short(m) for m in kinds))
    more = f" and {len(names) - _SHOWN} more (everstep offers)" if len(names) > _SHOWN else ""
    sellers = _either({o.provider for o in offers}, "and")
    return (
        f"nothing on sale has {_wish(need)}; the nearest is {_in_full(kinds[0])}; "
        f"on sale from {sellers}: {', '.join(names[:_SHOWN])}{more}"
    )


def _no_place(need: MachineRequirement, offers: Sequence[Offer]) -> str:
    wanted = ["/".join(part or "*" for part in place).removesuffix("/*").removesuffix("/*") for place in need.places]
    here = sorted({f"{o.provider}/{o.region}/{o.zone}" for o in offers})
    names = {*here, *(o.provider for o in offers), *(f"{o.provider}/{o.region}" for o in offers)}
    near = next((f"the nearest is {found}; " for place in wanted if (found := closest(place, names))), "")
    more = f" and {len(here) - _SHOWN} more (everstep offers)" if len(here) > _SHOWN else ""
    return f"nothing is on sale in {_either(wanted)}; {near}on sale in {', '.join(here[:_SHOWN])}{more}"


def _wish(need: MachineRequirement) -> str:
    """``H100:8, at least 16 CPUs``: what is asked of the machine itself."""
    parts = [
        f"the type {_either(need.machine_types)}" if need.machine_types else "",
        _either(f"{w.name}:{w.count}" for w in need.accelerators),
        f"at least {need.cpus_min:g} CPUs" if need.cpus_min is not None else "",
        f"exactly {need.cpus_exact:g} CPUs" if need.cpus_exact is not None else "",
        f"at least {need.memory_gib_min:g} GiB" if need.memory_gib_min is not None else "",
        f"exactly {need.memory_gib_exact:g} GiB" if need.memory_gib_exact is not None else "",
        f"at least {need.memory_per_cpu_min:g} GiB per CPU" if need.memory_per_cpu_min is not None else "",
    ]
    return ", ".join(part for part in parts if part)


def _distance(need: MachineRequirement, machine: MachineType) -> tuple[float, ...]:
    """How far a machine is from what is asked for: its name, its accelerators, then what it lacks of the rest."""
    near = closest(machine.name, need.machine_types) if need.machine_types else machine.name
    accelerators = min((_accelerators_off(w.name, w.count, machine) for w in need.accelerators), default=(0.0, 0.0))
    bounds = (
        (need.cpus_min, machine.cpus, False),
        (need.cpus_exact, machine.cpus, True),
        (need.memory_gib_min, machine.memory_gib, False),
        (need.memory_gib_exact, machine.memory_gib, True),
        (need.memory_per_cpu_min, machine.memory_gib / machine.cpus, False),
    )
    rest = sum(_off(wanted, has) for wanted, has, exact in bounds if wanted and (exact or has < wanted))
    return (float(near is None), *accelerators, rest)


def _accelerators_off(name: str, count: int, machine: MachineType) -> tuple[float, float]:
    if not machine.accelerator:
        return 2.0, 0.0
    return float(machine.accelerator.lower() != name.lower()), _off(count, machine.accelerator_count)


def _off(wanted: float, has: float) -> float:
    """By how many doublings the one differs from the other."""
    return abs(math.log2(max(has, 1e-9) / wanted))


def _in_short(machine: MachineType) -> str:
    return (
        f"{machine.name} ({machine.accelerator}:{machine.accelerator_count})" if machine.accelerator else machine.name
    )


def _in_full(machine: MachineType) -> str:
    has = [f"{machine.accelerator}:{machine.accelerator_count}"] if machine.accelerator else []
    return f"{machine.name} ({', '.join([*has, f'{machine.cpus:g} CPUs', f'{machine.memory_gib:g} GiB'])})"


def _either(names: Iterable[str], word: str = "or") -> str:
    return f" {word} ".join(sorted(names))
