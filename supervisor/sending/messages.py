"""What the message of a queued run says, and messages that are prebuilt.

An assignment is what a message says, from its job's spec or from the plan of its steps.

Where the broker's queues are keys beside the ledger's, the function that admits a run also sends
its message (ledger/admit.lua), and needs the text of the message for that. Messages of ticks and of
calls differ in their run alone, and are made without Celery for each.

1. Jobs of one task, with the same queue, priority, limits and retries, have messages of one shape.
   So have calls of a guarded task with the same options. Celery and kombu make it, like any other
   message, for a run that stands for all of them (templates.py).
2. For each run its id and nominal time, the name, rules and arguments of its job, and a fresh
   delivery tag are put in their places.

Messages that may differ in more are not prebuilt, and their runs go through the outbox: those whose
arguments are masked or name secrets; all while a signal handler listens to messages being sent;
those of tasks and routers with code of their own for it, or with another name; and those whose
shape, filled with what it was made of, differs from what Celery had made. So do all messages to a
broker that is elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from celery import Celery, Task, signals
from celery.app.amqp import AMQP
from celery.app.routes import MapRoute
from celery.app.task import extract_exec_options  # type: ignore[attr-defined]

from supervisor.guard.delivery import RETRIES
from supervisor.job.run import Reference, Run, RunState, StepId
from supervisor.job.secrets import has_references
from supervisor.job.spec import JobSpec
from supervisor.job.steps import Step, seconds
from supervisor.ledger.connection import Client
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.requests import Message, RunRequest, Tick
from supervisor.logs import get_logger
from supervisor.sending.app_settings import broker_address, required_settings
from supervisor.sending.queues import UNAVAILABLE, is_on_redis
from supervisor.sending.templates import (
    NOMINAL,
    NOMINAL_TEXT,
    OF_A_CALL,
    RUN,
    OfShape,
    Shape,
    of_tick,
    recorded,
    shape_of,
    without_trace,
)
from supervisor.settings import same_database

#: Up to this many plans of runs are kept: they never change, and a process publishes for a few.
MOST_PLANS = 200


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the message of a run says: the run, and its task with queue, limits and retries.

    step: of the run's plan, or what a job of one task says; its arguments, where a caller gave
    others, are not these. fills_up: parameters without an argument come from params. references:
    what of the arguments a schedule file wrote, with references in it.
    """

    run: Run
    step: Step
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    fills_up: bool
    references: Sequence[Reference]


class Assignments:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._plans: dict[str, Mapping[str, Step]] = {}

    def of(self, runs: Sequence[Run]) -> dict[str, Assignment]:
        """Assignments by run id, without runs whose job, or whose run of several steps, is gone.

        Jobs that only another version of this code can read are left out too.
        """
        specs = self._ledger.some_specs({run.job for run in runs if StepId.of(run.id) is None})
        step_ids = {run.id: step_id for run in runs if (step_id := StepId.of(run.id))}
        plans = self._plans_of({step_id.run for step_id in step_ids.values()})
        items = self._ledger.steps.items([run.id for run in runs])
        found: dict[str, Assignment] = {}
        for run in runs:
            step_id, spec = step_ids.get(run.id), specs.get(run.job)
            step = plans.get(step_id.run, {}).get(step_id.step) if step_id else None
            if step:
                found[run.id] = of_step(run, step, items.get(run.id, ()))
            elif spec and spec.task and not step_id:
                found[run.id] = of_job(run, spec, spec.task)
        return found

    def _plans_of(self, run_ids: Iterable[str]) -> Mapping[str, Mapping[str, Step]]:
        plans = self._plans  # another thread may replace them meanwhile
        unknown = [run_id for run_id in run_ids if run_id not in plans]
        if len(plans) + len(unknown) > MOST_PLANS:
            plans, unknown = {}, list(run_ids)
        if unknown:
            plans = self._plans = {**plans, **self._ledger.steps.plans(unknown)}
        return plans


def of_job(run: Run, spec: JobSpec, task: str) -> Assignment:
    step = Step(
        name=spec.name,
        task=task,
        priority=0,
        queue=spec.routed_queue,
        message_priority=spec.priority,
        soft_time_limit=seconds(spec.soft_time_limit),
        time_limit=seconds(spec.time_limit),
        max_retries=spec.max_retries,
        retry_backoff=spec.retry_backoff.total_seconds(),
        retry_backoff_max=spec.retry_backoff_max.total_seconds(),
        rules=run.rules,
    )
    args = tuple(spec.args if run.args is None else run.args)
    kwargs = dict(spec.kwargs if run.kwargs is None else run.kwargs)
    own = [name for name in written(run) if has_references(getattr(spec, name))]
    return Assignment(run, step, args, kwargs, False, [*own, *run.references])


