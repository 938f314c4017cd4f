"""The composition root: opens what there is, puts the parts together, serves until told to stop.

A server that stops, however it stops, leaves jobs and their machines running; the next one goes on where it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from everstep import __version__, providers
from everstep.agent.bundle import build_pyz
from everstep.brain.economics import ledger
from everstep.client.home import Home, ServerInfo
from everstep.client.launcher import is_running, start_background, status, stop
from everstep.client.results import ProviderHealth
from everstep.control.clock import SystemClock
from everstep.control.controller import Controller
from everstep.control.highwater import HighWater
from everstep.control.options import Options as LoopOptions
from everstep.model.errors import BadInput, EverstepError, Problem
from everstep.ports import OfferQuery, Provider, Store
from everstep.server import installation, listening, tls
from everstep.server.agentfile import AgentFiles
from everstep.server.app import make_app
from everstep.server.backup import LOGS_LOST, Backups
from everstep.server.bucketfiles import BucketFiles
from everstep.server.buckets import Buckets
from everstep.server.configured import check_keys
from everstep.server.context import Context
from everstep.server.execs import ExecBook
from everstep.server.files import Files
from everstep.server.installation import Address
from everstep.server.logarchive import LogArchive
from everstep.server.logs import LogBook
from everstep.server.options import Options, parse
from everstep.server.pauses import keep_pauses_short
from everstep.server.policies import selectors
from everstep.server.reach import Reach
from everstep.server.secrets import SecretFiles
from everstep.server.serving import serve
from everstep.server.submissions import Submissions
from everstep.server.tail import Tail
from everstep.server.views import Views
from everstep.store.registry import open_store
from everstep.store.sqlite import SqliteStore

__all__ = ["is_running", "main", "run", "start_background", "status", "stop"]

log = logging.getLogger(__name__)

_LOOK_AFTER_FOLDER_S = 5.0
_SWEEP_S = 30.0
_UPLOADS_KEPT_S = 30 * 86_400.0
_LOG_BYTES = 10 << 20
_CHECK_TIMEOUT_S = 5.0


def main(arguments: Sequence[str]) -> int:
    """``python -m everstep.server``.

    Returns the exit code: 0 stopped, 1 failed, 2 told something wrong, 3 another one runs.
    """
    try:
        options = parse(arguments)
        _set_up_log(options)
        _run_loop(run(options))
    except installation.AlreadyRunning as error:
        return _fail(3, error)
    except BadInput as error:
        return _fail(2, error)
    except EverstepError as error:
        return _fail(1, error)
    except OSError as error:
        return _fail(1, error)
    return 0


async def run(options: Options, *, on_ready: Callable[[ServerInfo], None] = lambda info: None) -> None:
    """Serves until SIGTERM, SIGINT or a user asks to stop.

    Args:
        options: what to serve.
        on_ready: called once requests are answered.

    Raises:
        AlreadyRunning: another server holds the folder. BadInput: an option is wrong. EverstepError: something failed.
    """
    options = as_last_time(options)
    listening.check_exposure(options.host, tls=options.own_tls or options.tls is not None, insecure=options.insecure)
    lock = installation.take_lock(options.home)
    try:
        if options.own_tls:
            hosts = [options.host, urlsplit(options.advertise).hostname or "", socket.gethostname()]
            options = replace(options, tls=tls.own(options.home, filter(None, hosts)))
        fingerprint = listening.check_tls(options.tls) if options.tls is not None else ""
        os.chdir(options.home.path)
        found = make_providers(options)
        with contextlib.closing(_listener(options)) as listener:
            store = open_store(options.store or f"sqlite:///{options.home.journal_file}")
            try:
                server = Server(options, found, store, listener, fingerprint=fingerprint, lock=lock)
                # Asking a provider may start something that outlives us, the cloud in a box: not if we cannot serve.
                await check_configurations(found)
            except BaseException:
                await store.close()
                raise
            await server.run(on_ready)
    finally:
        lock.close()


class Server:
    """One running server: the parts and their life."""

    def __init__(
        self,
        options: Options,
        found: Mapping[str, Provider],
        store: Store,
        listener: socket.socket,
        *,
        fingerprint: str,
        lock: IO[str],
    ) -> None:
        """Puts the parts together; nothing runs yet."""
        self._options, home = options, options.home
        self._store, self._listener, self._lock, self._fingerprint = store, listener, lock, fingerprint
        clock = SystemClock()
        self._stopping = asyncio.Event()
        port = listener.getsockname()[1]
        self.url = listening.url_of(options.host, port, tls=options.tls is not None)
        secrets = SecretFiles(home.path / "secrets")
        agents = AgentFiles(home.path / "agents")
        self.controller = Controller(
            store=store,
            providers=found,
            deployment=installation.deployment(home),
            key=installation.agents_key(home),
            server_url=lambda: options.advertise or self.url,
            vault=secrets,
            ca_sha256=fingerprint,
            agent_sha256=agents.sha256,
            selectors=selectors(),
            clock=clock,
            exclusive=not options.store,
            high_water=None if options.store else HighWater(home.path / "journal.high"),
            options=LoopOptions(lease_s=options.lease_s),
        )
        self.context = Context(
            controller=self.controller,
            desk=self.controller.desk,
            store=store,
            clock=clock,
            views=Views(self.controller, ledger),
            files=Files(home.path / "files"),
            logs=LogBook(home.path / "logs"),
            execs=ExecBook(home.path / "exec"),
            secrets=secrets,
            submissions=Submissions(home.path / "submissions"),
            tail=Tail(store),
            token=installation.token(home),
            version=__version__,
            pid=os.getpid(),
            started_at=clock.now(),
            agents=agents,
            buckets=Buckets(options.buckets),
            providers_health=self._health,
            reach=Reach.of(found, options.advertise or self.url),
            on_stop=self._stopping.set,
        )
        _use_bucket(options, self.context)
        self._backups = self._make_backups(store)
        self._names = tuple(found)
        installation.keep_address(home, Address(options.host, port, options.own_tls, options.advertise))

    async def run(self, on_ready: Callable[[ServerInfo], None]) -> None:
        """Serves until stopped."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        http = serve(make_app(self.context), self._options.tls)
        works: list[asyncio.Future[Any]] = []
        try:
            await self.controller.start()
            works.append(asyncio.ensure_future(http.serve(sockets=[self._listener])))
            works.append(asyncio.ensure_future(self._sweep()))
            works.append(asyncio.ensure_future(keep_pauses_short()))
            works.append(asyncio.ensure_future(self._mind_the_folder()))
            if self._backups is not None:
                works.append(asyncio.ensure_future(self._backups.run()))
            if self.context.bucket_files is not None:
                tidying = self.context.bucket_files.keep_tidy(older_than_s=_UPLOADS_KEPT_S)
                works.append(asyncio.ensure_future(tidying))
            if self.context.log_archive is not None:
                works.append(asyncio.ensure_future(self.context.log_archive.run()))
            while not http.started and not works[0].done():
                await asyncio.sleep(0.005)
            info = self._info()
            installation.announce(self._options.home, info)
            log.info("serving %s for %s (pid %d)", info.url, self._options.home.path, info.pid)
            on_ready(info)
            await self._until_stopped(works)
        finally:
            log.info("stopping; jobs and machines go on")
            installation.withdraw(self._options.home)
            self.context.close()
            http.should_exit = True
            for work in works[1:]:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            await self.controller.stop()
            if self._backups is not None:
                await self._backups.last()
            await self._store.close()
            self._listener.close()

    def _make_backups(self, store: Store) -> Backups | None:
        if not self._options.backup:
            return None
        if not isinstance(store, SqliteStore):
            text = "only a journal in the folder is backed up; this one is somewhere else"
            raise BadInput(Problem("--backup", "", text, "leave out --store, or let the database make its own backups"))
        backups = Backups(
            self._options.backup,
            store=store,
            home=self._options.home,
            deployment=self.controller.deployment,
            every_s=self._options.backup_s,
            seq=lambda: self.controller.journal.seq,
            now=self.context.clock.now,
        )
        self.context.backup = lambda: backups.text
        return backups

    async def _until_stopped(self, works: Sequence[asyncio.Future[Any]]) -> None:
        asked = asyncio.ensure_future(self._stopping.wait())
        failed = self.controller.failed
        watched = {asked, *works, *([failed] if failed is not None else [])}
        done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        for work in done - {asked}:
            error = work.exception() if not work.cancelled() else None
            if error is not None:
                log.error("a part of the server failed", exc_info=error)
                raise EverstepError(f"the server stops because a part of it failed: {error!r}") from error

    async def _mind_the_folder(self) -> None:
        while installation.still_ours(self._options.home, self._lock):
            await asyncio.sleep(_LOOK_AFTER_FOLDER_S)
        raise EverstepError(f"the folder {self._options.home.path} was deleted; nothing can be recorded any more")

    async def _sweep(self) -> None:
        """Deletes what nobody needs any more: secrets of ended jobs, archives and keys of long ago."""
        while True:
            with contextlib.suppress(OSError):
                now = self.context.clock.now()
                for job in self.context.secrets.sweep(self.controller.states, now):
                    log.info("the secrets of job %s were deleted", job)
                self.context.submissions.sweep(now)
                tasks = [state.task for state in self.controller.live_states()]
                wanted = {digest for task in tasks for digest in task.archives}
                self.context.files.sweep_uploads(wanted, older_than_s=_UPLOADS_KEPT_S)
            await asyncio.sleep(_SWEEP_S)

    async def _health(self) -> Sequence[ProviderHealth]:
        troubles = self.controller.troubles
        return [ProviderHealth(name, name not in troubles, troubles.get(name, "")) for name in self._names]

    def _info(self) -> ServerInfo:
        options = self._options
        listens = {"--host": options.host, "--port": str(self._listener.getsockname()[1])}
        if options.advertise:
            listens["--advertise"] = options.advertise
        if options.own_tls:
            listens["--tls"] = ""
        return ServerInfo(
            url=self.url,
            pid=self.context.pid,
            started_at=self.context.started_at,
            deployment=self.controller.deployment,
            version=__version__,
            certificate=str(options.tls.certificate) if options.tls else "",
            fingerprint=self._fingerprint,
            options={**listens, **options.told},
        )


