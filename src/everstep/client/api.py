"""The Python SDK: one ``Client`` with the verbs of the command line."""

from __future__ import annotations

import hashlib
import os
import secrets as chance
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from everstep.client import remote
from everstep.client import results as r
from everstep.client.home import Home, NoServer, default_home
from everstep.client.wire import LostAnswer, NotOurServer, ServerTrouble, StreamEvent, Unavailable, Wire
from everstep.model.codec import from_dict, to_dict
from everstep.model.errors import BadInput, NotFound, Problem
from everstep.model.task import Task

if TYPE_CHECKING:
    from everstep.client.taskfile import LoadedTask

PATIENCE_S = 60.0
"""How long a follower waits for a server that went away."""
_RETRY_PAUSE_S = 0.3


class Client:
    """Speaks to one server.

    Every method raises ``NotFound``, ``Conflict``, ``NotAuthorized``, ``BadInput`` (of ``everstep.model.errors``) as
    the server means it, ``NoServer`` when nobody answers, and ``Unavailable`` or ``ServerTrouble`` when the server
    cannot.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        home: Home | Path | str | None = None,
        timeout_s: float = 60.0,
        certificate: Path | str = "",
        fingerprint: str = "",
    ) -> None:
        """Finds the server; connects on first use.

        Args:
            url: base URL; None = the server of ``home``: the one elsewhere that ``everstep server up`` put there, else
                the one that runs here.
            token: bearer token; None = the one of ``home``.
            home: folder of the installation; None = ``$EVERSTEP_HOME`` or ``~/.everstep``.
            timeout_s: longest wait for an answer.
            certificate: file with the certificate to trust at an ``https`` ``url``; empty = the system's authorities.
            fingerprint: SHA-256 of the one certificate to trust there instead, hexadecimal.
        """
        self.home = default_home() if home is None else home if isinstance(home, Home) else Home(Path(home))
        self._url = url
        self._token = token
        self._timeout_s = timeout_s
        self._certificate = str(certificate)
        self._fingerprint = fingerprint
        self._wire: Wire | None = None

    @classmethod
    def ensure(
        cls,
        home: Home | Path | str | None = None,
        *,
        arguments: tuple[str, ...] = (),
        on_slow: Callable[[str], None] = lambda text: None,
    ) -> Client:
        """A client of the server of ``home``, which is started in the background if none runs here or elsewhere.

        ``arguments`` and ``on_slow``: see ``launcher.start_background``.
        """
        from everstep.client import launcher

        client = cls(home=home)
        if remote.find(client.home) is None:
            launcher.start_background(client.home, arguments=arguments, on_slow=on_slow)
        return client

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drops the connection; the next call opens a new one."""
        if self._wire is not None:
            self._wire.close()
        self._wire = None

    @property
    def wire(self) -> Wire:
        """The connection, made on first use. Raises NoServer when no server runs for the folder."""
        if self._wire is None:
            self._wire = self._found() if self._url is None else self._given(self._url)
        return self._wire

    def _given(self, url: str) -> Wire:
        token = self.home.token() if self._token is None else self._token
        return Wire(url, token, timeout_s=self._timeout_s, certificate=self._certificate, fingerprint=self._fingerprint)

    def _found(self) -> Wire:
        elsewhere = remote.find(self.home)
        if elsewhere is not None:
            token = elsewhere.token if self._token is None else self._token
            hint = f"it is on {elsewhere.where}: everstep server up starts it again, everstep server status looks"
            pin = elsewhere.fingerprint
            return Wire(elsewhere.url, token, timeout_s=self._timeout_s, fingerprint=pin, hint=lambda: hint)
        info = self.home.server()
        if info is None:
            raise NoServer(f"no server runs for {self.home.path}; start one with: everstep server start")
        return Wire(
            info.url,
            self.home.token() if self._token is None else self._token,
            timeout_s=self._timeout_s,
            certificate=info.certificate,
            fingerprint=info.fingerprint,
            hint=self._gone,
        )

    def _gone(self) -> str:
        """What to say when nobody listens where the last server said that it does."""
        from everstep.client import launcher

        if launcher.is_running(self.home):
            return "it is starting or stopping"
        return "it was killed: start it again with: everstep server start (jobs and machines go on)"

    # --- Submitting ---------------------------------------------------------------------------------------------------

    def submit(
        self, task: Task | LoadedTask, *, secrets: Mapping[str, str] | None = None, project: str | None = None
    ) -> str:
        """Hands a task in.

        Args:
            task: what ``load_task`` read, whose workdir and mounts are brought along; or a task made in Python, and
                folders that it names must have been uploaded.
            secrets: a value for each of the task's secrets; they win over the file's.
            project: whose it is; None = the default one.

        A lost answer is asked for once more, with the key that tells the server that it is the same submission.

        Returns:
            The id of the job.

        Raises:
            BadInput: the task is wrong, or no machine on sale fits it.
        """
        if not isinstance(task, Task):
            from everstep.client.bringing import bring

            loaded = bring(self, task)
            task, secrets = loaded.task, {**loaded.secrets, **(secrets or {})}
        value: dict[str, Any] = {"task": to_dict(task), "secrets": dict(secrets or {})}
        if project is not None:
            value["project"] = project
        headers = {"Idempotency-Key": chance.token_hex(16)}
        try:
            return str(self.wire.ask("POST", "/api/v1/jobs", value=value, headers=headers)["job"])
        except LostAnswer:
            self.close()  # a restarted server may have another address
            time.sleep(_RETRY_PAUSE_S)
        try:
            return str(self.wire.ask("POST", "/api/v1/jobs", value=value, headers=headers)["job"])
        except NoServer as error:
            raise NoServer(f"{error}; it may have taken the job in: see everstep jobs before you try again") from None

    def plan(self, task: Task | LoadedTask) -> r.PlanView:
        """What submitting ``task`` would do now; does nothing, and brings nothing along."""
        task = task if isinstance(task, Task) else task.task
        return from_dict(r.PlanView, self.wire.ask("POST", "/api/v1/plan", value={"task": to_dict(task)}))

    def upload(self, archive: Path | str) -> str:
        """Brings a ``.tar.gz`` to the server, unless it is there.

        Returns:
            Its sha256, for ``Task.workdir_digest``.
        """
        with Path(archive).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if not self.has_upload(digest):
                size = os.fstat(file.fileno()).st_size
                file.seek(0)
                self.wire.ask("POST", "/api/v1/uploads", query={"sha256": digest, "bytes": size}, body=file)
        return digest

    def has_upload(self, digest: str) -> bool:
        """Whether the server holds the archive with that sha256."""
        try:
            self.wire.ask("HEAD", f"/api/v1/uploads/{quote(digest, safe='')}")
        except ServerTrouble as error:
            # An answer to HEAD has no body, so its status is all there is.
            if "HTTP 404" in str(error):
                return False
            raise
        except NotFound:
            return False
        return True

    # --- Looking ------------------------------------------------------------------------------------------------------

    def health(self) -> r.Health:
        """The server about itself."""
        return from_dict(r.Health, self.wire.ask("GET", "/api/v1/health"))

    def jobs(self, *, all: bool = False, limit: int | None = None) -> list[r.JobView]:
        """Jobs, newest first. ``all``: ended ones too."""
        answer = self.wire.ask("GET", "/api/v1/jobs", query={"all": all, "limit": limit})
        return [from_dict(r.JobView, one) for one in answer["jobs"]]

    def status(self, job: str) -> r.JobDetail:
        """Everything about a job. ``job`` is its id, the beginning of it, or its name where only one has it."""
        return from_dict(r.JobDetail, self.wire.ask("GET", _path(job)))

    def events(self, job: str, *, after: int = 0, follow: bool = False) -> Iterator[r.EventView]:
        """Events of a job with ``version > after``, in order.

        ``follow``: also those to come, until the job has ended.
        """
        if follow:
            for event in self._follow(_path(job, "events"), {"after": after}):
                yield from_dict(r.EventView, event.data)
            return
        while True:
            page = self.wire.ask("GET", _path(job, "events"), query={"after": after})["events"]
            yield from (from_dict(r.EventView, one) for one in page)
            if not page:
                return
            after = page[-1]["version"]

    def why(self, job: str, *, limit: int | None = None) -> list[r.DecisionView]:
        """Decisions about a job with their alternatives, newest first."""
        answer = self.wire.ask("GET", _path(job, "why"), query={"limit": limit})
        return [from_dict(r.DecisionView, one) for one in answer["decisions"]]

    def cost(self, job: str) -> r.AccountView:
        """The bill of a job, so far."""
        return from_dict(r.AccountView, self.wire.ask("GET", _path(job, "cost")))

    def costs(self) -> r.Costs:
        """What all jobs cost."""
        return from_dict(r.Costs, self.wire.ask("GET", "/api/v1/cost"))

    def checkpoints(self, job: str) -> list[r.CheckpointView]:
        """Published checkpoints of a job, oldest first."""
        return [
            from_dict(r.CheckpointView, one) for one in self.wire.ask("GET", _path(job, "checkpoints"))["checkpoints"]
        ]

    def logs(
        self,
        job: str,
        *,
        attempt: int | None = None,
        node: int | None = None,
        rank: str | int | None = None,
        offset: int | None = None,
        follow: bool = False,
    ) -> Iterator[r.LogPart]:
        """Logs of a job, joined across attempts.

        Args:
            job: id of the job.
            attempt, node, rank: only these; None = all (of ranks and set-up; ``exec-ID`` only when asked for).
            offset: start there in each log, bytes; negative = so many bytes before its end.
            follow: go on with what is to come, until the job has ended.
        """
        query = {"attempt": attempt, "node": node, "rank": rank, "offset": offset}
        if follow:
            for event in self._follow(_path(job, "logs"), query):
                yield from_dict(r.LogPart, event.data)
            return
        cursor: str | None = None
        while True:
            answer = self.wire.ask("GET", _path(job, "logs"), query={**query, "cursor": cursor})
            yield from (from_dict(r.LogPart, one) for one in answer["parts"])
            cursor = answer.get("cursor")
            if not answer.get("more"):
                return

    def outputs(self, job: str) -> list[r.OutputFile]:
        """Files of the job that came home."""
        return [from_dict(r.OutputFile, one) for one in self.wire.ask("GET", _path(job, "outputs"))["outputs"]]

    def fetch_output(self, job: str, path: str, target: Path | str) -> Path:
        """Copies one of the ``outputs`` to the file ``target``, whole or not at all."""
        final = Path(target)
        partial = final.with_name(f".{final.name}.{os.getpid()}.part")
        try:
            with partial.open("wb") as file:
                for piece in self.wire.download(_path(job, "outputs") + "/" + quote(path)):
                    file.write(piece)
            partial.replace(final)
        finally:
            partial.unlink(missing_ok=True)
        return final

    def offers(self, *, accelerator: str | None = None, all: bool = False) -> list[r.OfferView]:
        """What can be leased now, cheapest first. ``all``: also what is known to be unavailable."""
        answer = self.wire.ask("GET", "/api/v1/offers", query={"accelerator": accelerator, "all": all})
        return [from_dict(r.OfferView, one) for one in answer["offers"]]

    # --- Steering -----------------------------------------------------------------------------------------------------

    def cancel(self, job: str, *, reason: str = "") -> str:
        """Ends a job and gives its machines back. Returns its phase."""
        return self._steer(job, "cancel", {"reason": reason})

    def pause(self, job: str, *, reason: str = "") -> str:
        """Saves, gives the machines back, keeps the checkpoints. Returns the phase."""
        return self._steer(job, "pause", {"reason": reason})

    def unpause(self, job: str) -> str:
        """Goes on from the last checkpoint. Returns the phase."""
        return self._steer(job, "unpause", {})

    def retry(self, job: str, *, secrets: Mapping[str, str] | None = None) -> str:
        """Runs a failed or cancelled job again, same id, same checkpoints.

        ``secrets``: needed when the server forgot them. Returns the phase.
        """
        return self._steer(job, "retry", {"secrets": dict(secrets)} if secrets else {})

    def restore(self, job: str, step: int, *, attempt: int | None = None) -> str:
        """Goes back to an older checkpoint by a new attempt. Returns its base, ``attempt:step``."""
        value = {"step": step} if attempt is None else {"step": step, "attempt": attempt}
        return str(self.wire.ask("POST", _path(job, "restore"), value=value)["base"])

    def exec(self, job: str, command: str) -> str:
        """Starts a shell command on every machine of the job, beside its ranks. Returns an id for ``exec_result``."""
        return str(self.wire.ask("POST", _path(job, "exec"), value={"command": command})["exec_id"])

    def exec_result(self, job: str, exec_id: str) -> r.ExecView:
        """What the command did so far."""
        return from_dict(r.ExecView, self.wire.ask("GET", _path(job, "exec", exec_id)))

    def wait(self, job: str, *, timeout_s: float | None = None) -> r.JobDetail:
        """Waits for the end of a job. Raises TimeoutError."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = 0.1
        while not (detail := self.status(job)).ended:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"job {job} is still {detail.phase}")
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 2.0)
        return detail

    # --- The deployment -----------------------------------------------------------------------------------------------

    def unknown(self) -> list[r.UnknownView]:
        """Resources with our tag that the journal does not know. They cost, and nobody but you ends them."""
        return [from_dict(r.UnknownView, one) for one in self.wire.ask("GET", "/api/v1/unknown")["resources"]]

    def end_unknown(self, ids: list[str]) -> None:
        """Ends some of ``unknown``."""
        self.wire.ask("POST", "/api/v1/unknown/end", value={"ids": ids})

    def stop_server(self) -> None:
        """Asks the server to stop. Jobs and their machines go on."""
        self.wire.ask("POST", "/api/v1/server/stop", value={})

    # ------------------------------------------------------------------------------------------------------------------

    def _steer(self, job: str, verb: str, value: dict[str, Any]) -> str:
        return str(self.wire.ask("POST", _path(job, verb), value=value)["phase"])

    def _follow(self, path: str, query: Mapping[str, Any]) -> Iterator[StreamEvent]:
        """Events of a stream, through breaks of the connection and restarts of the server, each once."""
        last_id, lost_at = "", None
        while True:
            try:
                for event in self.wire.stream(path, query={**query, "follow": 1}, last_id=last_id):
                    lost_at = None
                    if event.event == "end":
                        return
                    last_id = event.id or last_id
                    yield event
            except NotOurServer:
                raise
            except (NoServer, Unavailable):
                now = time.monotonic()
                lost_at = now if lost_at is None else lost_at
                if now - lost_at > PATIENCE_S:
                    raise
                self.close()  # a restarted server may have another address
            time.sleep(0.2)


def _path(job: str, *rest: str) -> str:
    if not job:
        raise BadInput(Problem("", "job", "a job is named by its id or its name"))
    return "/".join(["/api/v1/jobs", *(quote(part, safe="") for part in (job, *rest))])


def run(
    task: Task | LoadedTask | Path | str,
    *,
    secrets: Mapping[str, str] | None = None,
    project: str | None = None,
    home: Home | Path | str | None = None,
    echo: bool = True,
) -> r.JobDetail:
    """Runs a task to its end: starts a server if none runs, submits, follows.

    Args:
        task: a task file or what ``load_task`` read of one, whose workdir and mounts are brought along; or a task made
            in Python.
        secrets: a value for each of the task's secrets; they win over the file's.
        project: whose it is.
        home: folder of the installation.
        echo: print the logs as they come.

    Returns:
        The job as it ended; ``exit_code`` tells how. Interrupting the call leaves the job running.
    """
    with Client.ensure(home) as client:
        if isinstance(task, Path | str):
            from everstep.client.taskfile import load_task

            task = load_task(task, secrets=secrets)
        job = client.submit(task, secrets=secrets, project=project)
        if echo:
            for part in client.logs(job, follow=True):
                print(part.text, end="", flush=True)
        return client.wait(job)
