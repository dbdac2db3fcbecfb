"""The guard in a worker's main process: the request class of runs.

It hands the heartbeat the lease that a child asks for, and what a child is about to be ended for.
It never gives a lease back while the child may still be running: the heartbeat does, once it is
gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from threading import Lock, Thread
from typing import Any
from uuid import uuid4

from billiard import get_start_method, set_start_method
from billiard.exceptions import WorkerLostError
from billiard.pool import ApplyResult
from celery import Celery, bootsteps, signals
from celery.concurrency.asynpool import AsynPool
from celery.exceptions import InvalidTaskError
from celery.utils.imports import symbol_by_name
from celery.worker import state
from celery.worker.consumer.tasks import Tasks
from celery.worker.request import Request

from supervisor.errors import NoQueue, WrongSchema
from supervisor.guard import child_table
from supervisor.guard.current_run import mark_records
from supervisor.guard.delivery import GUARD, TOKEN, supervised, work_of
from supervisor.guard.heartbeat import Expected, Heartbeat
from supervisor.guard.lease import Lease, renewal_seconds_of
from supervisor.guard.liveness import Witness, hold
from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.requests import CallArguments
from supervisor.logs import get_logger
from supervisor.sending import tracing
from supervisor.sending.app_settings import required_settings, settle_for_runs
from supervisor.sending.calls import asked_of, guard_in_code, register_all
from supervisor.sending.publisher import publisher_of
from supervisor.sending.queues import AppQueues, queue_of
from supervisor.store.connection import RedisError, explained
from supervisor.times import clock
from supervisor.worker.intake import (
    RefusedRuns,
    TakesAnyMessage,
    fetch_no_run_ahead,
    forks,
    keep_no_record_of_runs,
    read_results_whole,
    run_header,
    take_any_message,
)
from supervisor.worker.presence import attend
from supervisor.worker.task import NotBegun, guard_of, trace_run, worker_name

_starting = Lock()

log = get_logger("supervisor.worker")


class GuardedRequest(Request):
    """The main process' view of a run's delivery; it makes the token that the child begins with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        header = supervised(self.request_dict, str(self.id))
        if header is None:
            raise InvalidTaskError("the run is not named where Celery reads it")
        self._header = header
        try:
            self._work = work_of(header)
        except (LookupError, TypeError, ValueError) as error:
            raise InvalidTaskError(f"the header of the run cannot be read: {error!r}") from error
        self._token = self.request_dict[TOKEN] = uuid4().hex

    def info(self, safe: bool = False) -> Any:
        """What `celery inspect` shows: no arguments of a job that masks them."""
        return super().info(safe=safe or bool(self._header["rules"].get("mask")))

    def on_given(self, result: GivenRun) -> None:
        """The pool is to write this delivery to a child."""
        expected = Expected(result.child, self._lease, renewal_seconds_of(self._work))
        heartbeat_of(self.app).expect(self._token, expected)

    def on_taken_back(self) -> None:
        heartbeat_of(self.app).expect_no_more(self._token)

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        try:
            super().on_accepted(pid, time_accepted)
        finally:
            pid = child_table.own_pid or pid  # a greenlet's `pid` is no process id
            # Before the child asked for the lease, however late this process hears of it.
            accepted_at = clock() - max(0.0, time.monotonic() - time_accepted)
            heartbeat_of(self.app).watch(self._lease(pid, accepted_at))

    def _lease(self, pid: int, taken_at: float) -> Lease:
        return Lease(
            work=replace(self._work, worker=worker_name(pid)),
            token=self._token,
            pid=pid,
            is_active=lambda: self._is_active(pid),
            asked=self._asked,
            taken_at=taken_at,
        )

    def _is_active(self, pid: int) -> bool:
        """Whether task or child still run: Celery counts a task as over before it ends it."""
        return self in state.active_requests or child_table.is_running(pid, self._token)

    def _asked(self) -> CallArguments:
        """What the caller asked for, if the ledger forgot the run. Must not wait: see heartbeat."""
        context = self._context  # type: ignore[attr-defined]
        return asked_of(self._header, context, self.task)

    def revoked(self) -> bool:
        """Also ends the run: Celery drops a revoked task's message before our other hooks."""
        is_revoked = bool(super().revoked())
        if is_revoked:
            if has_expired := bool(self.maybe_expire()):
                # Celery would drop the run's next message as well; this may be an old copy.
                state.revoked.discard(self.id)
            self._cancel_run(has_expired=has_expired)
        return is_revoked

    def _cancel_run(self, *, has_expired: bool = False) -> None:
        try:
            ledger = publisher_of(self.app).ledger
            if has_expired:
                ledger.expire(str(self.id))
            else:
                ledger.cancel(str(self.id), "revoked")
        except (RedisError, WrongSchema) as error:
            log.warning("revoked run not cancelled", run=str(self.id), error=str(error))

    def on_timeout(self, soft: bool, timeout: Any) -> None:
        if not soft:
            self._note_ending(RunState.TIMED_OUT)
        super().on_timeout(soft, timeout)

    def on_failure(self, exc_info: Any, *more: Any, **options: Any) -> Any:
        error = getattr(exc_info.exception, "exc", exc_info.exception)
        if isinstance(error, NotBegun):
            heartbeat_of(self.app).undo_begin(self._token)
        if isinstance(error, WorkerLostError):  # Celery's line would have a traceback of its pool
            log.error("child died", run=str(self.id), task=self.name, reason=str(error))
            options["return_ok"] = True
        return super().on_failure(exc_info, *more, **options)

    def terminate(self, pool: Any, signal: Any = None) -> None:
        if child_table.own_pid:
            self._cancel_run()  # nothing can be killed: the run is asked to end
            return
        self._note_ending(RunState.CANCELLED)
        super().terminate(pool, signal)

    def _note_ending(self, outcome: RunState) -> None:
        heartbeat_of(self.app).note_ending(self._token, outcome)


