"""A run's delivery in a worker's main process.

Its request hands the heartbeat the lease that a child asks for, and what a child is about to be
ended for. It never gives a lease back while the child may still be running: the heartbeat does,
once it is gone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any
from uuid import uuid4

from billiard.exceptions import WorkerLostError
from celery.app.task import Context
from celery.exceptions import InvalidTaskError
from celery.worker import state
from celery.worker.request import Request

from supervisor.errors import InvalidGuard, WrongSchema
from supervisor.guard.delivery import HEADER, TOKEN, supervised, work_of
from supervisor.guard.heartbeat import Expected
from supervisor.guard.lease import Lease, renewal_seconds_of
from supervisor.job.run import RunState
from supervisor.ledger.run_request import CallArguments
from supervisor.logs import get_logger
from supervisor.process import process_name
from supervisor.sending.calls import is_awaited, spec_of
from supervisor.sending.content import as_json
from supervisor.sending.publisher import publisher_of
from supervisor.store.failures import RedisError
from supervisor.times import clock
from supervisor.worker.celery_fixes import GivenRun
from supervisor.worker.main_process import main_process_of
from supervisor.worker.task import NotBegun

log = get_logger("supervisor.worker")


class GuardedRequest(Request):
    """The main process' view of a run's delivery; it makes the token that the child begins with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        header = supervised(self.request_dict, str(self.id))
        if header is None:
            raise InvalidTaskError("the run is not named where Celery reads it")
        self._header = header
        self._main = main_process_of(self.app)
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
        self._main.heartbeat.expect(self._token, expected)

    def on_taken_back(self) -> None:
        self._main.heartbeat.expect_no_more(self._token)

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        try:
            super().on_accepted(pid, time_accepted)
        finally:
            pid = self._main.table.own_pid or pid  # a greenlet's `pid` is no process id
            # Before the child asked for the lease, however late this process hears of it.
            accepted_at = clock() - max(0.0, time.monotonic() - time_accepted)
            self._main.heartbeat.watch(self._lease(pid, accepted_at))

    def _lease(self, pid: int, taken_at: float) -> Lease:
        return Lease(
            work=replace(self._work, worker=process_name(pid)),
            token=self._token,
            pid=pid,
            is_active=lambda: self._is_active(pid),
            table=self._main.table,
            call=self._call,
            taken_at=taken_at,
        )

    def _is_active(self, pid: int) -> bool:
        """Whether task or child still run: Celery counts a task as over before it ends it."""
        return self in state.active_requests or self._main.table.is_running(pid, self._token)

    def _call(self) -> CallArguments:
        """What the caller asked for, if the ledger forgot the run. Must not wait: see heartbeat."""
        context = self._context  # type: ignore[attr-defined]
        return call_of(self._header, context, self.task)

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
            self._main.heartbeat.undo_begin(self._token, str(error))
        if isinstance(error, WorkerLostError):  # Celery's line would have a traceback of its pool
            log.error("child died", run=str(self.id), task=self.name, reason=str(error))
            options["return_ok"] = True
        return super().on_failure(exc_info, *more, **options)

    def terminate(self, pool: Any, signal: Any = None) -> None:
        if self._main.table.own_pid:
            self._cancel_run()  # nothing can be killed: the run is asked to end
            return
        self._note_ending(RunState.CANCELLED)
        super().terminate(pool, signal)

    def _note_ending(self, outcome: RunState) -> None:
        self._main.heartbeat.note_ending(self._token, outcome)


#: Celery's options of a call that each message of a run sets for itself.
MESSAGES_OWN = ("task_id", "retries", "expires")


def call_of(header: Mapping[str, Any], request: Context, task: Any) -> CallArguments:
    """What the caller of a run asked for, read from the run's message.

    Empty for the run of a tick, and without arguments that are the schedule file's own.
    """
    if work_of(header).is_tick:
        return CallArguments()
    # The ledger has lost the run, and cannot say which arguments are the schedule file's.
    references = header.get("references", ())
    given = {
        **request.as_execution_options(),
        "priority": (request.delivery_info or {}).get("priority"),
        "ignore_result": request.ignore_result,
        "queue": header["queue"],
    }
    options = {k: v for k, v in given.items() if v is not None and k not in MESSAGES_OWN}
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


@cache
def guarded_request(own: Any) -> Any:
    """The main process' side of the guard over a task's own request class. Raises TypeError."""
    return type(own.__name__, (GuardedRequest, own), {"__module__": own.__module__})
