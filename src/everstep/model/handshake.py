"""Names and shapes that the server, the agent and the training process agree on.

Runs on Python 3.9 with the standard library alone: the agent ships it inside its ``.pyz`` and the training library
reads it in the user's environment. Three conversations are fixed here:

* server <-> agent: HTTP + JSON, the agent dials out (section "Wire");
* agent -> rank: environment variables and one *control file* per attempt (section "Rank side");
* rank -> agent: files in a *report folder*, one pair per rank (section "Rank side").

The handshake is versioned. A server talks to agents of its own version and of the version before; a mismatch is
refused at ``join`` with HTTP 426 and a body ``{"error": ...}`` that names both versions.
"""

from __future__ import annotations

HANDSHAKE_VERSION = 1
OLDEST_HANDSHAKE_VERSION = 1

# --------------------------------------------------------------------------------------------------------------------
# Wire: paths (all below the server's base URL). Bodies are JSON objects unless stated. Times are UTC seconds since 1970
# (float); the agent derives them from one reading of the clock at start plus monotonic time.
# --------------------------------------------------------------------------------------------------------------------

PATH_JOIN = "/agent/v1/join"
"""POST. Header ``Authorization: Bearer <one-time join token>``. Body: ``JOIN_*`` keys.

Answer: ``credential``, ``handshake``, ``lease_s``, ``heartbeat_s``, ``orders``. A token is good for one instance; the
same instance may repeat it until its first report.
"""

PATH_REPORTS = "/agent/v1/reports"
"""POST. ``{"messages": [{"seq": n, "t": utc_s, "kind": MSG_*, ...}, ...]}`` with consecutive ``seq`` from 1 per
credential. Answer: ``{"ack": seq, "orders_version": v}``: everything up to ``ack`` is durable and may be forgotten
by the agent. Repeats are harmless.
"""

PATH_ORDERS = "/agent/v1/orders"
"""GET ``?seen=V&wait_s=S``. Long poll: answers the orders document as soon as its ``version`` differs from V;
204 after S seconds.
"""

PATH_LOGS = "/agent/v1/logs"
"""POST ``?attempt=N&rank=R&offset=B`` (rank ``setup`` for set-up output, ``exec-ID`` for exec), body: raw bytes.

Answer: ``{"offset": end}``, the number of bytes the server holds: on a gap or an overlap the agent continues from
there.
"""

PATH_WORKDIR = "/agent/v1/workdir/"
"""GET ``<sha256>``: the uploaded working folder as ``.tar.gz``."""

PATH_OUTPUTS = "/agent/v1/outputs/"
"""PUT ``<relative path>``, body: raw bytes, header ``X-Everstep-Sha256``. Stores one file of ``outputs``."""

PATH_OBJECTS = "/agent/v1/objects/"
"""POST ``sign``, ``list``, ``delete`` or ``create``: the objects of the job's mirror, where the server has the keys of
the bucket. Keys are relative to the job's own place there (``SPEC_CHECKPOINT_MIRROR``), and never outside of it.

* ``sign``: ``{"method": "GET"|"PUT", "keys": [...]}``. Answer: ``{"urls": [...], "life_s": s}``.
* ``list``: ``{"prefix": text}``. Answer: ``{"objects": {key: bytes}}``.
* ``delete``: ``{"keys": [...]}``. Answer: ``{}``.
* ``create?key=KEY``, body: raw bytes. Answer: ``{"created": bool}``; false: one of that key was there, and stays.

404: the server has no keys of that bucket, or the job has no mirror. The agent answers the same below the same path on
a socket of its own (``ENV_OBJECTS``), for the ranks: they never see the credential.
"""

PATH_FILES = "/agent/v1/files/"
"""POST ``folder`` or ``output``: files that move between the machine and a bucket of the server's, by URLs that it
signs. They are good for minutes; whoever comes late asks again.

* ``folder``: ``{"sha256": text}``. Answer: ``{"by_url": true, "url": text, "bytes": n}``.
* ``output``: ``{"path": text, "bytes": n, "sha256": text}``. Answer: ``{"by_url": true, "puts": [{"url": text,
  "start": n, "bytes": n}, ...]}``: store these stretches of the file and ask again. None: all of it is there, and kept.

``{"by_url": false}``, and 404 of a server that is older: ask ``PATH_WORKDIR``, or ``PATH_OUTPUTS``.
"""

