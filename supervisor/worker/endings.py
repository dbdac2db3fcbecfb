"""How an attempt has ended, from what Celery says of the task and what its body raised."""

from __future__ import annotations

import sys
from typing import Any

from celery import signals, states
from celery.exceptions import Retry, SoftTimeLimitExceeded, TimeLimitExceeded

from supervisor.errors import JobRaised, RunCancelled, RunInterrupted
from supervisor.guard.attempt import Attempt
from supervisor.guard.current_run import current_attempt
from supervisor.job.run import RunState
from supervisor.logs import get_logger
from supervisor.worker.retries import delay_of

log = get_logger("supervisor.tasks")


@signals.task_postrun.connect(weak=False)
def report_end(task: Any = None, retval: Any = None, state: str | None = None, **_: Any) -> None:
    """The attempt is over, however it ended; a delivery that was refused has nothing to report."""
    attempt = current_attempt()
    if attempt is None or task.request.id != attempt.run_id:
        return
    try:
        try:
            attempt.leave()
            report(attempt, task, retval, state)
        except SoftTimeLimitExceeded:
            # It is for the job's code, which is over; reported twice, an end changes nothing.
            attempt.leave()
            report(attempt, task, retval, state)
    except Exception as error:
        # Celery would swallow it, and a run without an end would keep its lock.
        log.exception("end not reported as it was", run=attempt.run_id)
        attempt.end(RunState.FAILED, reason_of(error))
    finally:
        attempt.discard()


def report(attempt: Attempt, task: Any, retval: Any, state: str | None) -> None:
    """Reports the end of the attempt. `retval`, `state`: what `task_postrun` came with."""
    if attempt.interruption is not None:
        if isinstance(attempt.interruption, RunCancelled):
            attempt.end(RunState.CANCELLED, "cancelled")
        else:
            attempt.end(RunState.LOST, "lease lost")
        return
    state, value = end_of(attempt, retval, state)
    match state:
        case states.SUCCESS:
            attempt.end(RunState.SUCCEEDED, returned=attempt.returned)
        case states.RETRY:
            following = attempt.next
            delay = (
                following.delay
                if following
                else delay_of(None, value.when, task.default_retry_delay)
            )
            error = (following.error if following else None) or value.exc or value
            attempt.retry(delay, reason_of(error), failure_in(error))
        case states.FAILURE:
            timed_out = isinstance(value, (SoftTimeLimitExceeded, TimeLimitExceeded))
            outcome = RunState.TIMED_OUT if timed_out else RunState.FAILED
            attempt.end(outcome, reason_of(value), failure=failure_in(value))
        case states.IGNORED | states.REJECTED:  # the job itself raised Ignore or Reject
            attempt.end(RunState.SUCCEEDED, state.lower())
        case _:
            attempt.end(RunState.LOST, "the worker's process was asked to stop")


def end_of(attempt: Attempt, retval: Any, state: str | None) -> tuple[str | None, Any]:
    """Celery's state for the end, and what was raised, if anything; no state if it had to stop.

    Celery says it with `task_postrun`. Where it could not store how a task failed - the result
    backend is unavailable, a handler of the task's own raises - it says nothing, as for a process
    that is asked to stop, or what the backend had of an earlier delivery. Then what the body raised
    or returned counts. To be called while what ends the task, if Celery could not deal with it, is
    on its way.
    """
    if state == states.SUCCESS or isinstance(retval, BaseException):
        return state, retval
    # A project's own class may raise around the body, where nothing else sees it.
    match attempt.raised or sys.exc_info()[1]:
        case Retry() as again:
            return states.RETRY, again
        case Exception() as error:
            return states.FAILURE, error
        case BaseException() as error if not (
            isinstance(error, (SystemExit, RunInterrupted)) or is_of_a_stop(error)
        ):
            return states.FAILURE, of_base(error)
        case _:
            return (states.SUCCESS if attempt.has_returned else None), None


def is_of_a_stop(error: BaseException) -> bool:
    """Whether gevent raised it in the greenlets of a worker that is stopped at once."""
    return type(error).__name__ == "GreenletExit"


def of_base(error: BaseException) -> Exception:
    """What counts as raised by the job: for gevent's Timeout, Celery's own time limit error."""
    if type(error).__module__ == "gevent.timeout":
        return TimeLimitExceeded(getattr(error, "seconds", None))
    return JobRaised.of(error)


def failure_in(error: Any) -> BaseException | None:
    """The error if it has a traceback: `retry` may get a text, or one that was never raised."""
    return error if isinstance(error, BaseException) and error.__traceback__ else None


def reason_of(error: Any) -> str:
    if isinstance(error, JobRaised):
        return str(error)
    return f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
