"""The guard in a worker's child: the task class of a supervised app.

The way of a tick goes on in guard/heartbeat.py, which keeps the lease of what begins here.

The hooks are those that were measured to hold (docs/design.md):

* begin in `before_start`: the last hook before the body, and one that can veto.
* the body in `__call__`: a failure with retries left becomes Celery's Retry, without the ETA
  message; `sys.exit` and MemoryError become ordinary failures.
* the end in the `task_postrun` signal, which fires for every end that unwinds (endings.py).
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import cache, partial
from typing import Any
from uuid import uuid4

import structlog
from billiard.common import terminate_handler_fired  # type: ignore[attr-defined]
from celery import Celery, Task, signals, states
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from kombu.utils.json import loads

from supervisor.errors import (
    JobExited,
    JobOutOfMemory,
    JobRaised,
    RunCancelled,
    RunInterrupted,
    UnusableReturn,
)
from supervisor.guard import child_table
from supervisor.guard.current_run import current_run
from supervisor.guard.delivery import TOKEN, Delivery, supervised
from supervisor.guard.guard import Guard
from supervisor.guard.interrupts import receive_interrupts
from supervisor.job.run import RunState
from supervisor.job.steps import filled, handed_on
from supervisor.ledger.connection import RedisError
from supervisor.ledger.replies import Grant, Refused
from supervisor.sending.calls import call_guarded, given, is_guarded_call, without_parent
from supervisor.sending.publisher import as_json, publisher_of
from supervisor.sending.tracing import traced
from supervisor.worker.results import reporting, store_started
from supervisor.worker.retries import asked_again, is_sent_again, retry_of, sent_again, until

# How the task of a delivery ended, and what the ledger is told of it.
#
# Celery says it with `task_postrun`. Where it could not store how a task failed - the result
# backend is away, a handler of the task's own raises - it says nothing, as for a process that is
# told to stop, or what the backend had of an earlier delivery. Then counts what the body raised or
# returned.


def report(
    guard: Guard, grant: Grant, delivery: Delivery, task: Any, retval: Any, state: str | None
) -> None:
    """Reports the end of the attempt. `retval`, `state`: what `task_postrun` came with."""
    end = partial(guard.end, grant, ended_at=delivery.ended_at)
    if delivery.interrupted is not None:
        cancelled = isinstance(delivery.interrupted, RunCancelled)
        outcome = RunState.CANCELLED if cancelled else RunState.LOST
        end(outcome, "cancelled" if cancelled else "lease lost")
        return
    state, value = end_of(delivery, retval, state)
    match state:
        case states.SUCCESS:
            end(RunState.SUCCEEDED, returned=delivery.returned)
        case states.RETRY:
            delay = delivery.retry_in or until(None, value.when, task.default_retry_delay)
            reason = reason_of(delivery.error or value.exc or value)
            guard.retry(
                *(grant, delay, reason, delivery.asked, delivery.ended_at),
            )
        case states.FAILURE:
            timed_out = isinstance(value, SoftTimeLimitExceeded)
            outcome = RunState.TIMED_OUT if timed_out else RunState.FAILED
            end(outcome, reason_of(value))
        case states.IGNORED | states.REJECTED:  # the job itself raised Ignore or Reject
            end(RunState.SUCCEEDED, state.lower())
        case _:
            end(RunState.LOST, "the worker's process was told to stop")


def end_of(delivery: Delivery, retval: Any, state: str | None) -> tuple[str | None, Any]:
    """Celery's word for the end and what was raised, if anything; no word for one told to stop.

    To be called while what ends the task, if Celery could not deal with it, is on its way.
    """
    if state == states.SUCCESS or isinstance(retval, BaseException):
        return state, retval
    # A class of the team's own may raise around the body, where nobody else sees it.
    match delivery.raised or sys.exc_info()[1]:
        case Retry() as again:
            return states.RETRY, again
        case Exception() as error:
            return states.FAILURE, error
        case BaseException() as error if not isinstance(error, (SystemExit, RunInterrupted)):
            return states.FAILURE, JobRaised(error)
        case _:
            return (states.SUCCESS if delivery.has_returned else None), None


def reason_of(error: Any) -> str:
    if isinstance(error, JobRaised):
        return str(error)
    return f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)


Body = Callable[..., Any]

log = structlog.get_logger("supervisor.tasks")

_delivery: ContextVar[Delivery | None] = ContextVar("supervisor_delivery", default=None)


class GuardedTask(Task):  # type: ignore[type-arg]
    """The base of a supervised app's tasks; messages without our header pass through untouched."""

    abstract = True
    Request = "supervisor.worker.request:GuardedRequest"

    #: Keys of a schedule file's job that put the task under the guard also when code calls it.
    guard: Any = None

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        self._begin(task_id)
        super().before_start(task_id, args, kwargs)

    def _begin(self, task_id: str) -> None:
        """Asks for the lease of a run's delivery. Raises Ignore when it is refused."""
        header = supervised(self.request.headers, task_id)
        if header is not None:
            token = getattr(self.request, TOKEN, None) or uuid4().hex
            delivery = Delivery.of(header, token, self.request.retries)
            guard = guard_of(self.app, os.getpid())
            self._check(header)
            answer = guard.begin(delivery.run_id, delivery.job, token, delivery.queue)
            if isinstance(answer, Refused):
                raise Ignore(answer.refusal.value)
            delivery.grant = answer
            _delivery.set(delivery)
            child_table.set_running(token)
        store_started(self, is_run=header is not None)

    def _check(self, header: Mapping[str, Any]) -> None:
        """Raises Ignore for a message that says otherwise than the ledger, which is forged.

        And where the ledger cannot say.
        """
        request, facts = self.request, {"job": header["job"], "run": header["run"]}
        try:
            publisher = publisher_of(self.app)
            if publisher.would_send(self.name, request.args, request.kwargs, header):
                return
        except RedisError as error:
            log.error("run not begun", **facts, reason="ledger away", error=str(error))
            raise Ignore("unavailable") from error
        log.error("message refused", **facts, reason="it is not what the ledger has of the run")
        raise Ignore("forged")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._enter(super().__call__, args, kwargs)

    def _enter(self, body: Body, args: Any, kwargs: Any) -> Any:
        """Calls the body, under the guard if this is a run's own call and not one further in."""
        delivery = _delivery.get()
        if delivery is None or delivery.run_id != self.request.id:
            task_id = self.request.id
            if task_id is not None and supervised(self.request.headers, task_id):
                self._begin(task_id)  # its own `before_start` took the place of ours
            delivery = _delivery.get()
        if delivery is None or delivery.entered or self.request.id != delivery.run_id:
            return body(*args, **kwargs)
        delivery.entered = True
        try:
            returned = self._run_body(delivery, body, args, kwargs)
        except BaseException as error:
            delivery.raised = error
            raise
        delivery.has_returned = True
        return returned

    def _run_body(self, delivery: Delivery, body: Body, args: Any, kwargs: Any) -> Any:
        """What the body returns; what it raises is raised as Celery is to take it."""
        try:
            delivery.at_work = True
            with traced(self, delivery), reporting(self, delivery):
                returned = self._work(delivery, body, args, kwargs)
            if delivery.again:
                raise delivery.again
            return returned
        except (Ignore, Reject, Retry):
            raise
        except RunInterrupted as interruption:
            delivery.interrupted = interruption
            if isinstance(interruption, RunCancelled):
                self.backend.mark_as_revoked(delivery.run_id, "cancelled", request=self.request)
            raise Ignore(reason_of(interruption)) from interruption
        except SystemExit as error:
            if terminate_handler_fired():
                raise
            raise self._retry_or(delivery, JobExited(error.code)) from error
        except MemoryError as error:
            # One that reaches Celery kills the worker, and the next that gets the message.
            raise self._retry_or(delivery, JobOutOfMemory()) from error
        except Exception as error:
            again = delivery.again or self._retry_or(delivery, error)
            if again is error:
                raise
            raise again from error
        except BaseException as error:
            # Nothing of Celery's or ours raises one here: that is the job's own.
            raise self._retry_or(delivery, JobRaised(error)) from error
        finally:
            delivery.at_work = False
            child_table.set_running(None)

    def _work(self, delivery: Delivery, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The task's body; a step's arguments are filled up, and what it returns is kept."""
        run = current_run()
        if delivery.references:
            args, kwargs = delivery.with_secrets(args, kwargs, os.environ)
        is_step = run is not None and run.step is not None
        if run is not None and is_step:
            kwargs = filled(self.run, args, kwargs, run.params)
        self._confirm(delivery)
        returned = body(*args, **kwargs)
        if run is None or not is_step:
            return returned
        if run.item is None:
            delivery.returned = handed_on(returned, as_json)
        return returned

    def _confirm(self, delivery: Delivery) -> None:
        """The last step before the body: all before it takes time. Raises Ignore if refused."""
        assert delivery.grant is not None
        guard = guard_of(self.app, os.getpid())
        answer = guard.confirm(delivery.grant, delivery.queue)
        if isinstance(answer, Refused):
            delivery.grant = None
            raise Ignore(answer.refusal.value)
        delivery.grant = answer

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> Any:
        """Celery's own signature; the call of a guarded task is a run (calls.py)."""
        said = {"link": link, "link_error": link_error, "shadow": shadow}
        if is_guarded_call(self, options) and not is_sent_again(task_id):
            options |= given(**said)
            return call_guarded(self, tuple(args or ()), dict(kwargs or {}), task_id, options)
        # A class of the team's own may take no more by position than the task's arguments.
        options |= given(task_id=task_id, producer=producer, **said)
        return super().apply_async(args, kwargs, **options)

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: Any = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Any:
        """Celery's own signature; in a supervised run the ledger sends the next attempt."""
        delivery = _delivery.get()
        if delivery is None or self.request.called_directly or self.request.id != delivery.run_id:
            # Celery calls the task again for it: not under the guard, as it is not now.
            options |= given(exc=exc, eta=eta, countdown=countdown, max_retries=max_retries)
            with sent_again(self.request.id):
                return super().retry(args, kwargs, throw=throw, **options)
        limit = self.max_retries if max_retries is None else max_retries
        if limit is not None and delivery.retries >= limit:
            raise exc or self.MaxRetriesExceededError(f"{self.name} was retried {limit} times")
        delivery.retry_in = until(eta, countdown, self.default_retry_delay)
        delivery.asked = asked_again(delivery, self, args, kwargs, options)
        delivery.error = exc
        again = retry_of(exc, delivery.retry_in)
        if throw:
            raise again
        delivery.again = again
        return again

    def _retry_or(self, delivery: Delivery, failure: Exception) -> Exception:
        if not delivery.has_retries_left or isinstance(failure, (UnusableReturn, *self.throws)):
            return failure
        delivery.retry_in, delivery.error = delivery.backoff, failure
        return retry_of(failure, delivery.backoff)


@signals.task_postrun.connect(weak=False)
def report_end(task: Any = None, retval: Any = None, state: str | None = None, **_: Any) -> None:
    """The attempt is over, however it ended; a delivery that was refused has nothing to report."""
    delivery = _delivery.get()
    if delivery is None or task.request.id != delivery.run_id:
        return
    _delivery.set(None)
    child_table.set_running(None)
    if delivery.grant is None:  # refused just before the body
        return
    guard, grant = guard_of(task.app, os.getpid()), delivery.grant
    try:
        try:
            report(guard, grant, delivery, task, retval, state)
        except SoftTimeLimitExceeded:
            # It is for the job's code, which is over; said again, an end changes nothing.
            report(guard, grant, delivery, task, retval, state)
    except Exception as error:
        # Celery would swallow it, and a run without an end would keep its lock.
        log.exception("end cannot be reported as it was", run=grant.run_id)
        guard.end(grant, RunState.FAILED, reason_of(error))
    finally:
        delivery.raised = delivery.error = delivery.again = None  # with all that their frames hold


@cache
def guard_of(app: Celery, pid: int) -> Guard:
    """One guard a process, and the handlers of what may interrupt a run in it."""
    receive_interrupts(run_at_work)
    publisher = publisher_of(app)
    return Guard(publisher.ledger, without_parent()(publisher.publish), worker_name(pid), loads)


def run_at_work() -> str | None:
    delivery = _delivery.get()
    return delivery.run_id if delivery is not None and delivery.at_work else None


def worker_name(pid: int) -> str:
    return f"{socket.gethostname()}:{pid}"
