"""The entry points: a file, a text or a dict becomes a `LoadedTask`, or a `BadInput` that names every problem."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everstep.client.taskfile.build import Builder, Built, LocalMount
from everstep.client.taskfile.fields import TABLE
from everstep.client.taskfile.kinds import ENV_NAME
from everstep.client.taskfile.nodes import MAX_CHARS, Node, Override, apply_override, node_of, parse_documents
from everstep.client.taskfile.reading import Report, Scope, TooManyProblems, closest
from everstep.model.errors import BadInput, Problem
from everstep.model.task import Task

MAX_BYTES = 4 * MAX_CHARS


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """A task as its author wrote it, checked.

    Attributes:
        task: what goes to the server; digests of uploads are still empty (see `uploaded`).
        secrets: values by name; not part of ``repr``.
        workdir: local folder to upload, None for none.
        mounts: local files and folders to upload.
        warnings: one line each: keys that mean something else here, or nothing.
        source: name of the file.
    """

    task: Task
    secrets: dict[str, str] = field(repr=False)
    workdir: Path | None
    mounts: tuple[LocalMount, ...]
    warnings: tuple[str, ...]
    source: str

    def uploaded(self, *, workdir_digest: str = "", mount_digests: Mapping[str, str] | None = None) -> Task:
        """The task with the digests of what was uploaded: of the workdir, and of mounts by their target."""
        digests = mount_digests or {}
        mounts = tuple(dataclasses.replace(m, digest=digests.get(m.target, m.digest)) for m in self.task.mounts)
        return dataclasses.replace(self.task, workdir_digest=workdir_digest, mounts=mounts)


def load_task(
    source: Path | str,
    *,
    text: str | None = None,
    envs: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    overrides: Sequence[Override] = (),
    cwd: Path | None = None,
) -> LoadedTask:
    """Reads a task file.

    Args:
        source: path of the file; with ``text``, only the name that problems give.
        text: the content, if it does not come from a file.
        envs: values of ``--env``: they win over the file's and may add new ones.
        secrets: values of ``--secret``, likewise.
        overrides: flags that set keys, applied in order.
        cwd: where relative local paths start; default: the current folder.

    Raises:
        BadInput: all problems of the file, in the order of its lines. No text holds the value of a secret.
    """
    name = str(source)
    content = _read(Path(source)) if text is None else text
    root, header_name = _single(parse_documents(content, name), name)
    return _load(root, name, envs or {}, secrets or {}, overrides=overrides, cwd=cwd, default_name=header_name)


def task_from_dict(
    data: Mapping[str, Any],
    *,
    name: str = "task",
    envs: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    overrides: Sequence[Override] = (),
    cwd: Path | None = None,
) -> LoadedTask:
    """As `load_task`, from the same keys as plain data; ``name`` stands in problems instead of file and line.

    Raises:
        BadInput: as `load_task`.
    """
    root = node_of(data, name)
    return _load(root, name, envs or {}, secrets or {}, overrides=overrides, cwd=cwd, default_name="")


def _load(
    root: Node,
    name: str,
    envs: Mapping[str, str],
    secrets: Mapping[str, str],
    *,
    overrides: Sequence[Override],
    cwd: Path | None,
    default_name: str,
) -> LoadedTask:
    report = Report(TABLE, name)
    if root.kind == "map":
        for override in overrides:
            root = _overridden(root, override, report)
    mask = _Mask([*secrets.values(), *_texts(root.entries["secrets"].value if "secrets" in root.entries else None)])
    try:
        built = _build(root, report, envs, secrets, Builder(Scope(report), cwd or Path.cwd(), default_name or "task"))
    except TooManyProblems:
        built = None
    if report.problems or built is None:
        raise BadInput(*(mask.problem(p) for p in sorted(report.problems, key=_line)))
    warnings = tuple(mask.text(w) for w in report.warnings)
    return LoadedTask(built.task, built.secrets, built.workdir, built.mounts, warnings, name)


def _build(
    root: Node, report: Report, envs: Mapping[str, str], secrets: Mapping[str, str], builder: Builder
) -> Built | None:
    _check_given(envs, "--env", report)
    _check_given(secrets, "--secret", report)
    if root.kind != "map":
        found = root.shown if root.kind in ("list", "null") else "a single value"
        report.problem(root.where, "", f"expected a task: a mapping with keys such as resources and run, found {found}")
        return None
    return builder.build(Scope(report).section(root, ""), envs, secrets)


def _overridden(root: Node, override: Override, report: Report) -> Node:
    """The root with the flag's value, and without other spellings of the same key, which would contradict it."""
    place, _, name = override.key.rpartition(".")
    fields = TABLE.get(place, {})
    target = fields[name].alias_of or name if name in fields else name
    same = {other for other, one in fields.items() if target in (other, one.alias_of)}
    if place and place in root.entries:
        entry = root.entries[place]
        section = entry.value
        _check_alternatives(section, same, override, report)
        kept = {k: v for k, v in section.entries.items() if k not in same}
        section = dataclasses.replace(section, entries=kept)
        entries = {**root.entries, place: dataclasses.replace(entry, value=section)}
    else:
        entries = {k: v for k, v in root.entries.items() if place or k not in same}
    return apply_override(dataclasses.replace(root, entries=entries), override)


