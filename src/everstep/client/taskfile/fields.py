"""Every key of the task file, in one table: the source of the parser, the editor schema and docs/skypilot-keys.md.

To add a key: one line here, its use in `build`, a case in the tests, then
``python -m everstep.client.taskfile.schema --write``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.client.taskfile import kinds, machines
from everstep.client.taskfile.nodes import Node
from everstep.client.taskfile.reading import Field, Kind, Mismatch, Scope, Section, Status

_W, _N, _R = Status.WORKS, Status.WARNED, Status.REFUSED


def _is_given(value: Any) -> bool:
    return not (isinstance(value, Node) and value.kind == "bool" and value.text.lower() in ("false", "no", "off"))


def _workdir(node: Node, scope: Scope) -> str:
    if node.kind == "map":
        raise Mismatch("a git repository as workdir is not supported", "clone it in setup, or give a local folder")
    path: str = kinds.PATH.parse(node, scope)
    return path


def _recovery_strategy(node: Node, scope: Scope) -> Any:
    """``job_recovery: FAILOVER`` is short for ``job_recovery: {strategy: FAILOVER}``."""
    if node.kind == "map":
        return scope.section(node, "job_recovery")
    if node.kind not in kinds.SCALARS:
        raise Mismatch(f"expected the name of a strategy or a mapping, found {node.shown}")
    if node.text.lower() != "none":
        scope.report.warn(node.where, scope.key, _STRATEGY)
    return {}


def _file_mounts(node: Node, scope: Scope) -> dict[str, Any]:
    if node.kind != "map":
        raise Mismatch(f"expected a mapping of paths on the node to their sources, found {node.shown}")
    got = {}
    for target, entry in node.entries.items():
        inner = scope.at(target)
        if not target.strip() or entry.value.kind in ("null", "list"):
            inner.report.problem(
                entry.where, inner.key, f"expected PATH_ON_THE_NODE: SOURCE, found {entry.value.shown}"
            )
        elif entry.value.kind == "map":
            got[target] = (_one_mount(entry.value, inner), entry.value.where)
        else:
            fine, value = inner.parse(kinds.PATH, entry.value)
            if fine:
                got[target] = (value, entry.value.where)
    return got


def _one_mount(node: Node, scope: Scope) -> Section:
    warnings = scope.report.warnings
    before = len(warnings)
    section = scope.section(node, "file_mount")
    if "source" not in section:
        # A bucket that is to be made under a folder is how checkpoints are kept elsewhere; one line says what we do.
        del warnings[before:]
        scope.report.warn(
            node.where,
            scope.key,
            "no bucket is made: the folder is an output, kept across preemptions, "
            "and checkpoint.dir unless that is set",
        )
    return section


_STRATEGY = "the selector chooses where to restart; to change it set `policy`"
_COPIED = "taken as COPY: the content is there when an attempt starts, nothing is written back; see outputs"
_NO_VOLUMES = "named volumes cannot be attached; bring data by file_mounts and take results home by outputs"
_ORDER = "jobs start in the order of submission; the value is not used"
_NO_IMAGE = "not used: the provider's default image starts; install what is missing in `setup`"
_SELF_DISK = "not used: the provider's default disk is attached"
_MOUNT_SCHEMA = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/file_mount"}]}

_POSITIVE = "a whole number above zero"
_NODES = kinds.whole("a whole number of machines from 1 to 10000", least=1, most=10_000)
_RANKS = kinds.whole("a whole number of processes per machine from 1 to 1024", least=1, most=1024)
_RESTARTS = kinds.whole("a whole number, zero or more", least=0, most=1_000_000)
_COUNT = kinds.whole(_POSITIVE, least=1, most=10**15)
_HOURS = kinds.number("a number of hours above zero", above=0, most=87_600)
_MODES = kinds.choice("COPY", "MOUNT", "MOUNT_CACHED")
_ON_NO_CAPACITY = kinds.choice("wait", "on_demand", "fail")
_CHECKPOINT_MODES = kinds.choice("auto", "script", "library", "off")
_JOB_RECOVERY = Kind(
    "a strategy or a mapping", _recovery_strategy, {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/job_recovery"}]}
)


_TOP = (
    Field("name", kinds.NAME, _W, "the job's name, for people"),
    Field("resources", kinds.section("resources", "a mapping of resources"), _W, "what each machine must have"),
    Field("num_nodes", _NODES, _W, "number of machines; all start, stop and resume together"),
    Field(
        "workdir",
        Kind("a path", _workdir, {"type": "string"}),
        _W,
        "local folder uploaded to every machine, .gitignore honoured; a git repository ({url, ref}) is refused",
    ),
    Field("setup", kinds.SHELL, _W, "shell commands, once on each new machine"),
    Field("run", kinds.SHELL, _W, "shell commands, once on each machine in every attempt"),
    Field(
        "envs",
        kinds.VARIABLES,
        _W,
        "environment variables; `${NAME}` is filled in in workdir and file_mounts; without a value: given by --env",
    ),
    Field(
        "secrets",
        kinds.VARIABLES,
        _W,
        "as envs, but values stay out of the journal, logs and command lines; without a value: given by --secret",
    ),
    Field(
        "file_mounts",
        Kind("a mapping of paths to sources", _file_mounts, {"type": "object", "additionalProperties": _MOUNT_SCHEMA}),
        _W,
        "PATH_ON_THE_NODE: local path; buckets are refused for now (download in `setup`)",
    ),
    Field(
        "outputs",
        kinds.PATHS,
        _W,
        "paths brought home before a disk is deleted (default: the checkpoint folder); "
        "a mapping (size estimates) is warned and not used",
    ),
    Field("inputs", kinds.ANYTHING, _N, "estimates of input sizes are not used: transfer prices come from the offers"),
    Field(
        "config",
        kinds.ANYTHING,
        _N,
        "settings of another program: not used; the server has its own configuration",
        warn_if=_is_given,
    ),
    Field("event_callback", kinds.ANYTHING, _N, "not called: follow `everstep events JOB`"),
    Field("file_mounts_mapping", kinds.ANYTHING, _N, "not used: it is made by another program from file_mounts"),
    Field(
        "service",
        kinds.ANYTHING,
        _R,
        "everstep trains and does not serve models; remove this section to run the task once",
    ),
    Field(
        "pool",
        kinds.ANYTHING,
        _R,
        "worker pools do not exist here; submit the task as a job, machines are found for it",
    ),
    Field("execution", kinds.ANYTHING, _R, "job groups do not exist here; submit each task as a job of its own"),
    Field("volumes", kinds.ANYTHING, _R, _NO_VOLUMES),
)

_MACHINE = (
    Field(
        "accelerators", machines.ACCELERATORS, _W, "`A100:8`, `A100`, a mapping (any of them) or a list (in that order)"
    ),
    Field("gpus", machines.ACCELERATORS, _W, "same as accelerators", alias_of="accelerators"),
    Field(
        "infra",
        machines.INFRA,
        _W,
        "`aws`, `aws/us-east-1`, `aws/us-east-1/us-east-1a`, `gcp/*`, `local`; Kubernetes is refused",
    ),
    Field("cloud", machines.CLOUD, _W, "older spelling of infra"),
    Field("region", kinds.WORD, _W, "older spelling of infra"),
    Field("zone", kinds.WORD, _W, "older spelling of infra"),
    Field("instance_type", kinds.WORD, _W, "the vendor's name of the machine type"),
    Field("cpus", machines.CPUS, _W, "`4`, or `4+` for at least 4"),
    Field("memory", machines.MEMORY, _W, "GiB: `32`, `32+`, `64GB+`, or `4x` for 4 GiB per CPU"),
    Field("disk_size", kinds.DISK, _W, "GiB: `256`, or with a unit"),
    Field("use_spot", kinds.TRUTH, _W, "same as spot, true or false", alias_of="spot"),
    Field("spot", kinds.SPOT, _W, "true, false or auto (default: the selector chooses)", ours=True),
    Field(
        "max_price",
        kinds.MONEY,
        _W,
        "US dollars per hour: cap on the spot price of one machine (default: its on-demand price)",
        ours=True,
    ),
    Field(
        "max_hourly_cost",
        kinds.MONEY,
        _N,
        "taken as max_price, which caps the spot price of each machine; objective.budget bounds the bill",
        alias_of="max_price",
    ),
    Field(
        "ranks_per_node",
        _RANKS,
        _W,
        "processes that everstep starts on each machine, with RANK, LOCAL_RANK and WORLD_SIZE set",
        ours=True,
    ),
    Field("job_recovery", _JOB_RECOVERY, _W, "see job_recovery; the name of a strategy alone is warned"),
    Field("spot_recovery", _JOB_RECOVERY, _W, "same as job_recovery", alias_of="job_recovery"),
    Field("labels", kinds.LABELS, _N, "kept with the job; machines and disks carry only everstep's own tags"),
    Field("image_id", kinds.ANYTHING, _N, _NO_IMAGE),
    Field("disk_tier", kinds.ANYTHING, _N, _SELF_DISK),
    Field("local_disk", kinds.ANYTHING, _N, _SELF_DISK),
    Field("ephemeral_storage", kinds.DISK, _N, "taken as disk_size", alias_of="disk_size"),
    Field("network_tier", kinds.ANYTHING, _N, "not used: machines get the provider's default network"),
    Field(
        "ports",
        kinds.ANYTHING,
        _N,
        "no port is opened to the outside: machines call the server, never the other way round",
    ),
    Field("accelerator_args", kinds.ANYTHING, _N, "not used: TPU settings mean nothing here"),
    Field("autostop", kinds.ANYTHING, _N, "not used: machines are given back when the job ends", warn_if=_is_given),
    Field("hooks", kinds.ANYTHING, _N, "not run: to act on a preemption notice set checkpoint.on_notice"),
    Field("priority", kinds.ANYTHING, _N, _ORDER),
    Field("priority_class", kinds.ANYTHING, _N, _ORDER),
    Field("volumes", kinds.ANYTHING, _R, _NO_VOLUMES),
)
"""``resources``, and each alternative inside it."""

_LISTS = (
    Field(
        "any_of",
        machines.ALTERNATIVES,
        _W,
        "alternatives; must be every combination of some accelerators, places, types and markets",
    ),
    Field("ordered", machines.ALTERNATIVES, _W, "as any_of; the order of accelerators is a preference"),
)

_FOREIGN_RECOVERY = (
    Field("strategy", kinds.ANY_TEXT, _N, _STRATEGY, warn_if=lambda v: str(v).lower() != "none"),
    Field("max_restarts_on_errors", _RESTARTS, _W, "same as recovery.max_restarts"),
    Field(
        "recover_on_exit_codes",
        kinds.ANYTHING,
        _N,
        "not used: every failure of the program counts against max_restarts",
    ),
)

_FILE_MOUNT = (
    Field(
        "source",
        kinds.PATH,
        _W,
        "local path; without it no bucket is made: the folder is an output, kept across preemptions, "
        "and it is checkpoint.dir unless that is set",
    ),
    Field("mode", _MODES, _N, _COPIED, warn_if=lambda v: v != "COPY"),
    Field("name", kinds.ANY_TEXT, _N, "no bucket of this name is made"),
    Field("store", kinds.ANY_TEXT, _N, "not used: there is no bucket"),
    Field("persistent", kinds.TRUTH, _N, "not used: no bucket is made, none is deleted", warn_if=lambda v: v is False),
    Field("mount_options", kinds.ANYTHING, _N, "not used: there is no bucket"),
    Field("type", kinds.ANY_TEXT, _N, "not used: everything here is a file mount"),
    Field("config", kinds.ANYTHING, _N, "not used: there is no bucket"),
)


def _our(name: str, kind: Kind, text: str) -> Field:
    return Field(name, kind, _W, text, ours=True)


_OUR_TOP = (
    _our("argv", kinds.WORDS, "instead of run: a command as a list of words, started once per rank"),
    _our("recovery", kinds.section("recovery", "a mapping"), "how failures are met"),
    _our("checkpoint", kinds.section("checkpoint", "a mapping"), "where, when and how the program saves"),
    _our("work", kinds.section("work", "a mapping"), "how much there is to do: {steps: N}, or {hours: H, on: TYPE}"),
    _our("objective", kinds.section("objective", "a mapping"), "what to optimise, and within which bounds"),
    _our("policy", kinds.NAME, "name of the selector"),
    _our("stop_grace", kinds.DURATION_OR_ZERO, "time between SIGTERM and SIGKILL (default 30s)"),
)

_RECOVERY = (
    _our("max_restarts", _RESTARTS, "restarts after failures of the program; preemptions never count (default 0)"),
    _our("no_progress_limit", _COUNT, "attempts in a row without progress before the job fails (default 3)"),
    _our("on_no_capacity", _ON_NO_CAPACITY, "wait, on_demand or fail (default: on_demand if spot is auto, else wait)"),
    _our("max_wait", kinds.DURATION, "give up after waiting so long for capacity (default: never)"),
    _our("boot_timeout", kinds.DURATION, "a machine that has not joined by then is replaced (default 10m)"),
    _our("cooldown", kinds.DURATION_OR_ZERO, "how long a pool that failed is avoided (default 30m)"),
    _our(
        "keep_on_failure",
        kinds.DURATION_OR_ZERO,
        "keep the machines so long after a failure, billed visibly (default 0s)",
    ),
)

_CHECKPOINT = (
    _our("dir", kinds.PATH, "folder on the machines (default: chosen by everstep, in EVERSTEP_CHECKPOINT_DIR)"),
    _our("every", kinds.EVERY, "auto (default) or a duration"),
    _our(
        "on_notice",
        kinds.ON_NOTICE,
        "signal or shell command when a preemption is announced (default: through the library)",
    ),
    _our("keep", _COUNT, "how many to keep (default 3)"),
    _our(
        "mode",
        _CHECKPOINT_MODES,
        "who saves and resumes: auto (default: everstep, unless the script uses everstep.train or a framework), "
        "script (everstep), library (the script itself) or off (nobody)",
    ),
    _our(
        "mirror",
        kinds.MIRROR,
        "second place for checkpoints, filled in the background: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or a folder; "
        "the job's id is added",
    ),
    _our(
        "audit",
        _COUNT,
        "for how many steps the first save of each start is tried out beside the training (default: none); "
        "for scripts of one process that everstep saves",
    ),
)

_WORK = (
    _our("steps", _COUNT, "training steps in all"),
    _our("hours", _HOURS, "hours in all on the machine type `on`"),
    _our("on", kinds.WORD, "machine type that hours refers to"),
)

_OBJECTIVE = (
    _our("minimize", kinds.choice("cost", "time"), "cost (default) or time"),
    _our("deadline", kinds.DEADLINE, "a duration from submission, or a time with its zone"),
    _our("budget", kinds.MONEY, "US dollars: upper bound of the bill"),
)


def _table(sections: Mapping[str, tuple[Field, ...]]) -> Mapping[str, Mapping[str, Field]]:
    for place, fields in sections.items():
        names = [one.name for one in fields]
        if len(set(names)) < len(names):
            raise AssertionError(f"a key of '{place}' stands in the table twice")
    return {place: {one.name: one for one in fields} for place, fields in sections.items()}


TABLE = _table(
    {
        "": _TOP + _OUR_TOP,
        "resources": _MACHINE + _LISTS,
        "alternative": _MACHINE,
        "job_recovery": _FOREIGN_RECOVERY,
        "file_mount": _FILE_MOUNT,
        "recovery": _RECOVERY,
        "checkpoint": _CHECKPOINT,
        "work": _WORK,
        "objective": _OBJECTIVE,
    }
)
"""Place (section; empty = top level) -> key -> field."""
