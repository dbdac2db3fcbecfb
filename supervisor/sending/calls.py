"""Runs that code asks for: calls of guarded tasks, and `start` of several steps.

A call's run is admitted, and its message sent when it may begin:

1. ``@app.task(guard={"overlap": "queue_one", "key": "import:{feed_url}"})`` puts a task under the
   guard; the keys are those of a schedule file's job, without the schedule.
2. ``task.apply_async(args, headers={"guard": {...}})`` sets, for one call, ``key`` (the lock's key
   itself), ``overlap`` and ``max_wait``. With ``guard=False`` a task's calls are guarded where this
   header says so. The task's own arguments are not touched.
3. The message is made in the caller, and the ledger gives the run its place and keeps the message.
   That of a run that waits, or has a `countdown`, is sent when its time has come: until then it
   occupies no worker.
4. The caller gets Celery's AsyncResult, with the `admission` on it.

A run that `start` began has all that the run of a schedule file's job has: the guard, retries,
rescue, a history under its job's name, and `supervisor show`.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from celery import Celery, Task, current_app
from celery._state import _task_stack  # type: ignore[attr-defined]
from celery.app.task import Context
from celery.backends.base import DisabledBackend
from celery.exceptions import SoftTimeLimitExceeded
from celery.result import AsyncResult
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.compression import get_encoder

from supervisor.catalog.job_checks import GuardedCall, guarded_task_spec, spec_without_schedule
from supervisor.errors import InvalidGuard, UnknownRun
from supervisor.guard.current_run import current_run
from supervisor.guard.delivery import GUARD, HEADER, own_headers, work_of
from supervisor.job.policies import OverlapPolicy
from supervisor.job.run import Message, RunState, is_below, manual_id
from supervisor.job.spec import GuardedTaskSpec, JobSpec
from supervisor.job.templates import lock_key
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Admission, Placement
from supervisor.ledger.requests import CallArguments, RunRequest
from supervisor.logs import get_logger
from supervisor.sending.app_settings import required_settings
from supervisor.sending.content import OF_RUNS
from supervisor.sending.context import headers_of_context
from supervisor.sending.messages import of_job, run_of
from supervisor.sending.publisher import NothingSent, Publisher, as_json, publisher_of
from supervisor.sending.queues import is_unavailable
from supervisor.sending.templates import parts_of, why_apart
from supervisor.store.connection import RedisError
from supervisor.times import LONGEST_SECONDS

#: How long to wait for the end of a run whose result is there, and how often to look.
TIMEOUT_SECONDS = 1.0
LOOK_SECONDS = 0.005


class GuardedResult(AsyncResult):  # type: ignore[type-arg]
    """Celery's result of a guarded call, with the place that the ledger gave its run."""

    def __init__(
        self, admission: Admission, task: Task[Any, Any], *, is_ignored: bool = False
    ) -> None:
        super().__init__(admission.run_id, app=task.app, backend=task.backend)
        self.admission = admission
        self.ignored = is_ignored

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled copy is Celery's own result, without the admission."""
        return AsyncResult, self.__reduce_args__()

    def __copy__(self) -> AsyncResult[Any]:
        return AsyncResult(*self.__reduce_args__())

    @property
    def was_skipped(self) -> bool:
        return self.admission.placement is Placement.SKIP

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """As Celery's own, but by the time it returns the run no longer holds its lock.

        Celery stores a result before the run's end is reported, so that the next call might still
        be skipped for it. That end is waited for as well; `timeout` is for the result.
        """
        try:
            return super().get(*args, **kwargs)
        finally:
            if self._cache and not self.was_skipped:  # type: ignore[attr-defined]
                wait_for_end(self.app, self.id)

    wait = get


@cache
def result_class(task: Any) -> type[GuardedResult]:
    """GuardedResult over the task's own class of results."""
    own: Any = type(task.AsyncResult("of no task"))
    return type(own.__name__, (GuardedResult, own), {})


def wait_for_end(app: Any, run_id: str) -> None:
    ledger, until = impatient_ledger(app, os.getpid()), time.monotonic() + TIMEOUT_SECONDS
    with suppress(RedisError, UnknownRun):
        while ledger.run(run_id).state is RunState.RUNNING and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)


@cache
def impatient_ledger(app: Celery, _pid: int) -> Ledger:
    """For callers that have a result already: a server that hangs does not hold them up."""
    settings = required_settings(app)
    return Ledger.open_without_retries(settings)


