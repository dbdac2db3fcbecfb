"""The guard in a worker's child: hooks over the class of a task that is a job's, or has a `guard`.

A tick's path, step 4 of 6. Next: guard/heartbeat.py.

The hooks are those that were measured to hold (docs/internals/design.md):

* begin in `before_start`: the last hook before the body, and one that can veto.
* the body in `__call__`: a failure with retries left becomes Celery's Retry, without the ETA
  message; `sys.exit` and MemoryError become ordinary failures.
* the end in the `task_postrun` signal, which fires for every end that unwinds (endings.py).
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import cache
from typing import Any
from uuid import uuid4

from billiard import common
from celery import Celery, Task, current_app
from celery._state import _task_stack  # type: ignore[attr-defined]
from celery.app import trace
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from celery.local import Proxy
from kombu.serialization import loads as loads_message
from kombu.serialization import prepare_accept_content
from kombu.utils.json import loads

from supervisor.errors import (
    JobRaised,
    RunCancelled,
    RunInterrupted,
    UnusableReturn,
)
from supervisor.guard.attempt import Attempt, NextAttempt, Phase, raise_in_current_run
from supervisor.guard.current_run import current_attempt, current_run
from supervisor.guard.delivery import CONTENT, TOKEN, Delivery, supervised
from supervisor.guard.guard import Guard
from supervisor.guard.interrupts import receive_interrupts
from supervisor.guard.progress import Reporter
from supervisor.job.run import RunState
from supervisor.job.steps import filled, handed_on
from supervisor.ledger.attempt import Refusal, Refused
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.runs import Reports
from supervisor.lists.attempts import AROUND, TEXTS_OF_FAILURES
from supervisor.logs import get_logger
from supervisor.process import process_name
from supervisor.sending.app_settings import owner_of, required_settings
from supervisor.sending.content import as_json, content_of
from supervisor.sending.guarded_calls import GuardedCalls
from supervisor.sending.publisher import publisher_of
from supervisor.worker.backend import (
    publisher_of_progress,
    store_lost,
    store_started,
    take_over_started,
)
from supervisor.worker.endings import is_of_a_stop, of_base, reason_of
from supervisor.worker.main_process import main_process_of
from supervisor.worker.retries import delay_of, next_arguments, retry_of

TaskBody = Callable[..., Any]


class NotBegun(Ignore):
    """No reply to `begin` arrived, and the body does not start.

    The ledger may have granted the lease: the main process undoes that (request.py, `on_failure`).
    """


log = get_logger("supervisor.tasks")


class GuardedTask(Task):  # type: ignore[type-arg]
    """Comes before a task's own class; messages without our header pass through untouched."""

    abstract = True

    #: Whether Celery would store that the task has started, with `task_track_started`.
    stores_started = False

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Asks for the lease of a run's delivery. Raises Ignore when it is refused."""
        request = self.request
        # Not from its `headers`, which some tracers replace (older SDKs of Sentry).
        header = supervised(vars(request), task_id)
        if header is not None:
            token = getattr(request, TOKEN, None) or uuid4().hex
            guard = guard_of(self.app, os.getpid())
            delivery = Delivery(header, token, request.retries)
            content = getattr(request, CONTENT, None)
            refused = begun(Attempt(guard, delivery, content))
            if refused and refused.detail == RunState.LOST:
                store_lost(self, request)
            ignore_refused(refused)
        store_started(self, request, is_run=header is not None)
        super().before_start(task_id, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the body, under the guard if this is a run's own call and not one further in."""
        body = super().__call__
        attempt = own_attempt(self)
        if attempt is None or attempt.phase is not Phase.GRANTED:
            return body(*args, **kwargs)
        try:
            returned = self._run_body(attempt, body, args, kwargs)
        except BaseException as error:
            attempt.raised = error
            raise
        attempt.has_returned = True
        # What Celery does next, with the result and with callbacks, may take its time.
        attempt.record_end(RunState.SUCCEEDED)
        return returned

    def _run_body(self, attempt: Attempt, body: TaskBody, args: Any, kwargs: Any) -> Any:
        """What the body returns; what it raises is raised as Celery is to take it."""
        reporter = reporter_of(self.app, os.getpid())
        try:
            with around(self, attempt), attempt.running(reporter, publisher_of_progress(self)):
                returned = self._call(attempt, body, args, kwargs)
            if attempt.next and attempt.next.deferred:
                raise attempt.next.deferred
            return returned
        except (Ignore, Reject, Retry):
            raise
        except RunInterrupted as interruption:
            attempt.interruption = interruption
            if isinstance(interruption, RunCancelled):
                self.backend.mark_as_revoked(attempt.run_id, "cancelled", request=self.request)
            raise Ignore(reason_of(interruption)) from interruption
        except SystemExit as error:
            if has_term_signal():
                raise
            raise self._retry_or(attempt, JobRaised.of(error)) from error
        except MemoryError as error:
            # If it reached Celery, it would kill the worker, and the next that gets the message.
            raise self._retry_or(attempt, JobRaised.of(error)) from error
        except Exception as error:
            deferred = attempt.next.deferred if attempt.next else None
            again = deferred or self._retry_or(attempt, error)
            if again is error:
                raise
            raise again from error
        except BaseException as error:
            if is_of_a_stop(error):
                raise
            # Except for a time limit, neither Celery nor we raise one here: it is the job's own.
            raise self._retry_or(attempt, of_base(error)) from error

    def _call(self, attempt: Attempt, body: TaskBody, args: Any, kwargs: Any) -> Any:
        """The task's body; a step's arguments are filled up, and what it returns is kept."""
        run = current_run()
        if attempt.arguments.references:
            args, kwargs = attempt.arguments.with_secrets(args, kwargs, os.environ)
        if run is None or run.step is None:
            attempt.arguments.hide(args, kwargs)
            ignore_refused(attempt.confirm())
            return result_of(body(*args, **kwargs))
        kwargs = filled(self.run, args, kwargs, run.params)
        attempt.arguments.hide(args, kwargs)
        ignore_refused(attempt.confirm())
        returned = result_of(body(*args, **kwargs))
        if run.item is None:
            attempt.returned = handed_on(returned, as_json)
        return returned

    def _retry_or(self, attempt: Attempt, failure: Exception) -> Exception:
        if not attempt.delivery.has_retries_left:
            return failure
        if isinstance(failure, (UnusableReturn, *self.throws)):
            return failure
        return retry_of(failure, attempt.retry_by_backoff(failure))


class GuardedRetries(GuardedCalls):
    """Comes after a task's own class, whose `retry` is called first."""

    abstract = True

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
        attempt = own_attempt(self)
        if attempt is None or self.request.called_directly:
            return super().retry(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        limit = self.max_retries if max_retries is None else max_retries
        if limit is not None and attempt.delivery.retries >= limit:
            raise exc or self.MaxRetriesExceededError(f"{self.name} was retried {limit} times")
        delay = delay_of(eta, countdown, self.default_retry_delay)
        following = next_arguments(attempt, self, args, kwargs, options)
        again = retry_of(exc, delay)
        attempt.next = NextAttempt(delay, exc, following, deferred=None if throw else again)
        if throw:
            raise again
        return again


def put_under_guard(task: Any) -> None:
    own = type(task)
    if not issubclass(own, GuardedTask):
        bases = (GuardedTask, own, GuardedRetries)
        task.__class__ = type(own.__name__, bases, {"__module__": own.__module__})


@contextmanager
def around(task: Any, attempt: Attempt) -> Iterator[None]:
    """What features do around the task's body."""
    with ExitStack() as stack:
        for of_feature in AROUND:
            stack.enter_context(of_feature(task, attempt))
        yield


def result_of(returned: Any) -> Any:
    """Raises UnusableReturn for what says that the body has not run, or not to its end."""
    if isinstance(returned, Coroutine | Generator):
        returned.close()  # or Python warns of it at some later time
    elif not isinstance(returned, AsyncGenerator):
        return returned
    kind = type(returned).__name__.replace("_", " ")
    raise UnusableReturn(f"the task returned a {kind}, whose code nothing runs")


def own_attempt(task: Any) -> Attempt | None:
    """The attempt that this very request is; None for a call within another run's code."""
    attempt = current_attempt()
    return attempt if attempt and attempt.run_id == task.request.id else None


def begun(attempt: Attempt) -> Refused | None:
    """As `Attempt.begin`; what a soft time limit cuts off before the reply has not begun."""
    try:
        return attempt.begin()
    except SoftTimeLimitExceeded as error:
        if current_attempt() is attempt:
            raise
        reason = "soft time limit"
        log.error("run not begun", job=attempt.job, run=attempt.run_id, reason=reason)
        raise NotBegun(reason) from error


def ignore_refused(refused: Refused | None) -> None:
    if refused is None:
        return
    is_known = refused.refusal is not Refusal.UNAVAILABLE
    raise (Ignore if is_known else NotBegun)(refused.detail or refused.refusal.value)


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


@cache
def guard_of(app: Celery, pid: int) -> Guard:
    """One guard for each process. Installs the handlers of signals that interrupt its runs."""
    receive_interrupts(raise_in_current_run)
    publisher = publisher_of(app)
    publish = without_parent()(publisher.publish)
    main = main_process_of(app)
    return Guard(
        publisher.ledger,
        publish,
        process_name(pid),
        owner_of(app),
        loads,
        texts_of_failures=TEXTS_OF_FAILURES,
        table=main.table,
        lock_file=main.lock_file,
    )


def trace_run(
    name: str, uuid: str, request: Any, body: Any, content_type: Any, encoding: Any, **_: Any
) -> Any:
    """What the pool calls for a run, in the place of Celery's own function for a task.

    Runs are JSON, whatever else the app takes. The digests are of the message as it came: handlers
    of `task_prerun` may change its arguments.
    """
    app = current_app._get_current_object()  # type: ignore[attr-defined]
    hostname = request.get("hostname") or socket.gethostname()
    prepare_to_run(task_of(app, name), hostname)
    local = [app.tasks, accepted_by(app), hostname]
    if content_type:
        body = loads_message(body, content_type, encoding, accept=local[1])
    request[CONTENT] = content_of(uuid, name, *body[:2])
    return trace.fast_trace_task(name, uuid, request, body, None, None, _loc=local)


def task_of(app: Celery, name: str) -> Any:
    """The app's task. Another app's that was registered, itself or as a lazy one, becomes this
    app's, which is the one that is supervised."""
    task: Any = app.tasks[name]
    if issubclass(type(task), Proxy):
        task = task._get_current_object()
    if task.app is not app:
        type(task).bind(app)
        task.app = app
    return task


@cache
def accepted_by(app: Celery) -> Any:
    return prepare_accept_content([*app.conf.accept_content, "json"])


@cache
def prepare_to_run(task: Any, hostname: str) -> None:
    """A job's task looks like any other until a process first has to run it: it may become one by
    an edit of a schedule file."""
    put_under_guard(task)
    take_over_started(task)
    # Looked up here and not imported: Sentry and others replace it.
    task.__trace__ = trace.build_tracer(task.name, task, task.app.loader, hostname, app=task.app)


@cache
def reporter_of(app: Celery, pid: int) -> Reporter:
    """One for each process: a child makes its own."""

    def connect() -> Reports:
        return Ledger.open_without_retries(required_settings(app)).reports

    return Reporter(connect)


def has_term_signal() -> bool:
    """Whether billiard's handler of SIGTERM raised it; billiard 4.2 has no function for this."""
    return bool(common._should_have_exited[0])  # type: ignore[attr-defined]
