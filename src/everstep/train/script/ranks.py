"""Several ranks that are started by torchrun or by the agent: how they begin together, and agree where to save.

Before the script has made its process group the ranks meet in the launcher's store, or, where the agent numbers the
attempt, in the checkpoint folder: rank 0 begins the attempt, the others read from its record what it continues from.
Afterwards they agree over a gloo group. A vote costs a small all-reduce, so it is held about every tenth of a second:
the ranks count their safe points, which are the same on all of them, and each vote says how many to count to the next.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import pickle
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from everstep.model import handshake
from everstep.train.attempt import Refused
from everstep.train.folder import Folder
from everstep.train.gang import Gang, let_go
from everstep.train.lineage import candidates
from everstep.train.opening import Opened
from everstep.train.reports import Reporter
from everstep.train.script.refusal import refuse
from everstep.train.shard import Damaged, read_shard

_VOTE_EVERY_S = 0.1
MOST_POINTS = 1000
"""Votes are never further apart than this many safe points."""
_VOTE_PATIENCE = datetime.timedelta(seconds=60)
_CLOSE_PATIENCE_S = 5.0
_RECORD_PATIENCE_S = 600.0
_LOOK_S = 0.05


@dataclass(frozen=True)
class StoreGang(Gang):
    """Ranks that meet in a store; ``group`` is the store. For the few words before there is a process group."""

    words: Iterator[int] = field(default_factory=itertools.count)

    def gather(self, mine: Any) -> list[Any]:
        """What every rank gave, by rank."""
        word = next(self.words)
        self.group.set(f"{word}/{self.rank}", pickle.dumps(mine))
        return [pickle.loads(self.group.get(f"{word}/{rank}")) for rank in range(self.world_size)]

    def tell(self, mine: Any) -> Any:
        """What rank 0 gave."""
        return self.gather(mine)[0]


def at_start(env: Mapping[str, str], where: str) -> Gang:
    """The ranks of this launch, before the script has made a process group.

    Raises:
        Refused: several ranks without a way to agree on the attempt.
    """
    world = int(env.get("WORLD_SIZE") or 1)
    if world == 1:
        return Gang(where=where)
    rank, local = int(env["RANK"]), int(env.get("LOCAL_RANK") or 0)
    if env.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = dist.TCPStore(env["MASTER_ADDR"], int(env["MASTER_PORT"]), is_master=False)  # type: ignore[attr-defined]
        name = f"everstep/{env.get('TORCHELASTIC_RUN_ID')}/{env.get('TORCHELASTIC_RESTART_COUNT')}"
        prefixed = dist.PrefixStore(name, store)  # type: ignore[attr-defined]
        return StoreGang(rank, world, leads_node=local == 0, where=where, group=prefixed)
    if env.get(handshake.ENV_ATTEMPT):
        return Gang(rank, world, leads_node=local == 0, where=where)
    raise Refused(f"{world} ranks cannot agree on where to continue: start them with torchrun, or by the agent")


def strangers(world_size: int) -> str | None:
    """Why a launch of so many ranks must not save: its script has joined others, of which each would save by itself.

    None if it has not, as a script without a process group.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == world_size:
        return None
    return (
        f"torch.distributed has {dist.get_world_size()} ranks here, this launch knows of {world_size}; "
        "start them with torchrun, or by the agent"
    )


class Meeting:
    """Where all ranks wait for each other while the script has no process group: in the launcher's store, or where the
    agent numbers the attempt, in the checkpoint folder.

    Args:
        gang: the ranks at the start.
        folder: the checkpoint folder.
        env: of this process.
    """

    def __init__(self, gang: Gang, folder: Path, env: Mapping[str, str]) -> None:
        self._gang = gang
        self._by_folder = gang.world_size > 1 and gang.group is None
        self._folder = folder / "meetings" / f"{int(env.get(handshake.ENV_ATTEMPT) or 0):06d}"
        self._number = 0
        if self._by_folder:
            shutil.rmtree(self._mark(gang.rank).parent, ignore_errors=True)

    def __call__(self) -> None:
        """Returns when all ranks have called it so many times. Refuses if one never does."""
        if not self._by_folder:
            self._gang.gather(None)
            return
        mark = self._mark(self._gang.rank)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        deadline = time.monotonic() + _RECORD_PATIENCE_S
        for rank in range(self._gang.world_size):
            while not self._mark(rank).exists():
                if time.monotonic() > deadline:
                    refuse(f"rank {rank} did not come: {self._mark(rank)} is not there")
                time.sleep(_LOOK_S)
        self._number += 1

    def _mark(self, rank: int) -> Path:
        return self._folder / f"{rank}" / f"{self._number}"


