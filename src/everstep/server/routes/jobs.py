"""Jobs: handing in, looking, steering."""

from __future__ import annotations

import secrets as chance
from typing import Any

from fastapi import APIRouter, Query
from starlette.requests import Request

from everstep.client import results as r
from everstep.model import events as ev
from everstep.model.access import DEFAULT_PROJECT, Actor, Resource, Verb
from everstep.model.codec import from_dict, to_dict
from everstep.model.errors import BadInput, Conflict, Problem
from everstep.model.ids import JobId
from everstep.model.job import InstancePhase, JobPhase, JobState
from everstep.model.task import Task
from everstep.server.checkpoints import checkpoints, restorable
from everstep.server.context import Context, actor_of, context_of, json_object, text_field, text_map
from everstep.server.logs import LogKey
from everstep.server.planning import check_sold, planned
from everstep.server.submissions import HEADER, Lost, digest_of

router = APIRouter()
_EXEC_BYTES = 1 << 20


@router.post("/api/v1/jobs")
async def submit(request: Request) -> Any:
    """Takes a task in; once, however often it is repeated with the same ``Idempotency-Key``."""
    context, actor = context_of(request), actor_of(request)
    value = await json_object(request)
    project = text_field(value, "project", default=DEFAULT_PROJECT)
    context.allow(actor, Verb.SUBMIT, project=project)
    task = _task(value)
    secrets = text_map(value, "secrets")
    context.reach.check(task)
    _check_secrets(task, secrets)
    _check_uploads(context, task)
    if context.bucket_files is not None:
        context.bucket_files.begin(task.archives)

    async def take_in() -> JobId:
        await check_sold(task, context.controller)  # in here: what was taken in is not judged again when it is repeated
        return await context.controller.submit(task, secrets=secrets, actor=actor, project=project)

    async def find(lost: Lost) -> JobId | None:
        return await _lost_job(context, lost, digest)

    key = request.headers.get(HEADER)
    if not key:
        return {"job": await take_in()}
    digest = digest_of(task, project)
    now = context.clock.now()
    return {"job": await context.submissions.once(key, digest, now=now, submit=take_in, find=find)}


@router.post("/api/v1/plan")
async def plan(request: Request) -> Any:
    """What would be done with a task; does nothing."""
    context = context_of(request)
    context.allow(actor_of(request), Verb.READ)
    return await planned(_task(await json_object(request)), context.controller, context.reach)


@router.get("/api/v1/jobs")
async def jobs(request: Request, all: bool = False, limit: int = Query(default=1000, ge=1, le=100_000)) -> Any:
    """Jobs, newest first."""
    context, actor = context_of(request), actor_of(request)
    now = context.clock.now()
    if all:
        views = [view async for view in context.views.all(now, limit=limit)]
    else:
        views = [context.views.job(s, now) for s in context.controller.live_states() if not s.phase.ended]
    views = [view for view in views if may_read(context, actor, view)]
    views.sort(key=lambda v: (v.submitted_at, v.job), reverse=True)
    return {"jobs": to_dict(views[:limit])}


@router.get("/api/v1/jobs/{job}")
async def status(request: Request, job: str) -> Any:
    """All about a job."""
    context = context_of(request)
    return to_dict(context.views.detail(await context.find(actor_of(request), Verb.READ, job), context.clock.now()))


@router.get("/api/v1/jobs/{job}/cost")
async def cost(request: Request, job: str) -> Any:
    """The bill of a job."""
    context = context_of(request)
    return to_dict(context.views.account(await context.find(actor_of(request), Verb.READ, job), context.clock.now()))


@router.get("/api/v1/jobs/{job}/checkpoints")
async def list_checkpoints(request: Request, job: str) -> Any:
    """Published checkpoints."""
    return {"checkpoints": to_dict(checkpoints(await context_of(request).find(actor_of(request), Verb.READ, job)))}


@router.post("/api/v1/jobs/{job}/cancel")
async def cancel(request: Request, job: str) -> Any:
    """Ends a job."""
    reason = text_field(await json_object(request), "reason", default="")
    return await _ask(request, job, ev.CancelRequested(actor_of(request).user, reason))


@router.post("/api/v1/jobs/{job}/pause")
async def pause(request: Request, job: str) -> Any:
    """Saves and gives the machines back."""
    reason = text_field(await json_object(request), "reason", default="")
    return await _ask(request, job, ev.PauseRequested(actor_of(request).user, reason))


@router.post("/api/v1/jobs/{job}/unpause")
async def unpause(request: Request, job: str) -> Any:
    """Goes on."""
    context, actor = context_of(request), actor_of(request)
    state = await context.find(actor, Verb.CONTROL, job)
    context.reach.check(state.task)
    return await _ask(request, state.id, ev.UnpauseRequested(actor.user))


@router.post("/api/v1/jobs/{job}/retry")
async def retry(request: Request, job: str) -> Any:
    """Runs a job again that failed or was cancelled."""
    context, actor = context_of(request), actor_of(request)
    secrets = text_map(await json_object(request), "secrets")
    state = await context.find(actor, Verb.CONTROL, job)
    if state.phase is JobPhase.SUCCEEDED:
        again = "everstep run trains anew, everstep ckpt restore --step N goes back to one of its checkpoints"
        raise Conflict(f"job {state.id} has succeeded, nothing is left to retry; {again}")
    context.reach.check(state.task)
    held = {**context.secrets.get(state.id), **secrets}
    missing = [name for name in state.task.secret_names if name not in held]
    if state.phase.ended and missing:
        text = f"the values of its secrets were deleted when it ended; give them again: {', '.join(missing)}"
        raise Conflict(f"job {state.id} cannot be retried like this: {text}")
    _check_secrets(state.task, held)
    if state.phase.ended and secrets:
        context.secrets.put(state.id, held)
    return await _ask(request, state.id, ev.RetryRequested(actor.user))


