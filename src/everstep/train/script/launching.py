"""Starts a script under the automatic mode: finds the save to continue from, prepares everything, runs it."""

from __future__ import annotations

import importlib.util
import logging
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from everstep.model import handshake
from everstep.train.attempt import Refused
from everstep.train.folder import Folder
from everstep.train.gang import Gang
from everstep.train.lineage import Position
from everstep.train.opening import Opened, Opening, restored
from everstep.train.pace import DEFAULT_HAZARD_PER_H, Pace
from everstep.train.reports import Reporter
from everstep.train.requests import Requests
from everstep.train.saves import Saves
from everstep.train.script import batches, graph, loaderkind, managers, surroundings
from everstep.train.script.again import Again
from everstep.train.script.arrival import Arriving
from everstep.train.script.audit.audits import Audits, Wanted, clear
from everstep.train.script.audit.handover import Script
from everstep.train.script.dropping import patient_drops
from everstep.train.script.heads import Heads, Marker
from everstep.train.script.moving import move_here
from everstep.train.script.output import Launch, Output, Place, damage
from everstep.train.script.ranks import Meeting, at_start, follow
from everstep.train.script.refusal import refuse, refuse_use, tell_with
from everstep.train.script.replay import Replaying
from everstep.train.script.rewrite import Rewritten
from everstep.train.script.session import FORMAT, Parts, Session
from everstep.train.script.sources import Source, Sources, package_folders
from everstep.train.script.steps import Steps
from everstep.train.script.stopping import Stopping
from everstep.train.surroundings import Surroundings

_KEEP = 3


@dataclass(frozen=True)
class Order:
    """What to run, and how to save it.

    Attributes:
        target: a file, or with ``is_module`` the name of a module.
        arguments: what follows it on the command line.
        folder: the checkpoint folder.
        every_s: seconds between saves; None: paced.
        every_steps: steps between saves; None: by time.
        audit: how saves are audited; None: they are not.
    """

    target: str
    is_module: bool
    arguments: tuple[str, ...]
    folder: Path
    every_s: float | None
    every_steps: int | None
    audit: Wanted | None = None


def launch(order: Order, begun: Callable[[Heads, Steps], None] | None = None) -> None:
    """Run the script to its end; what it raises comes through, `SystemExit` included.

    Leaves with exit code 75 after a save on request, 76 where going on would not be exact.

    Args:
        order: what to run.
        begun: called when everything is prepared, before the script's first line.
    """
    began = time.monotonic()
    start = _Start(order)
    saved = start.open()
    session, arriving = start.session(saved, began)
    if begun is not None:
        begun(session.heads, start.steps)
    _run(start, session, arriving)


