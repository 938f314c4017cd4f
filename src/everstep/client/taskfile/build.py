"""From sections that were read to a `Task`: defaults, what goes together and what does not, variables filled in."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everstep.client.taskfile.machines import machines
from everstep.client.taskfile.reading import Got, Scope, Section, nearest
from everstep.client.workdir import Contents, list_files, list_workdir
from everstep.model.gang import Gang, SlotGroup
from everstep.model.task import CheckpointMode, CheckpointSpec, Mount, Objective, OnNoCapacity, Recovery, Task, Work

_MEANT_RUN = ("did you mean 'run'?", "did you mean 'argv'?")
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)")


@dataclass(frozen=True, slots=True)
class LocalMount:
    """What is to be uploaded for one entry of ``Task.mounts``.

    Attributes:
        target: folder on the machines, as in the task's mount.
        folder: local folder whose content goes there; None for single files.
        files: single files, with the names they get in ``target``.
    """

    target: str
    folder: Path | None = None
    files: tuple[tuple[str, Path], ...] = ()

    def contents(self) -> Contents:
        """What is to be packed; ignore files do not count, since data is often ignored by git.

        Raises:
            BadInput: as `list_workdir`.
        """
        key = f"file_mounts.{self.target}"
        if self.folder is None:
            return list_files(dict(self.files), key=key)
        return list_workdir(self.folder, honour_ignore_files=False, key=key)


@dataclass(frozen=True, slots=True)
class Built:
    """A task with what stays on this side: secrets and local paths."""

    task: Task
    secrets: dict[str, str] = field(repr=False)
    workdir: Path | None
    mounts: tuple[LocalMount, ...]


class Builder:
    """Builds one task from the top section of its file; ``name`` is the job's name unless the file says one."""

    def __init__(self, scope: Scope, cwd: Path, name: str) -> None:
        self._top: Section = {}
        self._scope = scope
        self._name = name
        self._report = scope.report
        self._cwd = cwd
        self._locals: list[LocalMount] = []
        self._files: dict[str, dict[str, tuple[str, Path]]] = {}
        self._kept_folders: list[str] = []

    def build(self, top: Section, envs: Mapping[str, str], secrets: Mapping[str, str]) -> Built:
        """The task. With problems in the report it is incomplete and must not be used."""
        self._top = top
        secret_values = self._variables("secrets", secrets, "--secret")
        env_values = self._variables("envs", envs, "--env")
        for both in sorted(env_values.keys() & secret_values.keys()):
            self._report.warn(self._where("envs"), f"envs.{both}", "is a secret, too: the secret's value is used")
            del env_values[both]
        resources: Section = self._value("resources", {})
        found = machines(resources, self._scope.at("resources"))
        workdir = self._workdir(env_values, secret_values)
        mounts = self._mounts(env_values, secret_values)
        ranks = resources["ranks_per_node"].value if "ranks_per_node" in resources else None
        group = SlotGroup("worker", found.machine, self._value("num_nodes", 1), ranks_per_node=ranks)
        self._check_commands()
        task = Task(
            name=self._value("name", self._name),
            run=self._value("run", ""),
            argv=self._value("argv", ()),
            setup=self._value("setup", ""),
            envs=env_values,
            secret_names=tuple(secret_values),
            mounts=mounts,
            gang=Gang((group,)),
            spot=found.spot,
            max_price_usd_per_h=found.max_price_usd_per_h,
            policy=self._value("policy", ""),
            recovery=self._recovery(resources),
            checkpoint=self._checkpoint(),
            outputs=self._outputs(),
            work=self._work(),
            objective=self._objective(),
            labels=resources["labels"].value if "labels" in resources else {},
            stop_grace_s=self._value("stop_grace", 30.0),
        )
        return Built(task, secret_values, workdir, tuple(self._locals))

    def _value(self, name: str, default: Any) -> Any:
        return self._top[name].value if name in self._top else default

    def _where(self, name: str) -> str:
        return self._top[name].where if name in self._top else ""

    def _section(self, name: str) -> Section:
        section: Section = self._value(name, {})
        return section

    def _check_commands(self) -> None:
        if "argv" in self._top and "run" in self._top:
            got = self._top["argv"]
            self._report.problem(got.where, got.key, "run and argv exclude each other", "keep one of the two")
        if self._value("run", "").strip() or "argv" in self._top:
            return
        if not any(p.key in ("run", "argv") or p.fix in _MEANT_RUN for p in self._report.problems):
            has_setup = bool(self._value("setup", "").strip())
            message = "nothing to run after setup" if has_setup else "nothing to run"
            where = self._where("setup") if has_setup else self._report.name
            self._report.problem(where, "run", message, "add run: with the commands of the training")

    def _variables(self, section: str, given: Mapping[str, str], flag: str) -> dict[str, str]:
        values: dict[str, str] = {}
        declared: Mapping[str, tuple[str | None, str]] = self._value(section, {})
        for name, (value, where) in declared.items():
            if name in given:
                values[name] = given[name]
            elif value is None:
                own = f"{flag} {name} (takes it from your environment) or " if flag == "--secret" else ""
                fix = f"give it with {own}{flag} {name}=VALUE"
                self._report.problem(where, f"{section}.{name}", "has no value", fix)
            else:
                values[name] = value
        return {**values, **{k: v for k, v in given.items() if k not in values}}

    # --- files ---------------------------------------------------------------------------------------------------

    def _fill_in(self, text: str, got: Got, envs: Mapping[str, str], secrets: Mapping[str, str]) -> str | None:
        """``text`` with the variables of envs filled in; others stay as they are unless they stand in braces."""
        faults = []

        def value(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            if name in secrets:
                faults.append((f"${{{name}}} is a secret and may not stand in a path", "move it to envs"))
            elif name not in envs and match[1]:
                fix = nearest(name, envs) if envs else f"give it with --env {name}=VALUE"
                faults.append((f"${{{name}}} is not one of envs", fix))
            return envs.get(name, match[0])

        filled = _VARIABLE.sub(value, text)
        for message, fix in faults:
            self._report.problem(got.where, got.key, message, fix)
        return None if faults else filled

    def _workdir(self, envs: Mapping[str, str], secrets: Mapping[str, str]) -> Path | None:
        got = self._top.get("workdir")
        text = self._fill_in(got.value, got, envs, secrets) if got else None
        if got is None or text is None:
            return None
        path = self._local(text, got)
        if path is not None and not path.is_dir():
            self._report.problem(got.where, got.key, f"expected a folder, '{text}' is a file")
        return path

    def _local(self, text: str, got: Got) -> Path | None:
        try:
            path = self._cwd / Path(text).expanduser()
            present = path.exists()
        except (OSError, RuntimeError, ValueError):
            path, present = Path(text), False
        if not present:
            fix = (
                f"relative paths start at {self._cwd}" if not path.is_absolute() or not Path(text).is_absolute() else ""
            )
            self._report.problem(got.where, got.key, f"there is no local file or folder '{text}'", fix)
            return None
        return path

    def _mounts(self, envs: Mapping[str, str], secrets: Mapping[str, str]) -> tuple[Mount, ...]:
        mounts = []
        for target, (value, where) in self._value("file_mounts", {}).items():
            got = Got(value, where, f"file_mounts.{target}")
            filled = self._fill_in(target, got, envs, secrets)
            source = value if isinstance(value, str) else value["source"].value if "source" in value else None
            if source is None:
                self._kept_folders.append(filled or target)
                continue
            source = self._fill_in(source, got, envs, secrets)
            mount = self._mount(filled, source, got) if filled and source else None
            if mount:
                mounts.append(mount)
        return (*mounts, *self._file_groups())

    def _file_groups(self) -> list[Mount]:
        """Single files, by the folder they go to: an archive is unpacked into a folder."""
        mounts = []
        taken = {mount.target for mount in self._locals}
        for folder, files in self._files.items():
            # A folder that goes to the same place is unpacked by itself; each target appears once.
            target = f"{folder}/." if folder in taken else folder
            self._locals.append(LocalMount(target, files=tuple((name, path) for name, (_, path) in files.items())))
            mounts.append(Mount(target, ", ".join(source for source, _ in files.values())))
        return mounts

    def _mount(self, target: str, source: str, got: Got) -> Mount | None:
        if _REMOTE.match(source):
            # Nothing on the machines fetches it, and a job without its data would cost money and fail.
            self._report.problem(
                got.where,
                got.key,
                f"expected a local path: buckets are not fetched yet, found '{source}'",
                "download it in setup; checkpoints need no bucket (leave out source), results come home by outputs",
            )
            return None
        path = self._local(source, got)
        if path is None:
            return None
        if path.is_dir():
            self._locals.append(LocalMount(target, path))
            return Mount(target, source)
        folder, name = posixpath.split(target)
        self._files.setdefault(folder or ".", {})[name or path.name] = (source, path)
        return None

    # --- the rest ------------------------------------------------------------------------------------------------

    def _recovery(self, resources: Section) -> Recovery:
        given = self._section("recovery")
        foreign: Section = resources["job_recovery"].value if "job_recovery" in resources else {}
        values = {
            field_name: given[key].value
            for key, field_name in (
                ("max_restarts", "max_restarts"),
                ("no_progress_limit", "no_progress_limit"),
                ("max_wait", "max_wait_s"),
                ("boot_timeout", "boot_timeout_s"),
                ("cooldown", "cooldown_s"),
                ("keep_on_failure", "keep_on_failure_s"),
            )
            if key in given
        }
        if "on_no_capacity" in given:
            values["on_no_capacity"] = OnNoCapacity(given["on_no_capacity"].value)
        theirs = foreign.get("max_restarts_on_errors")
        if theirs and "max_restarts" in given and theirs.value != given["max_restarts"].value:
            self._report.problem(theirs.where, theirs.key, "differs from recovery.max_restarts", "keep one of the two")
        elif theirs:
            values["max_restarts"] = theirs.value
        return Recovery(**values)

    def _checkpoint(self) -> CheckpointSpec:
        given = self._section("checkpoint")
        values = {("every_s" if k == "every" else k): got.value for k, got in given.items()}
        if "mode" in values:
            values["mode"] = CheckpointMode(values["mode"])
        if self._kept_folders:
            # A bucket that is to be made under a folder is how checkpoints are kept elsewhere.
            values.setdefault("dir", self._kept_folders[0])
        return CheckpointSpec(**values)

    def _outputs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self._value("outputs", ()), *self._kept_folders]))

    def _work(self) -> Work:
        given = self._section("work")
        names = set(given)
        if {"steps", "hours"} <= names:
            self._report.problem(
                given["hours"].where, "work", "steps and hours exclude each other", "keep one of the two"
            )
        elif "hours" in names and "on" not in names:
            self._report.problem(given["hours"].where, "work.hours", "does not say on which machine", "add on: TYPE")
        elif "on" in names and "hours" not in names:
            self._report.problem(given["on"].where, "work.on", "only means something with hours", "add hours: H")
        return Work(**{k: got.value for k, got in given.items()})

    def _objective(self) -> Objective:
        given = self._section("objective")
        values: dict[str, Any] = {}
        if "minimize" in given:
            values["minimize"] = given["minimize"].value
        if "deadline" in given:
            how, seconds = given["deadline"].value
            values["deadline_s" if how == "for" else "deadline_at"] = seconds
        if "budget" in given:
            values["budget_usd"] = given["budget"].value
        for name in ("deadline", "budget"):
            if name in given and not self._section("work"):
                text = "needs the work left: give `work`, or report progress(step, total) from the program"
                self._report.warn(given[name].where, given[name].key, text)
        return Objective(**values)