def _check_alternatives(section: Node, same: set[str], override: Override, report: Report) -> None:
    """A flag cannot win over what each alternative says for itself; saying nothing would be worse than refusing."""
    for name in ("any_of", "ordered"):
        alternatives = section.entries[name].value.items if name in section.entries else ()
        if any(same & one.entries.keys() for one in alternatives):
            where = section.entries[name].where
            report.problem(
                override.flag, override.key, f"the alternatives of {name} say this themselves", f"see {where}"
            )


def _texts(node: Node | None) -> Iterator[str]:
    """Every scalar below ``node``."""
    if node is None:
        return
    if node.text:
        yield node.text
    for inner in (*node.items, *(entry.value for entry in node.entries.values())):
        yield from _texts(inner)


class _Mask:
    """Takes the values of secrets out of texts, however they came there: by an alias, or typed in the wrong place."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # Shorter ones are no secrets, and would garble every message. The longest first: one may contain another.
        self._values = sorted({v for v in secrets if len(v) >= 4}, key=len, reverse=True)

    def text(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, "***")
        return text

    def problem(self, problem: Problem) -> Problem:
        return Problem(problem.where, self.text(problem.key), self.text(problem.message), self.text(problem.fix))


def _line(problem: Problem) -> int:
    line = problem.where.rpartition(":")[2]
    return int(line) if line.isdecimal() else 0


def _check_given(given: Mapping[str, str], flag: str, report: Report) -> None:
    for name, value in given.items():
        # A name that is none may be the value itself, typed in the wrong place: it is not shown for secrets.
        shown = f"'{name}' is" if flag == "--env" or ENV_NAME.fullmatch(name) else "that is"
        if not ENV_NAME.fullmatch(name):
            report.problem(flag, "", f"{shown} not the name of an environment variable", f"write {flag} NAME=VALUE")
        elif name.upper().startswith("EVERSTEP_"):
            report.problem(flag, name, "names that start with EVERSTEP_ are set by everstep")
        elif "\0" in value:
            report.problem(flag, name, "expected text without a zero byte")


def _single(documents: list[Node], name: str) -> tuple[Node, str]:
    """The only task among the documents, and the name from a first document that holds nothing else."""
    if not documents:
        raise BadInput(Problem(name, "", "the file is empty", "a task needs at least run: with the commands to run"))
    if len(documents) == 1:
        return documents[0], ""
    header = documents[0]
    is_header = header.kind == "map" and "name" in header.entries and header.entries.keys() <= {"name", "execution"}
    tasks = documents[1:] if is_header else documents
    if len(tasks) == 1:
        title = header.entries["name"].value
        return tasks[0], title.text if title.kind == "text" else ""
    message = f"pipelines are not supported yet: the file holds {len(tasks)} tasks"
    raise BadInput(Problem(tasks[1].where, "", message, "put each task into a file of its own"))


def _read(path: Path) -> str:
    name = str(path)
    try:
        if path.is_dir():
            raise BadInput(Problem(name, "", "expected a task file, found a folder", _files_in(path)))
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise BadInput(Problem(name, "", "there is no such file", _near_file(path))) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a path"
        raise BadInput(Problem(name, "", f"cannot be read: {reason.lower()}")) from None
    if len(data) > MAX_BYTES:
        raise BadInput(Problem(name, "", f"the file is too large: at most {MAX_BYTES // 2**20} MiB are read"))
    if b"\0" in data:
        raise BadInput(Problem(name, "", "not a text file: it holds zero bytes", "save it as UTF-8 text"))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadInput(
            Problem(f"{name}:{line}", "", "not a text file: not valid UTF-8", "save it as UTF-8 text")
        ) from None


def _yaml_names(folder: Path) -> list[str]:
    try:
        return sorted(p.name for p in folder.iterdir() if p.suffix in (".yaml", ".yml"))[:50]
    except OSError:
        return []


def _files_in(folder: Path) -> str:
    names = _yaml_names(folder)
    return f"did you mean '{folder / names[0]}'?" if names else ""


def _near_file(path: Path) -> str:
    # By their stems: the ending is the same for all, and no likeness.
    by_stem = {Path(name).stem: name for name in _yaml_names(path.parent)}
    found = closest(path.stem, by_stem)
    return f"did you mean '{by_stem[found]}'?" if found is not None else ""
