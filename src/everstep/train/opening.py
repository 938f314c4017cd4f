"""Beginning an attempt: take a number, choose a base that every rank can read, freeze it, restore."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from everstep.model import handshake
from everstep.train import randomness
from everstep.train.attempt import Refused, Run, Stateful, trained
from everstep.train.beside import load_optimizer
from everstep.train.exchange import Exchange
from everstep.train.folder import FORMAT, Folder, Manifest
from everstep.train.frameworks import unsupported
from everstep.train.gang import Gang
from everstep.train.hydration import Hydration
from everstep.train.lineage import Listing, Position, Record, Wish, candidates, preferred
from everstep.train.mirror import Lost, Mirror, Share
from everstep.train.pace import DEFAULT_HAZARD_PER_H, Pace, parse_every
from everstep.train.reports import Reporter
from everstep.train.requests import Requests, Terminations
from everstep.train.shard import Damaged, Unreadable, read_shard
from everstep.train.stores import open_store
from everstep.train.surroundings import Surroundings

_DEFAULT_DIR = "checkpoints"
_DEFAULT_KEEP = 3
_TRIES = 20


@dataclass(frozen=True)
class Opened:
    """What an attempt begins with: its number, its base as written in its record, and the state to continue from.

    ``base`` and ``source`` differ only if the same attempt is started again: it continues from its own newest save.
    ``missed``: what a server had asked for as the base, and is gone.
    """

    attempt: int
    base: Position | None
    source: Position | None
    state: dict[str, Any] | None
    missed: Position | None = None


def restored(opened: Opened, began: float) -> dict[str, Any]:
    """The fields of ``FACT_RESTORED``, once everything is back; ``began``: monotonic seconds when that was begun."""
    base = None if opened.source is None else str(opened.source)
    missed = {} if opened.missed is None else {"missed": str(opened.missed)}
    return {"base": base, "restore_s": time.monotonic() - began, **missed}


def attach(
    *,
    dir: str | os.PathLike[str] | None = None,
    every: str | float | None = None,
    keep: int | None = None,
    shared: bool | None = None,
    mirror: str | None = None,
    copy_at_once: bool = False,
    gradients: bool = False,
    **objects: Stateful,
) -> Run:
    """Make training survive: restores the newest checkpoint, if there is one, and returns the `Run` that saves.

    Call it when everything is built and, with several ranks, after ``torch.distributed.init_process_group``; all ranks
    must call it. What is not given here comes from the agent's environment, so that a script needs none of it.

    Args:
        dir: the checkpoint folder. Default: ``EVERSTEP_CHECKPOINT_DIR``, else ``./checkpoints``.
        every: seconds between saves, or ``"auto"`` (default): from the measured cost of a save and the expected losses.
            Such saves are written in the background. 0: each step is saved before the next one begins.
        keep: how many of the newest checkpoints stay, at least 1; default 3. The one this attempt began from stays too.
        shared: whether all machines see the same ``dir``. Default: what the agent says; without one, true on one
            machine only. Without sharing each machine keeps its own ranks' state: a lost disk loses the checkpoint.
        mirror: a second place for published checkpoints, ``s3://BUCKET/PREFIX`` (credentials in the ``AWS_*``
            variables) or a folder; default ``EVERSTEP_CHECKPOINT_MIRROR``. Filled in the background; a checkpoint is
            durable when it is there. Read where ``dir`` does not have what it has.
        copy_at_once: copy everything at the step boundary, nothing under the next forward and backward pass. For
            scripts that write to parameters outside of an optimizer's step in ways that torch does not see.
        gradients: save the gradients that are there in any case. For scripts that use those of an earlier step now and
            then, or only read them; where the steps before a save have set them to None, they are left out otherwise,
            and whoever uses them behind a restart is refused.
        objects: what must come back, by names that stay the same: ``model=model, optimizer=optimizer``, anything with
            ``state_dict`` and ``load_state_dict``. The states of the random number generators come by themselves.

    Raises:
        Refused: training on would not be exact (exit code 76), with the reason on stderr.
        TypeError: an object has no ``state_dict`` and ``load_state_dict``.
        ValueError: an argument or an environment variable makes no sense.
        RuntimeError: several ranks, and no process group yet.
    """
    for name, thing in objects.items():
        foreign = unsupported(thing)
        if foreign:
            raise TypeError(f"attach({name}=...): {foreign}")
        if not (callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))):
            raise TypeError(f"attach({name}=...): {type(thing).__name__} has no state_dict and load_state_dict")
    env = os.environ
    every_s = parse_every(str(env.get(handshake.ENV_CHECKPOINT_EVERY, "auto") if every is None else every))
    site = _Site.find(env, dir, keep, shared)
    site.mirror = site.open_mirror(env.get(handshake.ENV_CHECKPOINT_MIRROR) if mirror is None else mirror, env)
    began = time.monotonic()
    try:
        _refuse_another_training(site.folder.root)
        opened = Opening(site.gang, site.folder, site.reporter, site.one_folder, mirror=site.mirror).open(env)
        _load(objects, opened)
    except Refused as refusal:
        site.refuse(refusal.text)
        raise
    site.reporter.fact(handshake.FACT_RESTORED, **restored(opened, began))
    return Run(objects, site.surround(env, opened, every_s, copy_at_once), opened.state, gradients=gradients)


@dataclass
class _Site:
    """Where an attempt runs, before it has begun."""

    gang: Gang
    folder: Folder
    reporter: Reporter
    keep: int
    one_folder: bool
    mirror: Mirror | None = None

    @staticmethod
    def find(
        env: Mapping[str, str], dir: str | os.PathLike[str] | None, keep: int | None, shared: bool | None
    ) -> _Site:
        kept = int(env.get(handshake.ENV_CHECKPOINT_KEEP) or _DEFAULT_KEEP) if keep is None else keep
        if kept < 1:
            raise ValueError(f"keep must be at least 1, got {kept}")
        gang = Gang.join(env)
        report_dir = env.get(handshake.ENV_REPORT_DIR)
        reporter = Reporter(Path(report_dir) if report_dir else None, gang.rank)
        # The script may change its working folder afterwards.
        root = Path(dir if dir is not None else env.get(handshake.ENV_CHECKPOINT_DIR) or _DEFAULT_DIR).absolute()
        folder = Folder(root, reporter.warn if gang.leads_node else _silent)
        one_folder = gang.nodes == 1 or (env.get(handshake.ENV_CHECKPOINT_SHARED) == "1" if shared is None else shared)
        if not one_folder and gang.rank == 0:
            reporter.warn(
                f"{gang.nodes} machines without a shared checkpoint folder: checkpoints are not durable, "
                "the loss of one machine's disk loses them"
            )
        return _Site(gang, folder, reporter, kept, one_folder)

    def open_mirror(self, url: str | None, env: Mapping[str, str]) -> Mirror | None:
        """The mirror at ``url``, None for none. ValueError: it makes no sense."""
        return Mirror(open_store(url, env), self.folder, self.reporter.warn) if url else None

    def refuse(self, text: str) -> None:
        """Tell why there will be no run, and let go of the mirror."""
        self.reporter.refuse(text)
        if self.mirror is not None:
            self.mirror.close()

    def surround(
        self, env: Mapping[str, str], opened: Opened, every_s: float | None, copy_at_once: bool
    ) -> Surroundings:
        """What the run works with. From here on SIGTERM means: save and stop at the next step."""
        control = env.get(handshake.ENV_CONTROL_FILE)
        hazard_per_h = float(env.get(handshake.ENV_HAZARD_PER_H) or DEFAULT_HAZARD_PER_H)
        cost_s = opened.state["save_cost_s"] if opened.state is not None else None
        terminations = Terminations()
        terminations.listen()
        if self.mirror is not None:
            self.mirror.begin(Share(opened.attempt, self.gang.rank, self.keep), self._durable)
        return Surroundings(
            gang=self.gang,
            folder=self.folder,
            reporter=self.reporter,
            requests=Requests(Path(control) if control else None, self.reporter.utc()),
            terminations=terminations,
            pace=Pace(every_s, hazard_per_h, now=time.monotonic(), save_cost_s=cost_s),
            attempt=opened.attempt,
            base=opened.source,
            keep=self.keep,
            one_folder=self.one_folder,
            copy_at_once=copy_at_once,
            mirror=self.mirror,
        )

    def _durable(self, manifest: Manifest) -> None:
        self.reporter.fact(
            handshake.FACT_SAVED,
            step=manifest.position.step,
            bytes=manifest.bytes,
            save_s=0.0,
            stall_s=0.0,
            durable=True,
        )


class Opening:
    """The steps by which all ranks begin one attempt together.

    Args:
        gang: all ranks.
        folder: this rank's view of the checkpoint folder.
        reporter: told about everything that is skipped.
        one_folder: true if all ranks see the same folder; else one rank of each machine keeps its own.
        mirror: where checkpoints are looked for that the folder does not have.
        check: says what keeps a state that can be read from being continued here, "" for nothing.
    """

    def __init__(
        self,
        gang: Gang,
        folder: Folder,
        reporter: Reporter,
        one_folder: bool,
        *,
        mirror: Mirror | None = None,
        check: Callable[[Mapping[str, Any]], str] | None = None,
    ) -> None:
        self._check = check
        self._gang = gang
        self._folder = folder
        self._reporter = reporter
        self._keeps_folder = gang.rank == 0 or (gang.leads_node and not one_folder)
        self._exchange = None if one_folder or gang.group is None else Exchange(gang, folder, self._keeps_folder)
        self._hydration = None if mirror is None else Hydration(gang, folder, mirror, self._keeps_folder)

    def open(self, env: Mapping[str, str]) -> Opened:
        """Begin the attempt that the environment names, or the next free one.

        Raises:
            Refused: a newer attempt has begun, a base asked for by hand is not there, or the world size differs.
        """
        numbered = env.get(handshake.ENV_ATTEMPT)
        wish = _wish(env)
        self._together(self._folder.prepare)
        if self._hydration is not None:
            self._hydrate(self._hydration, int(numbered) if numbered else None, wish)
        for _ in range(_TRIES):
            listing = self._list()
            attempt = int(numbered) if numbered else listing.next_attempt()
            self._together(lambda attempt=attempt: self._folder.claim(attempt))
            # Only what is listed after the claim may be chosen (see `lineage`).
            listing = self._list()
            self._refuse_if_fenced(listing, attempt)
            record = listing.records.get(attempt)
            if record is not None:
                source, state = self._first_readable(candidates(listing, attempt))
                return Opened(attempt, record.base, source, state)
            base, state = self._first_readable(preferred(listing, wish, attempt))
            if base is None and listing.manifests and self._gang.rank == 0:
                self._reporter.warn(
                    f"none of the {len(listing.manifests)} checkpoints in {self._folder.root} can be read: training "
                    "starts from the beginning; they stay where they are"
                )
            missed = self._missed(listing, wish, base)
            if not self._begin(Record(attempt, base, self._gang.world_size)):
                # Somebody took this number in the meantime: look again.
                continue
            self._refuse_if_fenced(self._list(), attempt)
            self._together(lambda attempt=attempt: self._folder.sweep(attempt))
            return Opened(attempt, base, base, state, missed)
        raise Refused(f"no attempt could begin in {self._folder.root}: others keep beginning there")

    def _missed(self, listing: Listing, wish: Wish | None, base: Position | None) -> Position | None:
        """The base that was asked for, if it is not the one chosen.

        The newest keeps everything visible that is there, so that another one can be asked for. To stop would make a
        failure of the job's out of a lost disk.
        """
        if wish is None or base == wish.base or not wish.stands(listing):
            return None
        there = ", ".join(str(p) for p in reversed(candidates(listing))) or "none"
        gone = f"checkpoint {wish.base} is not there or not whole; visible in {self._folder.root}: {there}"
        if wish.binding:
            raise Refused(gone)
        if self._gang.rank == 0:
            self._reporter.warn(f"{gone}; " + ("starting from nothing" if base is None else f"going on from {base}"))
        return wish.base

    def _first_readable(self, positions: Iterable[Position]) -> tuple[Position | None, dict[str, Any] | None]:
        """The first checkpoint of which every rank can read its shard; (None, None) if there is none."""
        for position in positions:
            state, problem = self._read(position)
            if problem and self._exchange is not None and not self._exchange.bring(position):
                # A rank's shard may be on the disk of another machine.
                state, problem = self._read(position)
            if problem and self._hydration is not None and not self._hydration.bring(position):
                # Damaged here, whole in the mirror.
                state, problem = self._read(position)
            if not problem:
                return position, state
            if self._gang.rank == 0:
                self._reporter.warn(f"checkpoint {position} is skipped: {problem}")
        return None, None

    def _read(self, position: Position) -> tuple[dict[str, Any] | None, str]:
        """This rank's state at a checkpoint, and what any rank found wrong, the same on all."""
        seen = [m for m in self._gang.gather(self._folder.read_manifest(position)) if m is not None]
        state, problem, refusal = None, "" if seen else "its manifest is gone", ""
        if seen:
            self._refuse_another_kind(seen[0])
            try:
                state = read_shard(self._folder, seen[0], self._gang.rank)
                problem = "" if self._check is None else self._check(state)
            except Unreadable as error:
                refusal = str(error)
            except Damaged as error:
                problem = str(error)
        told = self._gang.gather((problem, refusal))
        refusals = [text for _, text in told if text]
        if refusals:
            raise Refused(f"checkpoint {position}: {refusals[0]}")
        problems = [text for text, _ in told if text]
        return (None, problems[0]) if problems else (state, "")

    def _refuse_another_kind(self, manifest: Manifest) -> None:
        """What is whole, and yet cannot be trained on here."""
        position, ranks = manifest.position, self._gang.world_size
        if manifest.format > FORMAT:
            raise Refused(
                f"checkpoint {position} has format {manifest.format}, this everstep reads up to {FORMAT}: "
                "install the version that wrote it, or a newer one"
            )
        if manifest.world_size != ranks:
            raise Refused(
                f"checkpoint {position} was written by {manifest.world_size} ranks, now there are {ranks}: "
                "training on would not be exact"
            )
        if manifest.torch and manifest.torch != torch.__version__:
            raise Refused(
                f"checkpoint {position} was written with torch {manifest.torch}, this is {torch.__version__}: "
                f"training on would not be exact; install torch {manifest.torch}, or give another checkpoint folder"
            )

    def _hydrate(self, hydration: Hydration, attempt: int | None, wish: Wish | None) -> None:
        try:
            problem = hydration.run(self._list(), attempt, wish)
        except Lost as error:
            raise Refused(
                f"{error}; {self._folder.root} is empty, and starting over might lose what the mirror has: "
                "make it readable, or train without it"
            ) from error
        if problem and self._gang.rank == 0:
            self._reporter.warn(problem)

    def _list(self) -> Listing:
        """What all machines together have in their folders, the same on all ranks."""
        mine = self._folder.listing() if self._keeps_folder else None
        listings = [listing for listing in self._gang.gather(mine) if listing is not None]
        records: dict[int, Record] = {}
        marks: dict[Position, int] = {}
        for listing in listings:
            records.update(listing.records)
            for position, collector in listing.marks.items():
                marks[position] = max(collector, marks.get(position, 0))
        manifests = frozenset[Position]().union(*(listing.manifests for listing in listings))
        claims = frozenset[int]().union(*(listing.claims for listing in listings))
        return Listing(records, manifests, marks, claims)

    def _begin(self, record: Record) -> bool:
        """Create the record in every folder; false if rank 0's folder has it already."""
        fresh = True

        def first() -> None:
            nonlocal fresh
            if self._gang.rank == 0:
                fresh = self._folder.begin(record)

        def others() -> None:
            if fresh and self._gang.rank != 0:
                self._folder.begin(record)

        self._together(first)
        fresh = bool(self._gang.tell(fresh))
        self._together(others)
        return fresh

    def _refuse_if_fenced(self, listing: Listing, attempt: int) -> None:
        if listing.fenced(attempt):
            raise Refused(
                f"attempt {listing.newest()} has begun in {self._folder.root}: attempt {attempt} is too old to train, "
                "nobody would read what it saves"
            )

    def _together(self, act: Any) -> None:
        """Do something once per folder, and go on when it is done everywhere.

        Raises:
            Refused: on all ranks, if it failed on one.
        """
        problem = ""
        if self._keeps_folder:
            try:
                act()
            except OSError as error:
                problem = error.strerror or str(error)
        problems = [text for text in self._gang.gather(problem) if text]
        if problems:
            raise Refused(
                f"checkpoints cannot be kept in {self._folder.root}: {problems[0]}; "
                "give a folder that can be written to"
            )