PATH_AGENT = "/agent/v1/agent/"
"""GET ``<sha256>.pyz``, without a credential: the agent itself, named by its digest."""

# Keys of the join body.
JOIN_HANDSHAKE = "handshake"  # [oldest, newest] the agent speaks
JOIN_INSTANCE = "instance"  # the provider's id of the machine
JOIN_ADDRESS = "address"  # address other nodes reach this one at
JOIN_PROBE_PORT = "probe_port"  # TCP port on which the agent answers reachability probes
JOIN_GPUS = "gpus"  # number of GPUs seen
JOIN_AGENT = "agent"  # agent version, text
JOIN_BOOTED_AT = "booted_at"  # utc_s: when this agent process started
JOIN_ATTEMPT = "attempt"  # attempt whose ranks are still running here (an agent that came back), else null
JOIN_IDENTITY = "identity"  # what the vendor signed about this machine: {name: text}; absent where there is none.
#                             aws: document, signature. gcp: token (its audience: the server's URL)

# Message kinds, agent -> server. Every message has seq, t, kind. "journal" = becomes an event; others are telemetry.
MSG_HEARTBEAT = "heartbeat"  # attempt|null, ranks_alive: int; optional: warnings: [text], dropped: int (messages)
MSG_READY = "ready"  # journal. port (the held master port), setup_s (with the ranks' imports, where they were waited
#                      for), prepared (digest of what was prepared), probe_port. Told again with a new port as soon as
#                      an attempt started: the port of the next one
MSG_SETUP_FAILED = "setup_failed"  # journal. rc, tail (last lines of set-up output)
MSG_CHECKED = "checked"  # journal. attempt, unreachable: [addresses]
MSG_STARTED = "started"  # journal. attempt, ranks: int, spawned_at
MSG_PROGRESS = "progress"  # attempt, step, total|null, metrics: {name: float}. At most every heartbeat and 1 s
MSG_RESTORED = "restored"  # journal. attempt, base: "A:S"|null, restore_s; optional: missed: "A:S", the base that the
#                            orders named, where it was gone and the newest that is left was taken
# From rank 0 once the manifest is published.
MSG_SAVED = "saved"  # journal. attempt, step, bytes, save_s, stall_s, durable: bool
# Of the script's rank, when a save was tried out beside the training (`checkpoint.audit`).
MSG_AUDITED = "audited"  # journal. attempt, save: "A:S", verdict: "exact"|"differs"|"refuses"|"unknown", text
MSG_ENDED = "ended"  # journal. attempt, outcome: OUTCOME_*, rc, signal|null, failed_rank|null, step|null, total|null,
#                      first_step_at|null, last_step_at|null, steps_done, stall_s (saving),
#                      tail (last lines of the failed rank); agent_killed: true if they died with their agent
MSG_NOTICE = "notice"  # journal. notice: "rebalance"|"terminate"|"maintenance"|"max_life", deadline: utc_s|null
MSG_SHUTDOWN = "shutdown"  # journal. how: "preempted"|"normal": the last words of the shutdown hook
MSG_OUTPUTS_STORED = "outputs_stored"  # journal. files, bytes, error|null
# When it can be told: saved and stopped, no word from the server.
MSG_LEASE_EXPIRED = "lease_expired"  # journal. attempt
MSG_EXEC_ENDED = "exec_ended"  # id (of the exec order), rc
# At most once per attempt: the checkpoint folder grew (scripts without our library).
MSG_FOLDER_GROWTH = "folder_growth"  # journal. attempt