def follow(
    gang: Gang, folder: Folder, reporter: Reporter, attempt: int, *, check: Callable[[Mapping[str, Any]], str]
) -> Opened:
    """What rank 0 begins, seen by another rank that has only the folder in common with it.

    Args:
        gang: the ranks.
        folder: the checkpoint folder.
        reporter: told what is skipped.
        attempt: its number.
        check: says what keeps a state that can be read from being continued here, "" for nothing.

    Raises:
        Refused: rank 0 did not begin, or its checkpoint cannot be read here.
    """
    deadline = time.monotonic() + _RECORD_PATIENCE_S
    while (record := folder.read_record(attempt)) is None:
        if time.monotonic() > deadline:
            raise Refused(f"rank 0 has not begun attempt {attempt} in {folder.root}: do all ranks see this folder?")
        time.sleep(_LOOK_S)
    for position in candidates(folder.listing(), attempt):
        manifest = folder.read_manifest(position)
        if manifest is None:
            continue
        if manifest.world_size != gang.world_size:
            raise Refused(
                f"checkpoint {position} was written by {manifest.world_size} ranks, now there are {gang.world_size}: "
                "training on would not be exact"
            )
        try:
            state = read_shard(folder, manifest, gang.rank)
            problem = check(state)
        except Damaged as error:
            state, problem = None, str(error)
        if not problem:
            return Opened(attempt, record.base, position, state)
        reporter.warn(f"checkpoint {position} is skipped: {problem}")
    return Opened(attempt, record.base, None, None)


@dataclass(frozen=True)
class Wishes:
    """What a rank wants at a safe point; of all ranks together: what any of them wants.

    Attributes:
        save: a save is due.
        asked: somebody has asked for one: it is to be complete before training goes on.
        stop: and it is to end then.
        hold: and it is to stand still then.
        busy: its part of the save that is under way is not through.
    """

    save: bool
    asked: bool
    stop: bool
    hold: bool
    busy: bool


NOTHING = Wishes(save=False, asked=False, stop=False, hold=False, busy=True)


class Apart(Exception):
    """The ranks are not at the same place of the same training; they cannot agree on anything."""


class Votes:
    """Agreement at safe points. All ranks must call `due` and `vote` at each of their safe points.

    Args:
        join: makes the group of all ranks; called at the first vote, when the script has its process group.
        most_points: never count further than this to the next vote.
    """

    def __init__(self, join: Callable[[], Gang], most_points: int = MOST_POINTS) -> None:
        self._join = join
        self._most_points = most_points
        self._gang: Gang | None = None
        self._group: Any = None
        self._left = 1
        self._every = 1
        self._voted_at = time.monotonic()

    @property
    def gang(self) -> Gang:
        """All ranks; made by the first vote."""
        assert self._gang is not None
        return self._gang

    def close(self) -> None:
        """Let go of the groups: their threads must not outlive the interpreter, which would abort the process."""
        groups = [self._group] if self._gang is None else [self._group, self._gang.group]
        self._gang = self._group = None

        def destroy() -> None:
            let_go()
            while groups:
                group = groups.pop()
                with contextlib.suppress(ValueError):  # the script has destroyed all groups, ours among them
                    if group is not None:
                        dist.destroy_process_group(group)

        # Aside: a group may wait for a rank that is gone, and a script that is over must not hang for our sake.
        closer = threading.Thread(target=destroy, name="everstep-close", daemon=True)
        closer.start()
        closer.join(_CLOSE_PATIENCE_S)

    def due(self) -> bool:
        """Counts a safe point; true if the ranks vote at it."""
        self._left -= 1
        return self._left <= 0

    def vote(self, wishes: Wishes, count: int) -> Wishes:
        """What any rank wants.

        Args:
            wishes: of this rank.
            count: its steps so far.

        Raises:
            Apart: another rank is somewhere else, or does not vote.
        """
        if self._gang is None:
            self._gang = self._join()
            self._group = dist.new_group(backend="gloo", timeout=_VOTE_PATIENCE)
        mine = [*map(int, astuple(wishes)), count, -count, self._pace()]
        ballot = torch.tensor(mine, dtype=torch.int64)
        try:
            dist.all_reduce(ballot, op=dist.ReduceOp.MAX, group=self._group)
        except RuntimeError as error:
            raise Apart(f"another rank did not vote: {error}") from error
        *wanted, most, least, self._every = ballot.tolist()
        self._left = self._every
        if most != -least:
            raise Apart(f"one rank has done {-least} steps, another {most}")
        return Wishes(*map(bool, wanted))

    def _pace(self) -> int:
        """Safe points to the next vote, by rank 0's clock; the others leave it to rank 0."""
        now = time.monotonic()
        took_s, self._voted_at = now - self._voted_at, now
        if self.gang.rank != 0:
            return 1
        each_s = max(took_s / self._every, 1e-6)
        return max(1, min(self._most_points, int(_VOTE_EVERY_S / each_s)))


def joined(env: Mapping[str, str]) -> Gang:
    """All ranks, over the process group that the script made.

    Raises:
        Apart: it made none.
    """
    try:
        return Gang.join(env)
    except RuntimeError as error:
        raise Apart("there are several ranks, and no process group of torch.distributed") from error