class _Start:
    """Everything between the command line and the script's first line."""

    def __init__(self, order: Order) -> None:
        # The script may change the working folder.
        self._order = order = replace(order, folder=order.folder.absolute())
        self._again = Again()
        self._env = os.environ
        self._env_at_start = dict(os.environ)
        self._place = Place(dict(zip(("work", "script"), self._roots(), strict=False)))
        report_dir = self._env.get(handshake.ENV_REPORT_DIR)
        _keep_out_of_the_scripts_logs()
        self.reporter = Reporter(Path(report_dir) if report_dir else None, int(self._env.get("RANK") or 0))
        tell_with(self.reporter.refuse)
        if self._env.get(handshake.ENV_CHECKPOINT_MIRROR) and self.reporter.rank == 0:
            self.reporter.warn(
                "the mirror is not used: a script that is resumed without changes keeps its checkpoints in "
                f"{order.folder} alone; everstep.train.attach in the script fills it"
            )
        self.gang = self._gang()
        graph.refuse_with(refuse_use)
        self._folder = Folder(order.folder, self.reporter.warn)
        self._meet = Meeting(self.gang, order.folder, self._env)
        self._opened: Opened | None = None
        self.steps = Steps()
        clear(order.folder)

    def _gang(self) -> Gang:
        try:
            return at_start(self._env, self._env.get(handshake.ENV_INSTANCE) or os.uname().nodename)
        except Refused as refusal:
            refuse(refusal.text)

    def open(self) -> dict[str, Any] | None:
        """Begin an attempt; the state to continue from, None for the beginning."""
        try:
            self._opened = self._open()
        except Refused as refusal:
            refuse(refusal.text)
        saved = self._opened.state
        if saved is not None:
            if saved.get("kind") == "script" and saved.get("format") == FORMAT:
                move_here(saved, self._place)
            self._check(saved)
            # Without the state: it is let go of when everything is back.
            saved["opened"] = replace(self._opened, state=None)
        self._initial()
        return saved

    def _open(self) -> Opened:
        if self.gang.rank > 0 and self.gang.group is None:
            attempt = int(self._env[handshake.ENV_ATTEMPT])
            return follow(self.gang, self._folder, self.reporter, attempt, check=self._damage)
        return Opening(self.gang, self._folder, self.reporter, True, check=self._damage).open(self._env)

    def _damage(self, state: Mapping[str, Any]) -> str:
        """What keeps a save that can be read from being continued here; an older one may do."""
        if state.get("kind") != "script" or state.get("format") != FORMAT:
            return ""
        return damage(Launch(self._order.folder, self.gang.rank, self._place), state["output"]["files"])

    def _check(self, saved: Mapping[str, Any]) -> None:
        """What is known before the script runs must be as it was."""
        where = f"checkpoint {self._opened.source if self._opened else ''} in {self._order.folder}"
        if saved.get("kind") != "script" or saved.get("format") != FORMAT:
            refuse(f"{where} was not written by this way of running a script; start afresh with another --dir")
        changed = surroundings.difference(saved["versions"], surroundings.versions())
        if changed:
            refuse(f"{where} cannot be continued exactly: {changed}")
        if list(self._order.arguments) != saved["arguments"]:
            refuse(
                f"{where} was written with the arguments {' '.join(saved['arguments'])!r}, "
                f"now they are {' '.join(self._order.arguments)!r}; start afresh with another --dir"
            )

    def _initial(self) -> None:
        """Every start of the script finds the random states that its first start found."""
        path = self._order.folder / f"initial-{self.gang.rank:05d}.pickle"
        try:
            surroundings.set_initial(pickle.loads(path.read_bytes()))
        except FileNotFoundError:
            temporary = path.with_suffix(".tmp")
            temporary.write_bytes(pickle.dumps(surroundings.initial()))
            os.replace(temporary, path)
        except Exception as error:
            refuse(f"{path} is damaged ({error}); start afresh with another --dir")

    def session(self, saved: dict[str, Any] | None, began: float) -> tuple[Session, Arriving | None]:
        """Hook into everything that the script will use."""
        assert self._opened is not None
        sources = self._sources(saved)
        steps = self.steps
        pace = self._pace(saved)
        output = self._output(self._opened.attempt, steps)
        terminations = Stopping()
        control = self._env.get(handshake.ENV_CONTROL_FILE)
        requests = Requests(Path(control) if control else None, self.reporter.utc())
        parts = Parts(
            steps=steps,
            sources=sources,
            output=output,
            saves=self._saves(pace, output, requests, terminations),
            pace=pace,
            reporter=self.reporter,
            requests=requests,
            terminations=terminations,
            gang=self.gang,
            every_steps=self._order.every_steps,
            audits=self._audits(self._opened.attempt),
            bottom=_execute.__code__,
        )
        session = Session(parts)
        self._marker_of = session.heads
        self.sources = sources
        arriving = None
        if saved is not None:
            arriving = Arriving(parts, session, saved, began, self._again)
            session.heads.replay = Replaying(session.heads, arriving.path, arriving)
        else:
            self.reporter.fact(handshake.FACT_RESTORED, **restored(self._opened, began))
        steps.watch()
        batches.install(replaying=saved is not None, refuse=refuse_use)
        loaderkind.install()
        managers.install()
        output.begin(None if saved is None else saved["output"])
        sources.install()
        terminations.listen()
        return session, arriving

    def _saves(self, pace: Pace, output: Output, requests: Requests, terminations: Stopping) -> Callable[[Gang], Saves]:
        assert self._opened is not None
        attempt, source = self._opened.attempt, self._opened.source

        def made(gang: Gang) -> Saves:
            around = Surroundings(
                gang=gang,
                folder=self._folder,
                reporter=self.reporter,
                requests=requests,
                terminations=terminations,
                pace=pace,
                attempt=attempt,
                base=source,
                keep=int(self._env.get(handshake.ENV_CHECKPOINT_KEEP) or _KEEP),
                one_folder=True,
                # Nobody knows what the script changes next, and where.
                copy_at_once=True,
                sync_beside=output.sync,
            )
            return Saves({}, around, str, None if source is None else source.step)

        return made

    def _audits(self, attempt: int) -> Audits | None:
        order, wanted = self._order, self._order.audit
        if wanted is None:
            return None
        if self.gang.world_size > 1:
            if self.gang.rank == 0:
                self.reporter.warn(f"no save is audited: that is done for one process, not for {self.gang.world_size}")
            return None
        roots = self._place.described()["roots"]
        script = Script(order.target, order.is_module, order.arguments, roots, self._env_at_start, attempt)
        return Audits(wanted, script, order.folder, self.reporter, self.steps)

    def _output(self, attempt: int, steps: Steps) -> Output:
        return Output(
            Launch(
                folder=self._order.folder,
                rank=self.gang.rank,
                place=self._place,
                attempt=attempt,
                position=lambda: Position(attempt, steps.count),
                warn=self.reporter.warn,
                meet=self._meet,
            )
        )

    def _pace(self, saved: dict[str, Any] | None) -> Pace:
        hazard_per_h = float(self._env.get(handshake.ENV_HAZARD_PER_H) or DEFAULT_HAZARD_PER_H)
        cost_s = None if saved is None else saved["save_cost_s"]
        return Pace(self._order.every_s, hazard_per_h, now=time.monotonic(), save_cost_s=cost_s)

    def _sources(self, saved: dict[str, Any] | None) -> Sources:
        before: dict[str, Source] = {} if saved is None else saved["sources"]

        def loaded(source: Source) -> None:
            known = before.get(source.module)
            if known is not None and known.digest != source.digest:
                refuse(f"{source.path} has changed since the save; put it back, or start afresh with another --dir")

        def marker(rewritten: Rewritten) -> Marker:
            return Marker(self._marker_of, rewritten)

        return Sources(self._roots(), marker, loaded)

    def _roots(self) -> list[Path]:
        order = self._order
        own = package_folders(order.target) if order.is_module else [Path(order.target).resolve().parent]
        return [Path.cwd(), *own]

    def main(self) -> tuple[CodeType, ModuleType]:
        """The script as the module ``__main__``, not run yet."""
        order = self._order
        module = ModuleType("__main__")
        if order.is_module:
            path = self._find_module(module)
        else:
            path = order.target
            sys.path[0] = str(Path(path).resolve().parent)
            module.__dict__.update(__file__=path, __spec__=None)
        module.__dict__.update(__builtins__=__builtins__, __cached__=None)
        sys.argv = [path, *order.arguments]
        sys.modules["__main__"] = module
        code = self.sources.compile(path, "__main__")
        self.sources.prepare(module, "__main__")
        return code, module

    def _find_module(self, module: ModuleType) -> str:
        sys.path[0] = os.getcwd()
        name = self._order.target
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name += ".__main__"
            spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            print(f"everstep: no module named {name}", file=sys.stderr)
            raise SystemExit(2)
        module.__dict__.update(__file__=spec.origin, __spec__=spec, __package__=spec.parent)
        return spec.origin


def _keep_out_of_the_scripts_logs() -> None:
    """What we say goes to stderr, not to handlers of the script's: its log files are those of a plain run."""
    logger = logging.getLogger("everstep.train")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.StreamHandler())


def _run(start: _Start, session: Session, arriving: Arriving | None) -> None:
    pid = os.getpid()
    try:
        code, module = start.main()
        with patient_drops() if start.gang.world_size > 1 else nullcontext():
            _execute(code, vars(module))
    except BaseException as error:
        # A child that the script has forked ends here, too, and has nothing to say.
        if session.heads.replay is not None and arriving is not None and os.getpid() == pid:
            ended = f"the script ended by {type(error).__name__}: {error}"
            if isinstance(error, Exception | SystemExit):
                arriving.try_again(ended)
            traceback.print_exc()
            arriving.never(ended)
        raise
    else:
        if session.heads.replay is not None and arriving is not None and os.getpid() == pid:
            arriving.try_again("the script came to its end")
            arriving.never("the script came to its end")
    finally:
        if os.getpid() == pid:
            session.tell_end()
            session.close()


def _execute(code: CodeType, names: dict[str, Any]) -> None:
    exec(code, names)
