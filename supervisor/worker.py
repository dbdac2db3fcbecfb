"""The guard inside a Celery worker: the task class and the request class of a supervised app.

The hooks are those that were measured to hold (docs/design.md):

* begin in `before_start`, in the child: the last hook before the body, and one that can veto.
* the body in `__call__`: a failure with retries left becomes Celery's Retry, without an ETA message;
  `sys.exit` and MemoryError become ordinary failures.
* the end in the `task_postrun` signal, which fires for every end that unwinds.
* in the main process the request tells the heartbeat which child works for which run, and why it
  is about to be killed. Never does it give the lease back while the child may still be at work.
"""

from __future__ import annotations

import os
import socket
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from uuid import uuid4

from billiard.common import terminate_handler_fired
from celery import Celery, Task, signals, states
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from celery.worker import state
from celery.worker.request import Request

from supervisor.app import settings_of
from supervisor.delivery import TOKEN, Delivery
from supervisor.errors import JobExited, JobOutOfMemory, NotConfigured
from supervisor.guard import Guard
from supervisor.heartbeat import HeldLease, Heartbeat
from supervisor.ledger.connection import connect_for_heartbeat
from supervisor.ledger.keys import Keys
from supervisor.ledger.replies import Refused
from supervisor.ledger.runs import Ledger
from supervisor.publisher import HEADER, Publisher
from supervisor.run import RunState

_delivery: ContextVar[Delivery | None] = ContextVar("supervisor_delivery", default=None)