@router.post("/api/v1/jobs/{job}/restore")
async def restore(request: Request, job: str) -> Any:
    """Goes back to an older checkpoint."""
    context, actor = context_of(request), actor_of(request)
    value = await json_object(request)
    state = await context.find(actor, Verb.CONTROL, job)
    step, attempt = _whole(value, "step"), _whole(value, "attempt") if value.get("attempt") is not None else None
    if step is None:
        raise BadInput(Problem("", "step", "is missing"))
    base = restorable(state, step, attempt)
    context.views.forget(state.id)
    await context.controller.ask(state.id, ev.RestoreRequested(actor.user, base))
    return {"base": base}


@router.post("/api/v1/jobs/{job}/exec")
async def start_exec(request: Request, job: str) -> Any:
    """Runs a command on every machine of a job, beside its ranks."""
    context, actor = context_of(request), actor_of(request)
    command = text_field(await json_object(request), "command")
    if not command.strip():
        raise BadInput(Problem("", "command", "is empty"))
    state = await context.find(actor, Verb.EXEC, job)
    up = (InstancePhase.JOINED, InstancePhase.READY)
    targets = [i.instance for i in state.instances.values() if i.instance is not None and i.phase in up]
    if not targets:
        raise Conflict(f"job {state.id} has no machine that is up (it is {state.phase})")
    exec_id = "x" + chance.token_hex(5)
    context.execs.open(state.id, exec_id, targets)
    await context.controller.ask(state.id, ev.ExecRequested(actor.user, exec_id, command))
    return {"exec_id": exec_id}


@router.get("/api/v1/jobs/{job}/exec/{exec_id}")
async def exec_result(request: Request, job: str, exec_id: str) -> Any:
    """What a command did so far."""
    context = context_of(request)
    state = await context.find(actor_of(request), Verb.EXEC, job)
    results, done = [], True
    for instance, rc in context.execs.answers(state.id, exec_id).items():
        machine = state.by_instance(instance)
        lost = rc is None and (machine is None or not machine.alive)
        done = done and (rc is not None or lost)
        keys = [k for k in context.logs.keys(state.id) if k.instance == instance and k.rank == f"exec-{exec_id}"]
        results.append(r.ExecResult(instance, rc, "".join([await _text(context, state, key) for key in keys]), lost))
    return to_dict(r.ExecView(done, tuple(results)))


def may_read(context: Context, actor: Actor, view: r.JobView) -> bool:
    """Whether ``actor`` may see the job of a line."""
    return context.authorize(actor, Verb.READ, Resource(view.project, view.user, view.job))


async def _text(context: Context, state: JobState, key: LogKey) -> str:
    start = max(0, context.logs.end(state.id, key) - _EXEC_BYTES)
    _, data = await context.read_log(state.id, key, start, _EXEC_BYTES)
    return data.decode("utf-8", "replace")


async def _ask(request: Request, job: str, event: ev.Event) -> dict[str, str]:
    context = context_of(request)
    found = await context.find(actor_of(request), Verb.CONTROL, job)
    context.views.forget(found.id)
    state = await context.controller.ask(found.id, event)
    if state.phase in (JobPhase.CANCELLED, JobPhase.SUCCEEDED):
        context.secrets.forget(state.id)
    return {"job": state.id, "phase": str(state.phase)}


async def _lost_job(context: Context, lost: Lost, digest: str) -> JobId | None:
    """The job of a submission whose server was killed: it was taken in by that server, and is nobody else's."""
    async for view in context.views.all(context.clock.now()):
        job = JobId(view.job)
        in_time = lost.after <= view.submitted_at <= context.started_at
        if in_time and job not in lost.claimed:
            state = context.controller.states[job]
            if digest_of(state.task, state.project) == digest:
                return job
    return None


def _task(value: dict[str, Any]) -> Task:
    data = value.get("task")
    if not isinstance(data, dict):
        raise BadInput(Problem("", "task", "expected a task" if "task" in value else "is missing"))
    try:
        task = from_dict(Task, data)
        to_dict(task)
    except (TypeError, ValueError, KeyError, AttributeError):
        # The text of the error may quote the value, which may be a secret in the wrong place.
        raise BadInput(Problem("", "task", "is not a task as this version of everstep writes it")) from None
    if not task.run and not task.argv:
        raise BadInput(Problem("", "run", "there is nothing to run"))
    return task


def _check_secrets(task: Task, secrets: dict[str, str]) -> None:
    problems = [Problem("", f"secrets.{name}", "has no value") for name in task.secret_names if name not in secrets]
    strange = [name for name in secrets if name not in task.secret_names]
    problems += [Problem("", f"secrets.{name}", "is not a secret of the task") for name in strange]
    if problems:
        raise BadInput(*problems)


def _check_uploads(context: Context, task: Task) -> None:
    named = [("workdir", task.workdir_digest), *((f"file_mounts.{m.target}", m.digest) for m in task.mounts)]
    missing = [key for key, digest in named if digest and context.files.upload(digest) is None]
    if missing:
        raise BadInput(*(Problem("", key, "names an archive that was not uploaded") for key in missing))


def _whole(value: dict[str, Any], key: str) -> int | None:
    found = value.get(key)
    if found is not None and (not isinstance(found, int) or isinstance(found, bool)):
        raise BadInput(Problem("", key, "expected a whole number"))
    return found