@cache
def guarded_request(own: Any) -> Any:
    """The main process' side of the guard over a task's own request class. Raises TypeError."""
    return type(own.__name__, (GuardedRequest, own), {"__module__": own.__module__})


class Instead:
    """An object, with something else in place of some of its attributes."""

    def __init__(self, own: Any, **attributes: Any) -> None:
        self._own = own
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


class GivenRun(ApplyResult):
    """What a pool with children knows of a run.

    A worker that stops, or that has lost its broker, has its pool forget the tasks that no child is
    known to have accepted: the broker sends them again. A child to which one was written begins it
    nevertheless. Here the pool goes on to know it, and ends it at its time limit.
    """

    def child(self: Any) -> int | None:
        """The pid of the child that it was written to, at least in part."""
        return self._write_to.pid if self._write_to else None

    def discard(self: Any) -> None:
        if not (self._write_to and self._write_to._is_alive()):
            super().discard()
            self._accept_callback.__self__.on_taken_back()


class RunStrategies(dict[str, Any]):
    """The strategy for messages of runs, by the task's name; made when its first message comes.

    It is the task's own strategy, with the guard's request class over the task's own, and the pool
    calls `trace_run`.
    """

    def __init__(self, consumer: Any) -> None:
        super().__init__()
        self._app: Celery = consumer.app
        pool = consumer.pool

        def apply_async(_: Any, **options: Any) -> Any:
            result = pool.apply_async(trace_run, **options)
            # The other pools hear of each start: the thread that runs the task tells them.
            if result is not None and isinstance(getattr(pool, "_pool", None), AsynPool):
                result.__class__ = GivenRun
                options["accept_callback"].__self__.on_given(result)
            return result

        self._pool = Instead(pool, apply_async=apply_async)
        self._consumer = Instead(consumer, pool=self._pool)

    def __missing__(self, name: str) -> Any:
        task: Any = self._app.tasks[name]  # NotRegistered is a KeyError, as Celery expects
        own = task.Request
        try:
            task.Request = guarded_request(symbol_by_name(own))
            self[name] = task.start_strategy(self._app, self._consumer)
        except TypeError as error:
            text = f"the Request class of task {name!r} cannot be put under the guard: {error}"
            raise InvalidTaskError(text) from error
        finally:
            task.Request = own
        return self[name]


def warn_of_unguarded_call(message: Any) -> None:
    headers = message.headers
    if isinstance(headers, dict) and GUARD in headers and isinstance(headers.get("task"), str):
        warn_once(headers["task"])


@lru_cache(maxsize=100)
def warn_once(task: str) -> None:
    hint = "the task has no guard: guard=False guards those of its calls that have the header"
    log.warning("call not guarded", task=task, hint=hint)