OUTCOME_OK = "ok"  # every rank of this node exited 0
OUTCOME_FAILED = "failed"  # a rank exited non-zero by itself
OUTCOME_SAVED = "saved"  # ranks stopped on request after a save (exit EXIT_SAVED)
OUTCOME_STOPPED = "stopped"  # ranks were stopped on request, no save reported

# Orders document, server -> agent: what the instance should be doing now. The agent compares it with what it does and
# acts on the difference; a repeated document changes nothing.
ORDERS_VERSION = "version"  # int, grows
ORDERS_PHASE = "phase"  # one of PHASE_*
ORDERS_ATTEMPT = "attempt"  # int|null; an attempt lower than one already seen is ignored
ORDERS_SPEC = "spec"  # object, keys SPEC_*; what to prepare and run
ORDERS_NODE_RANK = "node_rank"
ORDERS_PEERS = "peers"  # [{"rank": r, "address": a, "probe_port": p}], by node rank; optional: instance
ORDERS_MASTER = "master"  # {"address": a, "port": p}
ORDERS_BASE = "base"  # "A:S" to start from exactly there, "" = newest visible
# The first attempt that was told of `base`: a wish goes from attempt to attempt until one says `restored`. 0 or absent
# (servers before it) = binding: refused where it is not there.
ORDERS_BASE_SINCE = "base_since"
ORDERS_SAVE = "save"  # null or {"seq": n, "by": utc_s|null}: save at the next step, again shortly before `by`
ORDERS_STOP = "stop"  # null or {"save": bool, "grace_s": s, "reason": text}
ORDERS_EXEC = "exec"  # [{"id": text, "command": text}]
ORDERS_HAZARD_PER_H = "hazard_per_h"  # expected losses of the gang per hour, paces saves

PHASE_PREPARE = "prepare"  # fetch workdir, run set-up, hold a port, report ready, then stay
PHASE_CHECK = "check"  # probe every peer, report checked
PHASE_RUN = "run"  # start the ranks of `attempt` (once)
PHASE_HOLD = "hold"  # no ranks should run; stay prepared (stop them as `stop` says if they do)
PHASE_RELEASE = "release"  # stop, store outputs if asked (spec.release_outputs), then say
#                          shutdown and exit

SPEC_JOB = "job"
SPEC_TASK_NAME = "name"
SPEC_SETUP = "setup"  # shell text or ""
SPEC_RUN = "run"  # shell text; executed once per node
SPEC_ARGV = "argv"  # list|null: instead of `run`: a command started once per rank (EVERSTEP_RANKS_PER_NODE)
SPEC_RANKS_PER_NODE = "ranks_per_node"  # int|null; null = `run` is started once and makes its own ranks
SPEC_NUM_NODES = "num_nodes"
SPEC_ENVS = "envs"  # {name: value}, secrets included; never logged
SPEC_SECRET_NAMES = "secret_names"  # which of envs are secret
SPEC_WORKDIR = "workdir"  # sha256 of the uploaded folder or ""
SPEC_FILE_MOUNTS = "file_mounts"  # {remote path: {"workdir": sha256}} or {"source": text}
SPEC_CHECKPOINT_DIR = "checkpoint_dir"  # path on the node; "" = a folder of the agent's choice on the disk
SPEC_CHECKPOINT_SHARED = "checkpoint_shared"  # bool: every node sees the same folder there
SPEC_CHECKPOINT_EVERY = "checkpoint_every"  # "auto" or seconds as text
SPEC_CHECKPOINT_KEEP = "checkpoint_keep"  # int
SPEC_CHECKPOINT_MIRROR = "checkpoint_mirror"  # second place, of this job alone; "" or absent = none
SPEC_CHECKPOINT_AUDIT = "checkpoint_audit"  # int, steps for which a save is audited; 0 or absent = none is
SPEC_CHECKPOINT_MODE = "checkpoint_mode"  # MODE_*; absent = MODE_LIBRARY, what servers before it meant
SPEC_ON_NOTICE = "on_notice"  # "" (the library listens), "SIGUSR1"..., or a shell command
SPEC_OUTPUTS = "outputs"  # list of paths; none = the checkpoint folder
SPEC_RELEASE_OUTPUTS = "release_outputs"  # bool: store outputs before leaving
SPEC_SLOT = "slot"  # int: the place of this instance (and its disk) in the gang; not a rank
SPEC_STOP_GRACE_S = "stop_grace_s"  # seconds between SIGTERM and SIGKILL when ranks are stopped

