"""A `Task` back to the keys of the task file, for ``status`` and for people who want to submit it again."""

from __future__ import annotations

from typing import Any

import yaml

from everstep.model.offers import MachineRequirement
from everstep.model.task import SpotMode, Task
from everstep.model.units import exact_duration, format_instant

_DEFAULT = Task()


def task_to_yaml(task: Task) -> str:
    """The task file that says the same as ``task``: only what differs from the defaults.

    What it cannot hold stands in comments: uploaded folders (by digest). Secrets appear by name, without value, so that
    submitting it again asks for them.
    """
    comments = [f"# workdir: uploaded, sha256 {task.workdir_digest}"] if task.workdir_digest else []
    comments += [f"# {m.target}: uploaded from {m.source}" for m in task.mounts]
    body = yaml.dump(task_to_dict(task), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return "".join(f"{line}\n" for line in comments) + body


def task_to_dict(task: Task) -> dict[str, Any]:
    """The keys of the task file as plain data; `task_from_dict` reads them back to an equal task, uploads aside."""
    group = task.gang.groups[0]
    data: dict[str, Any] = {"name": task.name}
    resources = _resources(task)
    optional = {
        "resources": resources,
        "num_nodes": group.count if group.count != 1 else None,
        "setup": task.setup,
        "run": task.run,
        "argv": list(task.argv),
        "envs": dict(task.envs),
        "secrets": dict.fromkeys(task.secret_names),
        "recovery": _recovery(task),
        "checkpoint": _checkpoint(task),
        "outputs": list(task.outputs),
        "work": {k: v for k, v in (("steps", task.work.steps), ("hours", task.work.hours), ("on", task.work.on)) if v},
        "objective": _objective(task),
        "policy": task.policy,
        "stop_grace": exact_duration(task.stop_grace_s) if task.stop_grace_s != _DEFAULT.stop_grace_s else None,
    }
    data.update({k: v for k, v in optional.items() if v})
    return data


def _resources(task: Task) -> dict[str, Any]:
    group = task.gang.groups[0]
    machine = group.machine
    data: dict[str, Any] = {}
    wishes = [f"{w.name}:{w.count}" for w in machine.accelerators]
    if len(wishes) == 1:
        data["accelerators"] = wishes[0]
    elif wishes and machine.ordered:
        data["accelerators"] = wishes
    elif wishes:
        # The same name with two counts has no mapping; keys with the count inside have.
        data["accelerators"] = dict.fromkeys(wishes)
    data.update(_size(machine))
    if len(machine.places) == 1:
        data["infra"] = _infra(machine.places[0])
    if len(machine.machine_types) == 1:
        data["instance_type"] = machine.machine_types[0]
    alternatives = _alternatives(machine)
    if alternatives:
        data["any_of"] = alternatives
    if task.spot is not SpotMode.AUTO:
        data["spot"] = task.spot is SpotMode.TRUE
    if task.max_price_usd_per_h is not None:
        data["max_price"] = task.max_price_usd_per_h
    if group.ranks_per_node is not None:
        data["ranks_per_node"] = group.ranks_per_node
    if task.labels:
        data["labels"] = dict(task.labels)
    return data


def _alternatives(machine: MachineRequirement) -> list[dict[str, str]]:
    places = [{"infra": _infra(p)} for p in machine.places] if len(machine.places) > 1 else [{}]
    types = [{"instance_type": t} for t in machine.machine_types] if len(machine.machine_types) > 1 else [{}]
    both = [{**place, **kind} for place in places for kind in types]
    return both if len(both) > 1 else []


def _size(machine: MachineRequirement) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for name, least, exact in (
        ("cpus", machine.cpus_min, machine.cpus_exact),
        ("memory", machine.memory_gib_min, machine.memory_gib_exact),
    ):
        if least is not None:
            data[name] = f"{_short(least)}+"
        elif exact is not None:
            data[name] = _short(exact)
    if machine.memory_per_cpu_min is not None:
        data["memory"] = f"{_short(machine.memory_per_cpu_min)}x"
    if machine.disk_gib is not None:
        data["disk_size"] = _short(machine.disk_gib)
    return data


def _short(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _infra(place: tuple[str, str, str]) -> str:
    return "/".join(part or "*" for part in place).removesuffix("/*").removesuffix("/*")


def _recovery(task: Task) -> dict[str, Any]:
    ours, default = task.recovery, _DEFAULT.recovery
    data: dict[str, Any] = {}
    for name in ("max_restarts", "no_progress_limit"):
        if getattr(ours, name) != getattr(default, name):
            data[name] = getattr(ours, name)
    if ours.on_no_capacity is not None:
        data["on_no_capacity"] = ours.on_no_capacity.value
    for name in ("max_wait", "boot_timeout", "cooldown", "keep_on_failure"):
        value = getattr(ours, f"{name}_s")
        if value is not None and value != getattr(default, f"{name}_s"):
            data[name] = exact_duration(value)
    return data


def _checkpoint(task: Task) -> dict[str, Any]:
    ours = task.checkpoint
    data: dict[str, Any] = {"dir": ours.dir} if ours.dir else {}
    if ours.every_s is not None:
        data["every"] = exact_duration(ours.every_s)
    if ours.on_notice:
        data["on_notice"] = ours.on_notice
    if ours.keep != _DEFAULT.checkpoint.keep:
        data["keep"] = ours.keep
    if ours.mode is not _DEFAULT.checkpoint.mode:
        data["mode"] = ours.mode.value
    if ours.mirror:
        data["mirror"] = ours.mirror
    if ours.audit:
        data["audit"] = ours.audit
    return data


def _objective(task: Task) -> dict[str, Any]:
    ours = task.objective
    data: dict[str, Any] = {"minimize": ours.minimize} if ours.minimize != "cost" else {}
    if ours.deadline_s is not None:
        data["deadline"] = exact_duration(ours.deadline_s)
    if ours.deadline_at is not None:
        data["deadline"] = format_instant(ours.deadline_at)
    if ours.budget_usd is not None:
        data["budget"] = ours.budget_usd
    return data


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks: shell commands stay readable."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)