def of_step(run: Run, step: Step, item: Sequence[Any]) -> Assignment:
    """item: the item of a batch that the run is for, as its first argument; else empty."""
    args = (*item, *step.args) if run.args is None else tuple(run.args)
    kwargs = dict(step.kwargs if run.kwargs is None else run.kwargs)
    own = written(run) if step.has_references else []
    return Assignment(run, step, args, kwargs, True, [*own, *run.references])


def run_of(spec: JobSpec, request: RunRequest, nominal_at: datetime) -> Run:
    """The run of a call before it is admitted. Raises InvalidKey."""
    return Run(
        request.run_id or "",
        spec.name,
        RunState.QUEUED,
        nominal_at,
        nominal_at,
        args=request.args,
        kwargs=request.kwargs,
        options=request.options,
        rules=request.rules_for(spec),
    )


def written(run: Run) -> list[str]:
    """Names of the arguments that are the job's own, not a caller's."""
    return [name for name in ("args", "kwargs") if getattr(run, name) is None]


def message_header(assignment: Assignment, queue: str) -> dict[str, Any]:
    """What a run's message says beside Celery's own headers."""
    run, step = assignment.run, assignment.step
    references = {"references": list(assignment.references)} if assignment.references else {}
    return {
        "run": run.id,
        "job": run.job,
        "queue": queue,
        "nominal_at": run.nominal_at.isoformat(),
        "rules": step.rules.json_fields,
        RETRIES: run.retries,
        "max_retries": step.max_retries,
        "retry_backoff": step.retry_backoff,
        "retry_backoff_max": step.retry_backoff_max,
        **references,
    }


# Prebuilt messages.


log = get_logger("supervisor.messages")

#: Two connections with the same of these see the same keys with the same rights.
SAME_KEYS = ("host", "port", "path", "db", "username")


def name_of(own: type) -> str:
    return f"{own.__module__}:{own.__qualname__}"


#: A handler of one of these sees each message, and may change it.
LISTENED_TO = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)

#: Options with which calls may have messages of one shape, and how many such shapes are kept.
OF_CALLS = {"queue", "priority", "ignore_result"}
MOST_SHAPES = 1_000

#: What a task's class may define of how it is sent, and the classes whose definitions are known.
SENDING = ("apply_async", "shadow_name")
KNOWN_CLASSES = ("supervisor.worker.task:GuardedCalls", name_of(Task))

#: Publishes with a given producer, as everything is published.
Send = Callable[[Any, Assignment], str]


def is_ordinary(app: Celery, name: str) -> bool:
    """Whether Celery alone decides how a task is sent, and no handler or event observes it."""
    task_class: Any = type(app.tasks.get(name))
    return (
        not sends_itself(task_class)
        and type(app).send_task is Celery.send_task
        and not is_listened_to()
        and not app.conf.task_send_sent_event
        and all(isinstance(route, MapRoute) for route in app.amqp.routes)
    )


@lru_cache(maxsize=1_000)
def sends_itself(task_class: type) -> bool:
    classes = task_class.__mro__
    return any(vars(c).keys() & {*SENDING} and name_of(c) not in KNOWN_CLASSES for c in classes)


def is_sent_by_celery_alone(app: Celery) -> bool:
    """Whether no library wraps what sends a message, as those do that record traces.

    A wrapper has the names of what it wraps, but the globals of its own module.
    """
    amqp: Any = app.amqp
    parts = ((Task.apply_async, Task), (Celery.send_task, Celery), (amqp.as_task_v2, AMQP))
    return all(getattr(f, "__globals__", {}).get("__name__") == c.__module__ for f, c in parts)


def is_listened_to() -> bool:
    return any(signal.receivers for signal in LISTENED_TO)


def is_beside(channel: Any, ledger: Client) -> bool:
    """Whether the broker's queues are keys of the ledger's own database, for the same user."""
    if not is_on_redis(channel):
        return False
    ours = connected_to(channel.client.connection_pool)
    return ours is not None and ours == connected_to(ledger.connection_pool)


def connected_to(pool: Any) -> tuple[str, ...] | None:
    """The server of a connection pool; None if the pool looks it up, as with Sentinel."""
    known = pool.connection_kwargs
    if not (known.get("host") or known.get("path")):
        return None
    return tuple(str(known.get(key) or "") for key in SAME_KEYS)