def _wish(env: Mapping[str, str]) -> Wish | None:
    """What the environment asks for as a base. ValueError: that makes no sense."""
    base, since = env.get(handshake.ENV_BASE), env.get(handshake.ENV_BASE_SINCE)
    return Wish(Position.parse(base), int(since) if since else None) if base else None


def _load(objects: Mapping[str, Stateful], opened: Opened) -> None:
    if opened.state is None:
        return
    saved = opened.state["objects"]
    if set(saved) != set(objects):
        raise Refused(
            f"checkpoint {opened.source} holds {', '.join(sorted(saved)) or 'nothing'}, "
            f"attach() was given {', '.join(sorted(objects)) or 'nothing'}"
        )
    for name, thing in objects.items():
        try:
            if isinstance(thing, torch.optim.Optimizer):
                load_optimizer(thing, saved[name])
            else:
                thing.load_state_dict(saved[name])
        except Exception as error:
            raise Refused(f"checkpoint {opened.source}: {name} does not fit: {error}") from error
    # The caller's name for it is gone: the state must not stay in memory twice.
    saved.clear()
    randomness.restore(opened.state["random"])


def _refuse_another_training(root: Path) -> None:
    """A folder holds one training: the second of a process would go on from the end of the first."""
    if root.resolve() in trained:
        raise Refused(
            f"this process has trained in {root} before: each training (each fold, each run of a search) "
            "needs a folder of its own, attach(dir=...); to go on with the same one, start the script again"
        )


def _silent(_text: str) -> None:
    return None