# --------------------------------------------------------------------------------------------------------------------
# Rank side: environment of the user's process (SkyPilot's and torch's own names are set beside these, see agent)
# --------------------------------------------------------------------------------------------------------------------

ENV_HANDSHAKE = "EVERSTEP_HANDSHAKE"
ENV_JOB = "EVERSTEP_JOB"
ENV_TASK_ID = "EVERSTEP_TASK_ID"  # same meaning as SKYPILOT_TASK_ID: one id over all attempts
ENV_ATTEMPT = "EVERSTEP_ATTEMPT"  # int as text
ENV_INSTANCE = "EVERSTEP_INSTANCE"
ENV_NODE_RANK = "EVERSTEP_NODE_RANK"
ENV_NODE_IPS = "EVERSTEP_NODE_IPS"  # one address per line, by node rank
ENV_NUM_NODES = "EVERSTEP_NUM_NODES"
ENV_NUM_GPUS_PER_NODE = "EVERSTEP_NUM_GPUS_PER_NODE"
ENV_RANKS_PER_NODE = "EVERSTEP_RANKS_PER_NODE"
ENV_CHECKPOINT_DIR = "EVERSTEP_CHECKPOINT_DIR"
ENV_CHECKPOINT_SHARED = "EVERSTEP_CHECKPOINT_SHARED"  # "1" = all nodes see the same folder
ENV_CHECKPOINT_EVERY = "EVERSTEP_CHECKPOINT_EVERY"  # "auto" or seconds
ENV_CHECKPOINT_KEEP = "EVERSTEP_CHECKPOINT_KEEP"
ENV_CHECKPOINT_MIRROR = "EVERSTEP_CHECKPOINT_MIRROR"  # s3://BUCKET/PREFIX or a folder, of this job alone
ENV_OBJECTS = "EVERSTEP_OBJECTS"  # UNIX socket of the agent that answers PATH_OBJECTS; set where there is a mirror
ENV_CHECKPOINT_MODE = "EVERSTEP_CHECKPOINT_MODE"  # MODE_*; with MODE_OFF the library neither restores nor saves
ENV_CHECKPOINT_AUDIT = "EVERSTEP_CHECKPOINT_AUDIT"  # for how many steps `everstep.train.run` audits a save; "" = none
ENV_BASE = "EVERSTEP_BASE"  # "A:S": start from exactly that checkpoint; "" = newest visible
ENV_BASE_SINCE = "EVERSTEP_BASE_SINCE"  # int as text: as of ORDERS_BASE_SINCE; "" = binding
ENV_REPORT_DIR = "EVERSTEP_REPORT_DIR"  # where ranks leave reports
ENV_CONTROL_FILE = "EVERSTEP_CONTROL_FILE"  # what the agent wants of the ranks
ENV_LOG_PIPE = "EVERSTEP_LOG_PIPE"  # "LABEL:DEVICE:INODE" of the pipe whose bytes become the log of rank LABEL
ENV_HAZARD_PER_H = "EVERSTEP_HAZARD_PER_H"  # expected losses of the gang per hour, float as text

MODE_AUTO = "auto"  # who saves and resumes is found out by looking at the script
MODE_SCRIPT = "script"  # everstep, from outside: `everstep.train.run` runs the script
MODE_LIBRARY = "library"  # the script itself
MODE_OFF = "off"  # nobody

EXIT_SAVED = 75
"""Exit code of a rank that saved and stopped because it was asked to (EX_TEMPFAIL of sysexits.h)."""
EXIT_REFUSED = 76
"""Exit code of a rank that refuses to train on because it could not resume exactly (EX_PROTOCOL)."""
REFUSAL = "everstep: "
"""How the line begins that such a rank leaves on stderr. The last one in ``tail`` of ``ended`` is the reason."""