class PrebuiltMessages:
    """Makes the messages of ticks. send: publishes with a given producer, like any message."""

    def __init__(self, app: Celery, ledger: Client, send: Send) -> None:
        self._app = app
        self._ledger = ledger
        self._send = send
        self._shapes: dict[tuple[Any, ...], Shape | None] = {}
        self._of_calls: dict[tuple[str, str, str], tuple[JobSpec, Shape | None]] = {}
        # A broker that is elsewhere, and may be unavailable, is not asked while runs are admitted.
        may_be_beside = same_database(broker_address(app.conf), required_settings(app).redis_url)
        self._are_beside: bool | None = None if may_be_beside else False

    def message_for_ledger(self, tick: Tick) -> Message | None:
        """The message of the tick, for the function that queues its run to send.

        None if that function cannot send it, or if it cannot be prebuilt.
        """
        if is_listened_to() or not self._has_queues_beside():
            return None
        return self._message(tick)

    def call(self, spec: JobSpec, task: str, request: RunRequest, channel: Any) -> Message | None:
        """The message of a call to a broker beside the ledger; None if Celery has to make it.

        request: with an id, arguments and kwargs. channel: as in `recorded`. Raises InvalidKey.
        """
        own_task = self._app.tasks.get(task)
        options = {k: v for k, v in request.options.items() if k not in OF_A_CALL}
        if own_task is None or spec.mask or request.changes or not options.keys() <= OF_CALLS:
            return None
        if not is_sent_by_celery_alone(self._app):
            return None
        lineage = {k: type(v) for k, v in request.options.items() if k in OF_A_CALL}
        key = (spec.name, repr((options, lineage)), repr(extract_exec_options(own_task)))
        known = self._of_calls.get(key)
        if known is None or known[0] is not spec:
            if len(self._of_calls) >= MOST_SHAPES:
                self._of_calls.clear()
            known = self._of_calls[key] = spec, self._of_call(spec, task, request, channel)
        if known[1] is None:
            return None
        now = datetime.now(UTC).isoformat()
        return known[1].message(self._content(spec, request, now))

    def _of_call(self, spec: JobSpec, task: str, request: RunRequest, channel: Any) -> Shape | None:
        if any(type(request.options.get(name, "")) is not str for name in OF_A_CALL):
            return None
        names = {k: OF_A_CALL.get(k, v) for k, v in request.options.items()}
        request = replace(request, run_id=RUN, options=names)
        assignment = of_job(run_of(spec, request, NOMINAL), spec, task)
        push = self._recorded(assignment, channel)
        if push is None:
            return None
        try:
            own = self._content(spec, request, NOMINAL_TEXT)
            return shape_of(self._app, push, json.loads(push.text), own)
        except (KeyError, TypeError, ValueError):  # of Celery's older protocol, or compressed
            return None

    def _content(self, spec: JobSpec, request: RunRequest, nominal: str) -> OfShape:
        before, after = spec.rules_around_lock
        return OfShape(
            request.run_id or "",
            nominal,
            spec.name,
            tuple(request.args or ()),
            request.kwargs or {},
            (before, request.lock_for(spec), after),
            self._app.thread_oid,
            str(request.options.get("root_id", "")),
            str(request.options.get("parent_id", "")),
        )

    def _has_queues_beside(self) -> bool:
        if self._are_beside is None:
            with self._app.producer_or_acquire() as producer:
                self._are_beside = is_beside(producer.channel, self._ledger)
        return self._are_beside

    def _message(self, tick: Tick) -> Message | None:
        spec = tick.spec
        if spec.task is None or spec.mask or has_references((spec.args, spec.kwargs)):
            return None
        try:
            task: Any = self._app.tasks.get(spec.task)
            if task is not None and task.typing:
                task.__header__(*spec.args, **spec.kwargs)  # refuses arguments that do not fit
            shape = self._shape(spec, spec.task)
            return shape.message(of_tick(tick)) if shape else None
        except UNAVAILABLE:
            raise
        except Exception as error:  # noqa: BLE001 - the outbox finds the same, and ends the run with it
            log.info("message not prebuilt", job=spec.name, error=str(error))
            return None

    def _shape(self, spec: JobSpec, task: str) -> Shape | None:
        key = (
            task,
            spec.routed_queue,
            spec.priority,
            spec.soft_time_limit,
            spec.time_limit,
            spec.max_retries,
            spec.retry_backoff,
            spec.retry_backoff_max,
        )
        if key not in self._shapes:
            is_ours = is_ordinary(self._app, task)
            self._shapes[key] = self._of_ticks(spec, task) if is_ours else None
        return self._shapes[key]

    def _of_ticks(self, spec: JobSpec, task: str) -> Shape | None:
        run = Run(RUN, spec.name, RunState.QUEUED, NOMINAL, NOMINAL, rules=spec.rules())
        push = self._recorded(of_job(run, spec, task))
        if push is None:
            return None
        own = of_tick(Tick(spec, NOMINAL))._replace(id=RUN)
        message = without_trace(json.loads(push.text))
        if message["headers"]["task"] != task:  # an alias: the outbox tells the ledger
            return None
        return shape_of(self._app, push, message, own)

    def _recorded(self, assignment: Assignment, channel: Any = None) -> Message | None:
        def publish(producer: Any) -> str:
            return self._send(producer, assignment)

        if channel is not None:
            return recorded(self._app, channel, publish)
        with self._app.producer_or_acquire() as producer:
            return recorded(self._app, producer.channel, publish)