class GuardedTask(Task):  # type: ignore[type-arg]
    """The base of a supervised app's tasks; messages without our header pass through untouched."""

    abstract = True
    Request = "supervisor.worker:GuardedRequest"

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        header = supervised(self.request.headers, task_id)
        if header is not None:
            token = getattr(self.request, TOKEN, None) or uuid4().hex
            delivery = Delivery.of(header, token, self.request.retries)
            answer = guard_of(self.app, os.getpid()).begin(delivery.run_id, token)
            if isinstance(answer, Refused):
                raise Ignore(answer.refusal.value)
            delivery.grant = answer
            _delivery.set(delivery)
        super().before_start(task_id, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        delivery = _delivery.get()
        if delivery is None or delivery.entered or self.request.id != delivery.run_id:
            return super().__call__(*args, **kwargs)
        delivery.entered = True
        try:
            return super().__call__(*args, **kwargs)
        except (Ignore, Reject, Retry):
            raise
        except SystemExit as error:
            if terminate_handler_fired():
                raise
            failure: Exception = JobExited(error.code)
            failure.__cause__ = error
        except MemoryError as error:
            # One that reaches Celery kills the worker, and the next that gets the message.
            failure = JobOutOfMemory()
            failure.__cause__ = error
        except Exception as error:  # the user's code may raise anything
            failure = error
        raise self._retry_or(delivery, failure)

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Any:
        """Celery's own signature; in a supervised run the ledger sends the next attempt."""
        delivery = _delivery.get()
        if delivery is None or self.request.called_directly or self.request.id != delivery.run_id:
            return super().retry(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        limit = self.max_retries if max_retries is None else max_retries
        if limit is not None and delivery.retries >= limit:
            if exc is not None:
                raise exc
            raise self.MaxRetriesExceededError(f"can't retry {self.name} more than {limit} times")
        delay = until(eta, countdown, self.default_retry_delay)
        delivery.retry_in, delivery.retry_args, delivery.retry_kwargs = delay, args, kwargs
        delivery.error = exc
        retry = Retry(exc=exc, when=delay.total_seconds())
        if throw:
            raise retry
        return retry

    def _retry_or(self, delivery: Delivery, failure: Exception) -> Exception:
        if not delivery.has_retries_left or isinstance(failure, self.throws):
            return failure
        delivery.retry_in, delivery.error = delivery.backoff, failure
        retry = Retry(exc=failure, when=delivery.backoff.total_seconds())
        retry.__cause__ = failure
        return retry


class GuardedRequest(Request):
    """The worker main process' view of a delivery."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header = supervised(self.request_dict.get("headers"), self.id)
        self._token = uuid4().hex
        if self._header is not None:
            self.request_dict[TOKEN] = self._token

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        super().on_accepted(pid, time_accepted)
        if self._header is not None:
            heartbeat_of(self.app).watch(
                HeldLease(
                    run_id=self.id,
                    token=self._token,
                    pid=pid,
                    ttl=timedelta(milliseconds=self._header["lease_ttl_ms"]),
                    is_active=lambda: self in state.active_requests,
                )
            )

    def on_timeout(self, soft: bool, timeout: float) -> None:
        if not soft:
            self._mark(RunState.TIMED_OUT)
        super().on_timeout(soft, timeout)

    def terminate(self, pool: Any, signal: Any = None) -> None:
        self._mark(RunState.CANCELLED)
        super().terminate(pool, signal)

    def _mark(self, outcome: RunState) -> None:
        if self._header is not None:
            heartbeat_of(self.app).mark(self._token, outcome)


@signals.task_postrun.connect(weak=False)
def report_end(retval: Any = None, state: str | None = None, **_: Any) -> None:
    """The attempt is over, however it ended; a delivery that was refused has nothing to report."""
    delivery = _delivery.get()
    if delivery is None or delivery.grant is None:
        return
    _delivery.set(None)
    guard = guard_of(current_app(), os.getpid())
    match state:
        case states.SUCCESS:
            guard.end(delivery.grant, RunState.SUCCEEDED)
        case states.RETRY:
            delay = delivery.retry_in or until(None, getattr(retval, "when", None), 180)
            error = delivery.error or getattr(retval, "exc", None) or retval
            guard.retry(
                delivery.grant, delay, reason_of(error), delivery.retry_args, delivery.retry_kwargs
            )
        case states.FAILURE:
            timed_out = isinstance(retval, SoftTimeLimitExceeded)
            outcome = RunState.TIMED_OUT if timed_out else RunState.FAILED
            guard.end(delivery.grant, outcome, reason_of(retval))
        case None:
            guard.end(delivery.grant, RunState.LOST, "the worker's process was told to stop")
        case _:  # the job itself raised Ignore or Reject
            guard.end(delivery.grant, RunState.SUCCEEDED, state.lower())


@signals.worker_init.connect(weak=False)
def refuse_pools_without_guarantees(sender: Any, **_: Any) -> None:
    """Threads, solo and gevent ignore time limits and revokes, and their runs outlive a kill."""
    if getattr(sender.app, "supervisor", None) is None:
        return
    if "prefork" not in sender.pool_cls.__module__ and not os.environ.get("SUPERVISOR_ANY_POOL"):
        raise SystemExit("a supervised worker needs the prefork pool: start it with -P prefork")
    adopt(sender.app)


@signals.worker_shutdown.connect(weak=False)
def stop_heartbeat(sender: Any, **_: Any) -> None:
    if heartbeat_of.cache_info().currsize:
        heartbeat_of(sender.app).stop()


def adopt(app: Celery) -> None:
    """Brings tasks with a base class of their own under the guard as well."""
    for task in app.tasks.values():
        if not isinstance(task, GuardedTask):
            cls = type(task)
            task.__class__ = type(cls.__name__, (GuardedTask, cls), {"__module__": cls.__module__})


def supervised(headers: Any, task_id: str) -> dict[str, Any] | None:
    """Our header, if the message is the run's own and no other that inherited its headers."""
    header = (headers or {}).get(HEADER)
    return header if header and header.get("run") == task_id else None


@cache
def guard_of(app: Celery, pid: int) -> Guard:
    """One guard a process: connections do not survive a fork."""
    ledger = Ledger.open(settings_or_fail(app))
    worker = f"{socket.gethostname()}:{pid}"
    return Guard(ledger, Publisher(app, ledger).publish, worker)


@cache
def heartbeat_of(app: Celery) -> Heartbeat:
    settings = settings_or_fail(app)
    ledger = Ledger(connect_for_heartbeat(settings), Keys(settings.prefix))
    heartbeat = Heartbeat(ledger, Publisher(app, ledger).publish)
    heartbeat.start()
    return heartbeat


def settings_or_fail(app: Celery) -> Any:
    settings = settings_of(app)
    if settings is None:
        raise NotConfigured("this Celery app is not supervised: call supervise(app)")
    return settings


def current_app() -> Celery:
    from celery import current_app as proxy

    return proxy._get_current_object()


def until(eta: datetime | None, countdown: Any, default: float) -> timedelta:
    if isinstance(countdown, datetime):
        eta, countdown = countdown, None
    if eta is not None:
        return max(timedelta(), eta - datetime.now(eta.tzinfo))
    return timedelta(seconds=max(0.0, float(default if countdown is None else countdown)))


def reason_of(error: Any) -> str:
    return f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
