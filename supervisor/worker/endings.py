"""How the task of a delivery ended, and what the ledger is told of it.

Celery says it with `task_postrun`. Where it could not store how a task failed - the result backend
is away, a handler of the task's own raises - it says nothing, as for a process that is told to
stop, or what the backend had of an earlier delivery. Then counts what the body raised or returned.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from celery import states
from celery.exceptions import Retry, SoftTimeLimitExceeded

from supervisor.errors import JobRaised, RunCancelled, RunInterrupted
from supervisor.execution.delivery import Delivery
from supervisor.execution.guard import Guard
from supervisor.ledger.replies import Grant
from supervisor.runs.run import RunState
from supervisor.worker.retrying import until


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
