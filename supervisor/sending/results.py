"""What the caller of a guarded task gets: Celery's result, with the place that its run got."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from celery import Celery, Task
from celery.app.task import Context
from celery.exceptions import SoftTimeLimitExceeded
from celery.result import AsyncResult

from supervisor.errors import UnknownRun
from supervisor.job.run import RunState
from supervisor.ledger.admission import Admission, Placement
from supervisor.ledger.ledger import Ledger
from supervisor.logs import get_logger
from supervisor.sending.app_settings import required_settings
from supervisor.store.failures import RedisError

log = get_logger("supervisor.calls")

#: How long to wait for the end of a run whose result is there, and how often to look.
TIMEOUT_SECONDS = 1.0
POLL_SECONDS = 0.005


class GuardedResult(AsyncResult):  # type: ignore[type-arg]
    """Celery's result of a guarded call, with the guard's decision.

    - `was_skipped`: whether the call was skipped.
    - `admission`: the decision: `placement` (`start`, `wait`, `skip`, `duplicate` ...), `run_id`,
      and, if there is one, `reason` and `blocked_by`, the run that holds the lock.
    """

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
            time.sleep(POLL_SECONDS)


@cache
def impatient_ledger(app: Celery, _pid: int) -> Ledger:
    """For callers that have a result already: a server that hangs does not hold them up."""
    settings = required_settings(app)
    return Ledger.open_without_retries(settings)


def revoke_skipped(task: Any, admission: Admission, options: Mapping[str, Any]) -> None:
    """Ends the wait of callers for the result. A backend that is unavailable fails no call."""
    try:
        reason = f"skipped: {admission.reason}"
        revoke(task.backend, admission.run_id, reason, options, task.app.thread_oid)
    except SoftTimeLimitExceeded:
        raise
    except Exception as error:  # noqa: BLE001 - each backend has errors of its own
        log.error("revocation not sent", job=admission.job, run=admission.run_id, error=repr(error))


def revoke(
    backend: Any, run_id: str, reason: str, options: Mapping[str, Any], caller: str | None = None
) -> None:
    """Records in a result backend that a call ended before it began. Raises what the backend does.

    The context is what a worker would know of the call: its caller, its group, its chord. So a
    chord learns of it, and its body fails instead of waiting for ever.
    """
    fields = {key: options.get(key) for key in ("chord", "group_index", "root_id", "parent_id")}
    fields["reply_to"] = options.get("reply_to") or caller
    context = Context(id=run_id, group=options.get("group_id"), **fields)
    backend.mark_as_revoked(run_id, reason, request=context)