# Control file (JSON, replaced atomically by the agent; ranks look at its mtime at each step boundary):
#   {"seq": n, "save": bool, "save_by": utc_s|null, "stop": bool, "hazard_per_h": x}
# A higher `seq` with save: save at the next step boundary all ranks agree on, and once more shortly before `save_by`,
# then hold still. stop: save at the next agreed boundary and exit EXIT_SAVED.
CONTROL_SEQ = "seq"
CONTROL_SAVE = "save"
CONTROL_SAVE_BY = "save_by"
CONTROL_STOP = "stop"
CONTROL_HAZARD_PER_H = "hazard_per_h"

# Report folder: `progress-<rank>.json` is overwritten atomically, at most every 0.2 s:
#   {"t": utc_s, "rank": r, "step": n, "total": n|null, "first_step_at": utc_s, "steps_done": n, "metrics": {...},
#    "stall_s": s}
# `facts-<rank>.jsonl` is appended, one JSON object a line, flushed at once:
#   {"t":, "kind": "restored", "base": "A:S"|null, "restore_s":}     (optional: "missed": "A:S")
#   {"t":, "kind": "saved", "step":, "bytes":, "save_s":, "stall_s":, "durable": bool}       (rank 0,
#    after the manifest)
#   {"t":, "kind": "warning", "text":}
#   {"t":, "kind": "audit", "verdict": "exact"|"differs"|"refuses"|"unknown", "save": "A:S", "begin":, "end":, "text":,
#    "first_difference": text|null, "first_step": n|null}
REPORT_PROGRESS_PREFIX = "progress-"
REPORT_FACTS_PREFIX = "facts-"
FACT_RESTORED = "restored"
FACT_SAVED = "saved"
FACT_WARNING = "warning"
FACT_AUDIT = "audit"

# Marks in the log of a rank, by which logs of several attempts become one text. A script that is resumed from outside
# writes them between its output, if its standard output is the pipe of ENV_LOG_PIPE and nothing else:
#   ESC "_everstep;" KIND ";" SCRIPT ";" COUNT ESC "\\"
# SCRIPT names the checkpoint folder, COUNT is how many bytes the script has printed in all, over all attempts.
LOG_MARK_BEGIN = b"\x1b_everstep;"  # terminals show nothing of it (an "application program command")
LOG_MARK_END = b"\x1b\\"
LOG_MARK_LONGEST = 160
LOG_AT = "at"  # so far
LOG_AGAIN = "again"  # what follows was printed before: for a log that lacks the end of it; LOG_AT within
LOG_ON = "on"  # from here the script goes on behind so many bytes; 0: it begins
LOG_BESIDE = "beside"  # another rank prints into the same log

# --------------------------------------------------------------------------------------------------------------------
# What an instance is told at boot (user data): environment of the agent process
# --------------------------------------------------------------------------------------------------------------------

BOOT_SERVER = "EVERSTEP_SERVER"  # base URL of the server
BOOT_TOKEN = "EVERSTEP_TOKEN"  # one-time join token
BOOT_CA_FINGERPRINT = "EVERSTEP_CA_SHA256"  # pinned certificate, "" for plain HTTP on loopback
BOOT_METADATA = "EVERSTEP_METADATA"  # "FLAVOUR=URL": where and how to watch for notices: local|aws|gcp|none
BOOT_ADDRESS = "EVERSTEP_ADDRESS"  # address to report to peers; "" = find out
BOOT_ROOT = "EVERSTEP_ROOT"  # the instance's disk: the agent keeps everything below this folder
BOOT_INSTANCE = "EVERSTEP_INSTANCE_ID"  # id of the machine where no metadata service tells it
BOOT_AGENT_SHA256 = "EVERSTEP_AGENT_SHA256"  # digest of the agent that the machine is to fetch and run
BOOT_DEVICES = "EVERSTEP_DEVICES"  # folder of the disks' devices by name; "" = /dev/disk/by-id
