"""Messages as a worker takes them from its queues, of runs and of other tasks.

1. No message ends a worker, or keeps a place in it (celery_fixes.py, 1 and 3).
2. Runs of another ledger are refused, because two deployments share a queue, and so are runs that
   this worker's pool cannot do justice to (refused_runs.py). The log and `doctor` say so. A run
   whose message Celery refuses, or keeps back for a rate limit, says so too.
3. The broker keeps no copy of runs' messages (run_qos.py).
4. No run is fetched ahead, if the ledger knows when the worker starts that jobs go to one of its
   queues, or once it gets a run (prefetch.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from celery import Celery, bootsteps, signals
from celery.concurrency import prefork
from celery.concurrency.asynpool import AsynPool
from celery.exceptions import InvalidTaskError
from celery.utils.imports import symbol_by_name
from celery.worker.consumer.tasks import Tasks

from supervisor.guard.delivery import GUARD, run_header
from supervisor.logs import get_logger
from supervisor.worker.celery_fixes import (
    GivenRun,
    check,
    count_answers,
    drop,
    hear_of_errors,
    raised_by_others,
)
from supervisor.worker.main_process import main_process_of
from supervisor.worker.prefetch import expects_runs, fetch_no_run_ahead
from supervisor.worker.refused_runs import RefusedRuns
from supervisor.worker.request import guarded_request
from supervisor.worker.task import trace_run

log = get_logger("supervisor.intake")


class Intake(bootsteps.StartStopStep):
    """How a worker's consumer takes messages, each of them first of all here.

    Its methods are called in the worker's main loop.
    """

    requires = (Tasks,)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._consumer = parent
        self._gets_runs = expects_runs(parent.app)
        self._refused = RefusedRuns(parent)
        self._handle: Callable[[Any], Any]
        self._handle_run: Callable[[Any], Any]
        signals.task_rejected.connect(self._note_rejected, sender=parent)
        signals.task_unknown.connect(self._note_unknown, sender=parent)
        hear_of_errors(parent.pool)
        connect = parent.connect
        parent.connect = lambda: count_answers(connect())
        self._create_handler = parent.create_task_handler
        parent.create_task_handler = self._create_handlers

    def start(self, consumer: Any) -> None:
        if self._gets_runs:
            fetch_no_run_ahead(consumer)
            consumer.qos.update()  # before the broker is asked for messages

    def _create_handlers(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        """Makes Celery's own handler of messages for runs and for others. For each connection."""
        consumer = self._consumer
        strategies = consumer.strategies
        self._handle = self._create_handler(*args, **kwargs)
        consumer.strategies = RunStrategies(consumer, self._limit_task)
        self._handle_run = self._create_handler(*args, **kwargs)
        consumer.strategies = strategies
        self._raised_by_others = raised_by_others(consumer.connection_errors)
        if not isinstance(consumer.pool, prefork.TaskPool):
            main_process_of(consumer.app).table.run_here()
        return self.take

    def take(self, message: Any) -> Any:
        """Rejects a message that the consumer fails on."""
        try:
            check(message)
            return self._take(message)
        except self._raised_by_others:
            raise
        except InvalidTaskError as error:
            return self._consumer.on_invalid_task(None, message, error)
        except Exception as error:  # noqa: BLE001 - no message ends a worker
            drop(message, self._raised_by_others)
            self._refused.note_obstacle(message, f"the worker failed on its message: {error!r}")
            return None

    def _note_rejected(self, message: Any, exc: Exception | None, **_: Any) -> None:
        self._refused.note_obstacle(message, f"its message is not valid: {exc}")

    def _note_unknown(self, message: Any, name: str, **_: Any) -> None:
        self._refused.note_obstacle(message, f"the worker does not know the task {name}")

    def _limit_task(self, request: Any, bucket: Any, tokens: int) -> None:
        """As Celery does for a task with a rate limit: it begins now, or waits behind others."""
        self._consumer._limit_task(request, bucket, tokens)
        if bucket.contents:
            limit = f"its message waits in the worker for the rate limit, {request.task.rate_limit}"
            self._refused.note_obstacle(request.message, limit, is_minor=True)

    def _take(self, message: Any) -> Any:
        header = run_header(message)
        if header is None:
            warn_of_unguarded_call(message)
            return self._handle(message)
        if self._refused.refuses(message, header):
            return None
        if not self._gets_runs:
            self._gets_runs = True
            fetch_no_run_ahead(self._consumer)
        if message.accept is not None:  # runs are JSON, whatever else the app takes
            message.accept = {*message.accept, "application/json"}
        return self._handle_run(message)


def warn_of_unguarded_call(message: Any) -> None:
    headers = message.headers
    if isinstance(headers, dict) and GUARD in headers and isinstance(headers.get("task"), str):
        warn_once(headers["task"])


@lru_cache(maxsize=100)
def warn_once(task: str) -> None:
    hint = "the task has no guard: guard=False guards those of its calls that have the header"
    log.warning("call not guarded", task=task, hint=hint)


class RunStrategies(dict[str, Any]):
    """The strategy for messages of runs, by the task's name; made when its first message comes.

    It is the task's own strategy, with the guard's request class over the task's own, and the pool
    calls `trace_run`.
    """

    def __init__(self, consumer: Any, limit_task: Callable[[Any, Any, int], None]) -> None:
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
        self._consumer = Instead(consumer, pool=self._pool, _limit_task=limit_task)

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


class Instead:
    """An object, with something else in place of some of its attributes."""

    def __init__(self, own: Any, **attributes: Any) -> None:
        self._own = own
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)