class TakesRuns(bootsteps.StartStopStep):
    """Messages of runs are taken by strategies of their own; all others as Celery takes them."""

    requires = (Tasks,)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        create = parent.create_task_handler
        self._gets_runs = expects_runs(parent.app)
        refused = RefusedRuns(parent)

        def create_task_handler(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
            handle, strategies = create(*args, **kwargs), parent.strategies
            parent.strategies = RunStrategies(parent)
            handle_run = create(*args, **kwargs)
            parent.strategies = strategies

            def on_task_received(message: Any) -> Any:
                header = run_header(message)
                if header is None:
                    warn_of_unguarded_call(message)
                    return handle(message)
                if refused.refuses(message, header):
                    return None
                if not self._gets_runs:
                    self._gets_runs = True
                    fetch_no_run_ahead(parent)
                if message.accept is not None:  # runs are JSON, whatever else the app takes
                    message.accept = {*message.accept, "application/json"}
                return handle_run(message)

            return on_task_received

        parent.create_task_handler = create_task_handler

    def start(self, consumer: Any) -> None:
        if self._gets_runs:
            fetch_no_run_ahead(consumer)
            consumer.qos.update()  # before the broker is asked for messages


@cache
def expects_runs(app: Celery) -> bool:
    """Whether this worker consumes a queue that jobs or guarded tasks go to now.

    True if the ledger is unavailable or a route cannot be told, since it may.
    """
    consumed = app.amqp.queues.consume_from
    try:
        guarded = [name for name, task in app.tasks.items() if guard_in_code(task)]
        if any(queue_of(app, name) in consumed for name in guarded):
            return True
    except NoQueue:  # routers may need the arguments of a call
        return True
    queues = AppQueues(app)
    try:
        specs = publisher_of(app).ledger.each_spec()
        return any(queue in consumed for spec in specs for queue in queues.of(spec))
    except (RedisError, WrongSchema):
        return True


class TellsChildren(bootsteps.StartStopStep):
    """Tells children that wait for the ledger that the worker stops, however it is stopped."""

    def close(self, worker: Any) -> None:
        child_table.set_stopping()


def prepare(sender: Any) -> None:
    """Prepares a worker. Refuses a ledger of another schema."""
    # A thread that imports while a child is forked leaves it a lock that is never released.
    tracing.is_there()
    child_table.share()
    mark_records()
    end_orphans()
    sender.app.steps["worker"].add(TellsChildren)
    sender.app.steps["consumer"] |= {TakesAnyMessage, TakesRuns}
    take_any_message()
    keep_no_record_of_runs()
    read_results_whole()
    attend(sender.app)
    try:
        ledger = publisher_of(sender.app).ledger
        ledger.check_schema()
        register_all(sender.app)
    except WrongSchema as error:
        raise SystemExit(str(error)) from error
    except RedisError as error:  # they are registered when they are called
        log.warning("guarded tasks not registered", error=explained(error))
    prove_life(sender.app)  # jobs of its queues may come later
    if expects_runs(sender.app):
        settle_for_runs(sender.app.conf)
        if get_start_method() != "fork":  # billiard's own choice on macOS
            set_start_method("fork", force=True)
        if not forks(sender):
            raise SystemExit("a worker of jobs forks: leave worker_pool_start_method as it is")
        prepare_children(sender.app)


def prove_life(app: Celery) -> None:
    """Also looks for earlier workers that are gone: this one may replace one of them."""
    Witness(publisher_of(app).ledger).look()
    hold()


def end_orphans() -> None:
    """Ends children whose main process was killed just after the fork.

    Celery has the kernel kill them with it, but asks for that after the fork.
    """
    main = os.getpid()

    def look(**_: Any) -> None:
        if os.getpid() != main and os.getppid() != main:
            os._exit(1)

    signals.worker_process_init.connect(look, weak=False)


def prepare_children(app: Celery) -> None:
    """Has a child connect to the ledger as soon as it starts, and not with its first run.

    It does so in a thread, because a child that is not up after four seconds is killed.
    """
    main = os.getpid()

    def connect() -> None:
        with suppress(RedisError):  # its first run finds the same
            publisher_of(app).ledger.schema()

    def start(**_: Any) -> None:
        if os.getpid() != main:
            guard_of(app, os.getpid())  # it installs handlers of signals, which the thread may not
            Thread(target=connect, name="supervisor-connect", daemon=True).start()

    signals.worker_process_init.connect(start, weak=False)


@signals.worker_shutdown.connect(weak=False)
def stop_heartbeat(sender: Any, **_: Any) -> None:
    if _heartbeat_of.cache_info().currsize:
        heartbeat_of(sender.app).stop()


def heartbeat_of(app: Any) -> Heartbeat:
    """Started with the first guarded task: nothing of it exists when children are forked."""
    with _starting:  # in a pool of threads, tasks are accepted side by side
        return _heartbeat_of(app)


@cache
def _heartbeat_of(app: Celery) -> Heartbeat:
    heartbeat = Heartbeat(Ledger.open_without_retries(required_settings(app)))
    heartbeat.start()
    return heartbeat
