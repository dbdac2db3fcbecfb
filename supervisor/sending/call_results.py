"""Celery's result of a guarded call, and the place that the guard gave its run."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import cache
from typing import Any

from celery import Celery, Task
from celery.result import AsyncResult

from supervisor.app import required_settings
from supervisor.errors import UnknownRun
from supervisor.ledger.connection import RedisError, connect_for_heartbeat
from supervisor.ledger.keys import Keys
from supervisor.ledger.replies import Admission, Placement
from supervisor.ledger.runs import Ledger
from supervisor.runs.run import RunState

#: For how long the end of a run is waited for whose result is there, and how often looked at.
PATIENCE_SECONDS = 1.0
LOOK_SECONDS = 0.005


class GuardedResult(AsyncResult):  # type: ignore[type-arg]
    def __init__(
        self, admission: Admission, task: Task[Any, Any], *, is_ignored: bool = False
    ) -> None:
        super().__init__(admission.run_id, app=task.app, backend=task.backend)
        self.admission = admission
        self.ignored = is_ignored

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is Celery's own result: what was decided is the caller's to keep."""
        return AsyncResult, self.__reduce_args__()

    def __copy__(self) -> AsyncResult[Any]:
        return AsyncResult(*self.__reduce_args__())

    @property
    def was_skipped(self) -> bool:
        return self.admission.placement is Placement.SKIP

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """Celery's own; with its result, the run no longer holds its lock.

        Celery stores a result before the run's end is reported, so that the next call might still
        be skipped for it. That end is waited for as well; `timeout` is for the result.
        """
        try:
            return super().get(*args, **kwargs)
        finally:
            if self._cache and not self.was_skipped:  # type: ignore[attr-defined]
                wait_for_end(self.app, self.id)

    wait = get


def result_of(admission: Admission, task: Task[Any, Any], *, is_ignored: bool) -> GuardedResult:
    result: GuardedResult = result_class(task)(admission, task, is_ignored=is_ignored)
    return result


@cache
def result_class(task: Any) -> Any:
    """With what a task's own class of results can do."""
    own: Any = type(task.AsyncResult("of no task"))
    return type(own.__name__, (GuardedResult, own), {})


def wait_for_end(app: Any, run_id: str) -> None:
    ledger, until = impatient_ledger(app, os.getpid()), time.monotonic() + PATIENCE_SECONDS
    with suppress(RedisError, UnknownRun):
        while ledger.run(run_id).state is RunState.RUNNING and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)


@cache
def impatient_ledger(app: Celery, _pid: int) -> Ledger:
    """A server that hangs holds nobody up who has a result already."""
    settings = required_settings(app)
    return Ledger(connect_for_heartbeat(settings), Keys(settings.prefix))