def _use_bucket(options: Options, context: Context) -> None:
    """For folders, outputs and logs, if there is one for them. Raises BadInput."""
    if options.files:
        place = context.buckets.reserve(options.files, context.controller.deployment)
        listed = options.home.path / "files" / "in-bucket"
        context.bucket_files = BucketFiles(place, listed, context.files.upload)
        lost = options.home.path / LOGS_LOST
        context.log_archive = LogArchive(context.logs, place, context.controller.states, lost=lost)


def make_providers(options: Options) -> dict[str, Provider]:
    """Every provider that is asked for. Raises BadInput with one line when one is unknown or lacks its extra."""
    made: dict[str, Provider] = {}
    for name, given in options.providers.items():
        factory = providers.load(name)
        arguments = dict(given)
        if name == "local":
            arguments = _local(options.home, arguments)
        check_keys(factory, arguments, str(options.home.config_file), name)
        made[name] = factory(**arguments)
    return made


async def check_configurations(found: Mapping[str, Provider]) -> None:
    """Raises BadInput when a provider says that it is configured wrongly: a server would sell nothing and not say why.

    Any other trouble may pass, and is the controller's.
    """
    for name, provider in found.items():
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT_S):
                await provider.offers(OfferQuery())
        except BadInput:
            raise
        except Exception as error:
            log.warning("provider %s: %s", name, str(error) or type(error).__name__)