def lineage(task: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options by which Celery's canvas and monitors know the running task that makes a call.

    Empty outside of a task. They are recorded with the call: a message that is made later - after a
    retry with other arguments, or because the broker was away - is made by a process that is not
    its parent.
    """
    parent: Any = task.app.current_worker_task
    if parent is None:
        return {}
    request = parent.request
    found = {"root_id": request.root_id or request.id, "parent_id": request.id}
    own = spec_of(task).priority if task.priority is None else task.priority
    if task.app.conf.task_inherit_parent_priority and own is None:
        # A priority of the call, the guard, the task or its route wins over the parent's.
        priority = (request.delivery_info or {}).get("priority")
        routed = task.app.amqp.router.route(dict(options), task.name)
        if priority is not None and routed.get("priority") is None:
            found["priority"] = priority
    return found


@contextmanager
def without_parent() -> Iterator[None]:
    """What this thread sends meanwhile does not belong to the task that it runs."""
    running = []
    while (task := _task_stack.pop()) is not None:
        running.append(task)
    try:
        yield
    finally:
        for task in reversed(running):
            _task_stack.push(task)


log = get_logger("supervisor.calls")


def message_of(publisher: Publisher, spec: GuardedTaskSpec, request: RunRequest) -> Message | None:
    """The message of a call, made here and now by all code of the app that has a say in it.

    Whatever it says of the caller - a tenant, a correlation id - each later message of the run says
    too. None if that code sends nothing now, or the broker is unavailable: then it is asked again
    when the run is to be sent. Raises InvalidKey, and what `apply_async` raises of Celery.
    """
    assignment = of_job(run_of(spec, request, datetime.now(UTC)), spec, spec.name)
    try:
        return publisher.message_of_call(assignment)
    except Exception as error:
        if not (isinstance(error, NothingSent) or is_unavailable(error)):
            raise
        publisher.channel_beside = None  # it may be its connection, which is then looked up again
        log.info("message not made", job=spec.name, error=str(error))
        return None


def options_of_caller(publisher: Publisher, spec: JobSpec) -> dict[str, Any]:
    """Options for the messages of a run that is no call: the headers that code gives them here.

    All messages of the run, and of its steps, have those.
    """
    headers: dict[str, Any] = {}
    for *_, assignment in parts_of(spec):
        if why_apart(publisher.app, assignment.step.task) is None:
            continue
        # The task's own `apply_async` first, which may refuse a step that lacks arguments.
        for fills_up in dict.fromkeys((False, assignment.fills_up)):
            try:
                message = publisher.message_of_call(replace(assignment, fills_up=fills_up))
            except Exception as error:  # noqa: BLE001 - as in `message_of`
                log.info("message not made", job=spec.name, error=str(error))
            else:
                headers = {**own_headers(message.headers), **headers}
                break
    headers = {**headers, **headers_of_context()}
    return as_json({"headers": headers}) if headers else {}


#: Celery's options of a call that each message of a run sets for itself.
MESSAGES_OWN = ("task_id", "retries", "expires")


def request_of(
    task: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    task_id: str | None,
    options: Mapping[str, Any],
) -> RunRequest:
    """What the call asks of the ledger. Raises InvalidGuard, InvalidKey and TypeError."""
    args, kwargs = dumped(task, args, kwargs)
    options, spec = dict(options), spec_of(task)
    task_id = str(task_id) if task_id else None  # Celery takes a UUID
    if task_id and is_below(task_id):
        raise InvalidGuard(task.name, [f"{task_id!r} as an id is that of a step of a run"])
    at_work = current_run()
    if at_work is not None and task_id == at_work.run_id:
        what = "a run cannot be replaced by a guarded call, which is a run of its own: call it"
        raise InvalidGuard(task.name, [what])
    check_content(task, options)
    expires = until(options.pop("expires", task.expires))
    headers = {**headers_of_context(), **(options.pop("headers", None) or {})}
    asked = GuardedCall.of(headers.pop(GUARD, None), task.name)
    return RunRequest(
        run_id=task_id or manual_id(task.name),
        args=as_json(args),
        kwargs=as_json(kwargs) if kwargs else {},
        key=asked.key or key_of(task, spec, args, kwargs),
        overlap=asked.overlap,
        max_wait=asked.max_wait,
        expires=expires,
        delay=until(options.pop("eta", None) or options.pop("countdown", None)) or timedelta(),
        options=as_json(
            {
                **lineage(task, options),
                **sendable(options),
                **({"headers": headers} if headers else {}),
            }
        ),
        is_awaited=is_awaited(task, options),
        is_of_code=True,
    )


def is_awaited(task: Any, options: Mapping[str, Any]) -> bool:
    """Whether a caller may wait for the call's result, by itself or in a chord."""
    if isinstance(task.backend, DisabledBackend):
        return False
    return bool(options.get("chord")) or not is_ignored(task, options)


def is_ignored(task: Any, options: Mapping[str, Any]) -> bool:
    own = options.get("ignore_result")
    return bool(task.ignore_result if own is None else own)


def check_content(task: Any, options: Mapping[str, Any]) -> None:
    """A call that no worker can read would hold the lock. Raises InvalidGuard."""
    serializer = options.get("serializer")
    if serializer and serializer not in OF_RUNS:
        what = f"messages of runs are JSON: leave serializer={serializer!r} out"
        raise InvalidGuard(task.name, [what])
    try:
        get_encoder(options.get("compression") or "gzip")
    except KeyError as error:
        raise InvalidGuard(task.name, [f"there is no compression {error}"]) from None


def check_arguments(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises TypeError for arguments that the task refuses, as Celery's own `apply_async`."""
    if task.typing and hasattr(task, "__header__"):
        task.__header__(*args, **kwargs)


def dumped(task: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a task with `pydantic=True` as they are sent, which takes Celery 5.7."""
    dump = getattr(task, "_dump_pydantic_arguments", None)
    return dump(args, kwargs) if dump else (args, kwargs)


@cache
def spec_of(task: Any) -> GuardedTaskSpec:
    """Raises InvalidGuard."""
    if has_own_strategy(task):
        raise InvalidGuard(task.name, ["the task has a Strategy of its own: leave its guard out"])
    guard = guard_in_code(task)
    spec = guarded_task_spec(task.name, guard if guard not in (None, True, False) else {})
    return spec.kept_apart(task.app.supervisor["prefix"])


@cache
def parameters_of(task: Any) -> inspect.Signature:
    return inspect.signature(task.run)


def key_of(
    task: Any, spec: GuardedTaskSpec, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """The spec's template, filled with the arguments by the names of the task's parameters."""
    if spec.key is None:
        return None
    bound = parameters_of(task).bind(*args, **kwargs)
    bound.apply_defaults()
    arguments, mask = bound.arguments, spec.mask
    return lock_key(spec.key, job=spec.name, task=spec.work, kwargs=arguments, mask=mask)


def until(moment: Any) -> timedelta | None:
    """The time from now until an instant (also as ISO text), or a number of seconds.

    Never negative, and no longer than the longest duration of schedule files. An instant without an
    offset is UTC, as Celery reads it whatever the zone of app and machine.
    """
    if moment is None:
        return None
    if isinstance(moment, str):
        moment = maybe_iso8601(moment)
    if isinstance(moment, datetime):
        seconds = (maybe_make_aware(moment) - datetime.now(UTC)).total_seconds()
    else:
        seconds = float(moment)
    return timedelta(seconds=min(max(0.0, seconds), LONGEST_SECONDS))


def asked_of(header: Mapping[str, Any], request: Context, task: Any) -> CallArguments:
    """What the caller of a run asked for, read from the run's message.

    Empty for the run of a tick, and without arguments that are the schedule file's own.
    """
    if work_of(header).is_tick:
        return CallArguments()
    # The ledger has lost the run, and cannot say which arguments are the schedule file's.
    references = header.get("references", ())
    found = {
        **request.as_execution_options(),
        "priority": (request.delivery_info or {}).get("priority"),
        "ignore_result": request.ignore_result,
        "queue": header["queue"],
    }
    options = {k: v for k, v in found.items() if v is not None and k not in MESSAGES_OWN}
    passed_on = options.pop("headers", {})
    headers = {k: v for k, v in passed_on.items() if k != HEADER}
    return CallArguments(
        args=None if "args" in references else as_json(request.args),
        kwargs=None if "kwargs" in references else as_json(request.kwargs),
        options=as_json({**options, **({"headers": headers} if headers else {})}),
        references=[place for place in references if not isinstance(place, str)],
        is_awaited=is_awaited(task, options),
        code=spec_text(task) if header["job"] == task.name else "",
    )


def spec_text(task: Any) -> str:
    try:
        return spec_of(task).text
    except InvalidGuard:  # the task's calls are refused; a header may have guarded this one
        return ""


def given(**options: Any) -> dict[str, Any]:
    """The options that were given, without those that are None."""
    return {name: value for name, value in options.items() if value is not None}


def sendable(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a message can have that is sent by another process."""
    return {key: value for key, value in options.items() if key not in ("producer", "connection")}


def guard_in_code(task: Any) -> Any:
    """The `guard` of a task, None without one; a method of that name is the app's own business."""
    guard = getattr(task, "guard", None)
    return None if callable(guard) else guard


def has_own_strategy(task: Any) -> bool:
    """Whether the task's own code takes its messages in the worker, as that of celery-batches does.

    It may keep them, or give the pool several at once: no single one of them could be guarded.
    """
    return bool(task.Strategy != Task.Strategy)


def cannot_run(task: Any) -> tuple[str, str] | None:
    """What keeps a task from being run as a job, and a hint; None if nothing does."""
    body = inspect.unwrap(task.run)
    if has_own_strategy(task):
        return "has a Strategy of its own", "have a task of its own for the job, which calls it"
    if has_own_call(type(task)):  # which may await or consume what the body returns
        return None
    if inspect.iscoroutinefunction(body):
        return "is `async def`, which Celery never awaits", "write `def`, with asyncio.run() in it"
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        return "is a generator, which Celery never runs", "return a list, or nothing"
    return None


def not_guardable(app: Celery, specs: Iterable[JobSpec]) -> Iterator[tuple[str, str]]:
    """Jobs that no worker can run, each with the reason."""
    for spec in specs:
        for name in spec.tasks:
            if name in app.tasks and has_own_strategy(app.tasks[name]):
                yield spec.name, f"the task {name!r} has a Strategy of its own"


def has_own_call(task_class: type) -> bool:
    """Whether a class of the project decides what happens when the task is called."""
    return any(
        "__call__" in vars(own)
        for own in task_class.__mro__[: task_class.__mro__.index(Task)]
        if own.__module__.partition(".")[0] != "supervisor"
    )


def is_guarded_call(task: Any, options: Mapping[str, Any]) -> bool:
    headers, guard = options.get("headers") or {}, guard_in_code(task)
    if HEADER in headers or guard is None or task.app.conf.task_always_eager:
        return False
    return bool(guard) or GUARD in headers


def call_guarded(
    task: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    task_id: str | None,
    options: dict[str, Any],
) -> GuardedResult:
    """Raises InvalidGuard, InvalidKey, NoQueue, TypeError for arguments the task refuses, what code
    of the app raises that has a say in messages, and what redis-py raises when the ledger is
    unavailable.

    A call that raises the last may have been recorded, and then its run will start. To be able to
    call again, give a `task_id` from the beginning: calls with the same one make one run.
    """
    request = request_of(task, args, kwargs, task_id, options)
    publisher = publisher_of(task.app)
    message = message_of(publisher, spec_of(task), request)
    request = replace(request, message=message)
    admission = publisher.ledger.admit_request(spec_of(task), request)
    result = result_class(task)(admission, task, is_ignored=is_ignored(task, options))
    publisher.publish(admission.to_publish)
    if admission.placement is not Placement.SKIP:
        add_to_parent(task, result, options)
    if admission.placement is Placement.SKIP and request.is_awaited:
        revoke_skipped(task, admission, options)
    return result


def revoke_skipped(task: Any, admission: Admission, options: Mapping[str, Any]) -> None:
    """Ends the wait of callers for the result. A backend that is unavailable fails no call."""
    try:
        reason = f"skipped: {admission.reason}"
        revoke(task.backend, admission.run_id, reason, options, task.app.thread_oid)
    except SoftTimeLimitExceeded:
        raise
    except Exception as error:  # noqa: BLE001 - each backend has errors of its own
        log.error("revocation not sent", job=admission.job, run=admission.run_id, error=repr(error))


def add_to_parent(task: Any, result: AsyncResult[Any], options: Mapping[str, Any]) -> None:
    """Does what Celery does when a message is sent from within a task."""
    parent: Any = task.app.current_worker_task
    if parent is not None and options.get("add_to_parent", True):
        parent.add_trail(result)


def revoke(
    backend: Any, run_id: str, reason: str, options: Mapping[str, Any], caller: str | None = None
) -> None:
    """Records in a result backend that a call ended before it began. Raises what the backend does.

    The context is what a worker would know of the call: its caller, its group, its chord. So a
    chord learns of it, and its body fails instead of waiting for ever.
    """
    known = {key: options.get(key) for key in ("chord", "group_index", "root_id", "parent_id")}
    known["reply_to"] = options.get("reply_to") or caller
    context = Context(id=run_id, group=options.get("group_id"), **known)
    backend.mark_as_revoked(run_id, reason, request=context)


def register_all(app: Celery) -> None:
    """Registers the guarded tasks before they are called, so that their metrics start at 0."""
    for task in app.tasks.values():
        if not guard_in_code(task):
            continue
        try:
            publisher_of(app).ledger.register(spec_of(task))
        except InvalidGuard as error:  # calls of this task are refused; the others work
            log.error("guard rejected", task=task.name, problems=error.problems)


LONGEST_JOB = 100

#: A step: (task or its name, priority), or a mapping of the keys of a schedule file's step.
StepLike = tuple[Any, ...] | Mapping[str, Any]


def start(
    steps: Sequence[StepLike],
    params: Mapping[str, Any] | None = None,
    *,
    job: str | None = None,
    run_id: str | None = None,
    app: Celery | None = None,
    **policies: Any,
) -> str:
    """Starts a run of several steps, and returns its id.

    ``start([("extract", 3), ("convert", 3), ("index", 1)], params={"tree": "docs"})``

    - `params`: the values that the first steps get, as JSON.
    - `job`: the name under which runs are counted and listed, by default the names of the steps.
      Use one name for each kind of work, because each name has its own metrics.
    - `run_id`: the id of the run. A second call with the same id has no effect while the run is in
      the history of its job.
    - `policies`: other keys of a job, such as ``overlap="queue_all", key="import:{feed}",
      max_retries=3``. Without `overlap` or `key`, runs do not wait for each other.

    Raises InvalidGuard, InvalidKey, NotConfigured for an app that is not supervised, and the
    exceptions of redis-py if the ledger is unavailable. In that case the run may have been recorded
    nevertheless; with a `run_id` it is safe to call again.
    """
    app = app or current_app._get_current_object()  # type: ignore[attr-defined]
    publisher = publisher_of(app)
    named = [as_keys(step) for step in steps]
    longer = [step for step in steps if isinstance(step, tuple | list) and len(step) > 2]
    if longer:
        whats = [f"{step!r} is more than a task and its priority: use a mapping" for step in longer]
        raise InvalidGuard(f"job {job or name_of(named)!r}", whats)
    if not policies.keys() & {"overlap", "key", "max_running"}:
        policies["overlap"] = OverlapPolicy.ALLOW.value
    job = job or name_of(named)
    spec = spec_without_schedule(f"job {job!r}", job, {"steps": named}, policies)
    spec = spec.kept_apart(publisher.ledger.keys.prefix)
    if run_id is not None and ("@" not in run_id or "~" in run_id):
        # Steps and items of a run are known by the form of their ids.
        what = f"{run_id!r} is no id for it: such as 'documents@order-17', without a '~'"
        raise InvalidGuard(f"job {spec.name!r}", [what])
    begins_with = as_json(dict(params or {}))
    ledger = publisher.ledger
    options = options_of_caller(publisher, spec)
    request = RunRequest(run_id=run_id, params=begins_with, options=options)
    if ledger.client.hexists(ledger.keys.jobs, spec.name):
        what = "a schedule file has a job of this name: trigger it, or choose another name"
        raise InvalidGuard(f"job {spec.name!r}", [what])
    ledger.register(spec)
    admission = ledger.admit_request(spec, request)
    publisher.publish(admission.to_publish)
    return admission.run_id


def as_keys(step: StepLike) -> dict[str, Any]:
    """The keys of the step, with a task's name in place of the task itself."""
    if isinstance(step, Mapping):
        keys = dict(step)
    else:  # what it lacks is reported with all else
        parts = step if isinstance(step, tuple | list) else (step,)
        keys = dict(zip(("task", "priority"), parts, strict=False))
    task = keys.get("task")
    return {**keys, "task": task.name} if isinstance(task, Task) else keys


def name_of(steps: Sequence[Mapping[str, Any]]) -> str:
    """``extract-convert-index``."""
    labels = (str(step.get("name") or step.get("task")) for step in steps)
    return "-".join(label.rpartition(".")[2] for label in labels)[:LONGEST_JOB]
