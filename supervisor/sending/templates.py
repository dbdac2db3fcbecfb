"""The message of a job: Celery makes it once for all runs, or for each run, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any
from uuid import uuid4

from celery import Celery, Task, signals
from celery.app.amqp import AMQP
from celery.app.routes import MapRoute

from supervisor.job.run import Run, RunState
from supervisor.job.run_ids import tick_id
from supervisor.job.spec import JobSpec
from supervisor.job.steps import Step, plan
from supervisor.sending.messages import Assignment, of_job, of_step
from supervisor.sending.recording import Recording

#: A run that stands for all of a job, with an id that occurs in no argument.
NO_MOMENT = datetime(1, 1, 1, tzinfo=UTC)
NO_RUN = tick_id(f"any-{uuid4().hex}", NO_MOMENT)


def messages_of(
    app: Celery, recording: Recording, spec: JobSpec, send: Callable[..., str]
) -> dict[str, str]:
    """The fields of keys.message for a job: its messages, or why Celery has to make each.

    send: Publisher.send; it may raise whatever the app's own code and the arguments lead to.
    """
    if reason := why_job_apart(app, spec):
        return {"apart": reason}
    fields: dict[str, str] = {}
    for name, key, rules, assignment in parts_of(spec, spec.lock if spec.task else ""):
        if assignment.step.foreach:  # its items are sent, and each has its own arguments
            continue
        made = recording.message(partial(send, assignment=assignment), assignment.run.id)
        if made is None:
            return {"apart": "its message differs from run to run in more than its id"}
        fields |= {f"queue:{name}": made.queue, f"list:{name}": made.key, f"text:{name}": made.text}
        fields[f"for:{name}"] = f"{key}\n{rules}"
    return fields


def parts_of(spec: JobSpec, lock: str = "") -> Iterator[tuple[str, str, str, Assignment]]:
    """Of the job, or of each step: its name, the lock or the digest of its plan, the rules as the
    ledger has them, and the assignment of a run that stands for all. lock: of a job of one task."""
    run = Run(NO_RUN, spec.name, RunState.QUEUED, NO_MOMENT, NO_MOMENT, rules=spec.rules(lock))
    if spec.task is not None:
        yield "", lock, spec.rules_text, of_job(run, spec, spec.task)
    for planned in (plan(spec) or {"steps": ()})["steps"]:
        step = Step.of(planned)
        of = replace(run, id=f"{NO_RUN}/{step.name}", rules=step.rules)
        yield step.name, planned["made"], planned["rules"], of_step(of, step, ())


# Whose messages can be made once.

ELSEWHERE = "the broker's queues are not beside the ledger"

#: Before an error. Each run will meet it, and end with it.
CANNOT_BE_MADE = "it cannot be made: "


def why_job_apart(app: Celery, spec: JobSpec) -> str | None:
    """As `why_apart`, of all tasks of the job whose messages can be made once."""
    tasks = [spec.task] if spec.task else [step.task for step in spec.steps if not step.foreach]
    if not tasks:
        return "each item of a batch has arguments of its own"
    return next(filter(None, (why_apart(app, task) for task in tasks)), None)


#: A handler of one of these sees each message, and may change it.
LISTENED_TO = {
    "before_task_publish": signals.before_task_publish,
    "after_task_publish": signals.after_task_publish,
    "task_sent": signals.task_sent,
}


def name_of(own: type) -> str:
    return f"{own.__module__}:{own.__qualname__}"


#: What a task's class may define of how it is sent, and classes whose definitions change nothing.
SENDING = ("apply_async", "shadow_name")
SENT_AS_USUAL = ("supervisor.sending.guarded_calls:GuardedCalls", name_of(Task))


def why_apart(app: Celery, task: str) -> str | None:
    """Why Celery has to make each message of a task, in words; None if one stands for all."""
    own_task: Any = app.tasks.get(task)
    if own_task is not None and own_task.name != task:
        return f"{task} is another name of {own_task.name}"
    task_class: Any = type(own_task)
    if own_task is not None and sends_itself(task_class):
        return f"{task} has an apply_async or a shadow_name of its own"
    if type(app).send_task is not Celery.send_task:
        return "the app has a send_task of its own"
    for name, signal in LISTENED_TO.items():
        if signal.receivers:
            return f"a handler of {name} sees each message"
    if app.conf.task_send_sent_event:
        return "task_send_sent_event is on"
    if not all(isinstance(route, MapRoute) for route in app.amqp.routes):
        return "a router of task_routes is code"
    if not is_sent_by_celery_alone(app):
        return "a library that records traces wraps what sends messages"
    return None


@lru_cache(maxsize=1_000)
def sends_itself(task_class: type) -> bool:
    classes = task_class.__mro__
    return any(vars(c).keys() & {*SENDING} and name_of(c) not in SENT_AS_USUAL for c in classes)


def is_sent_by_celery_alone(app: Celery) -> bool:
    """Whether no library wraps what sends a message, as those do that record traces.

    A wrapper has the names of what it wraps, but the globals of its own module.
    """
    amqp: Any = app.amqp
    parts = ((Task.apply_async, Task), (Celery.send_task, Celery), (amqp.as_task_v2, AMQP))
    return all(getattr(f, "__globals__", {}).get("__name__") == c.__module__ for f, c in parts)