def _local(home: Home, given: dict[str, Any]) -> dict[str, Any]:
    """The cloud in a box lives in the folder too, and its machines run the agent that belongs to this server."""
    import sys

    folder = Path(given.pop("home", home.path / "local"))
    if "agent_argv" not in given:
        given["agent_argv"] = [sys.executable, str(build_pyz(home.path / "agent.pyz"))]
    if given.get("config_path"):
        given["config_path"] = (home.path / Path(given["config_path"]).expanduser()).resolve()
    return {"home": folder, **given}


def as_last_time(options: Options) -> Options:
    """Where nothing was said, a server that listened behind TLS does so again: machines of running jobs call there.

    Whoever starts it need not know how, ``everstep run`` for example. Listening in the clear beyond loopback has to be
    said each time.
    """
    last = installation.last_address(options.home)
    if options.told_where or last is None or not last.own_tls:
        return options
    return replace(options, host=last.host, own_tls=True, advertise=last.advertise)


def _listener(options: Options) -> socket.socket:
    """The port asked for, else the one of last time, else a free one."""
    if options.port is not None:
        return listening.bind(options.host, options.port)
    last = installation.last_address(options.home)
    if last is None:
        return listening.bind_anywhere(options.host)
    try:
        return listening.bind(options.host, last.port)
    except listening.PortTaken as error:
        text = f"{error}; machines of running jobs call there. Free it, or choose another with --port"
        raise listening.PortTaken(f"{text} (machines that run now will then not find the server)") from None


def _set_up_log(options: Options) -> None:
    handler: logging.Handler
    if options.log_file is None:
        handler = logging.StreamHandler()
    else:
        options.log_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handler = RotatingFileHandler(options.log_file, maxBytes=_LOG_BYTES, backupCount=2)
        options.log_file.chmod(0o600)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO if options.verbose else logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("everstep").setLevel(logging.DEBUG if options.verbose else logging.INFO)


def _run_loop(main_work: Any) -> None:
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:  # not on every platform
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main_work)


def _fail(code: int, error: Exception) -> int:
    import sys

    stream: IO[str] = sys.stderr
    stream.write(f"everstep server: {'; '.join(str(error).splitlines())}\n")
    return code
