"""One attempt of a run in a worker's child, from its message to its reported end.

1. A message arrives in a worker; it names a run and carries nothing that decides anything.
2. `begin` asks the ledger for the lease, with a token made for this delivery. A second delivery, an
   expired run, a run of a busy serial queue is refused: the task's body never starts, and the
   message is dropped. What must come again comes from the ledger, not from the broker. The lease
   counts from when it was asked for (lease.py): a reply that comes late is not trusted, nor is a
   grant that has grown old by the time the body is to start, and the lease is asked for again.
3. The task's body runs; the worker's main process renews the lease (heartbeat.py) and may interrupt
   the body (interrupts.py).
4. `end` reports the outcome: the lease is given back and the next waiting run promoted, in one
   function, which sends the message of the promoted run. If Celery has to make that message, the
   process that reported it publishes it; if it dies first, beat does.
5. A child that dies in between reports nothing: its worker's main process does, else the lease runs
   out and beat's rescue decides by `on_crash`.

The phases:

    DELIVERED --begin--> GRANTED --running--> RUNNING --leave--> LEFT --end, retry--> OVER

Refused by `begin` or by `confirm`, an attempt is over at once. Only while RUNNING may a signal
interrupt the job's code. `leave` is the one place that ends the work, however it ended: from then
on nothing interrupts what is left to do, and the main process does not kill the child for it.
A process that the job's code has forked (os.fork) is no part of this: it ends with that code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import IntEnum
from typing import Any, NoReturn

from structlog.contextvars import bind_contextvars, reset_contextvars

from supervisor.errors import LeaseLost, RunInterrupted
from supervisor.guard.arguments import Arguments
from supervisor.guard.current_run import CurrentRun, current_attempt, current_run, set_current_run
from supervisor.guard.delivery import Delivery
from supervisor.guard.guard import Guard
from supervisor.guard.interrupts import RAISED, way_to_this_code
from supervisor.guard.lease import is_trusted
from supervisor.guard.ledger_calls import begin, kept_out, report_end
from supervisor.guard.progress import Report, Reporter
from supervisor.job.content import Content
from supervisor.job.policies import RunLog
from supervisor.job.reports import LINE_LENGTH, ReportedProgress
from supervisor.job.run import RunState
from supervisor.job.run_ids import StepId
from supervisor.ledger.attempt import Finished, Grant, GrantedAttempt, Refused
from supervisor.ledger.run_request import JOB_ARGUMENTS, CallArguments
from supervisor.logs import get_logger
from supervisor.times import clock

log = get_logger("supervisor.guard")


class Phase(IntEnum):
    DELIVERED = 0
    """The message is here; the lease is not granted."""
    GRANTED = 1
    """The lease is granted; what comes before the job's code is under way."""
    RUNNING = 2
    """The job's code is running, and may be interrupted."""
    LEFT = 3
    """The job's code has ended; its end is to be reported."""
    OVER = 4
    """The end is reported, or the delivery was refused."""


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """When a failed attempt is tried again, and with what."""

    delay: timedelta

    error: BaseException | None
    """What it failed by, if that was given."""

    arguments: CallArguments = JOB_ARGUMENTS
    """What it has in place of the run's own."""

    deferred: Exception | None = None
    """What a `retry(throw=False)` returned; it is raised once the body has returned."""


class Attempt:
    """content: of its message, for the ledger to compare."""

    def __init__(self, guard: Guard, delivery: Delivery, content: Content | None = None) -> None:
        self._guard = guard
        self.delivery = delivery
        self._content = content
        self.arguments = Arguments(delivery)
        self.phase = Phase.DELIVERED
        self.grant: Grant | None = None
        self.report: Report | None = None
        #: Since when the job's code no longer runs, by `times.clock`.
        self.ended_at: float | None = None
        #: How the body ended: what it raised, as Celery was to take it, and what its main process
        #: ended it by.
        self.has_returned = False
        self.raised: BaseException | None = None
        self.interruption: RunInterrupted | None = None
        #: What is raised in the code because it is to end, or would be.
        self.reason_to_end: RunInterrupted | None = None
        self._interrupt_here: Callable[[int], Any] | None = None
        #: By a step, for the steps after it.
        self.returned: dict[str, Any] | None = None
        #: How it is tried again.
        self.next: NextAttempt | None = None
        self._begun_line = ""

    @property
    def run_id(self) -> str:
        return self.delivery.run_id

    @property
    def job(self) -> str:
        return self.delivery.job

    @property
    def lock(self) -> str:
        return self.delivery.lock

    def begin(self) -> Refused | None:
        """Asks for the lease. Returns the refusal if the run must not start here and now."""
        reply = kept_out(self._guard, self.delivery) or self._ask()
        if isinstance(reply, Refused):
            self.phase = Phase.OVER
            return reply
        log.info("run started", job=reply.job, run=self.run_id, attempt=reply.attempt)
        self.grant, self.phase = reply, Phase.GRANTED
        self.arguments.references = reply.references
        set_current_run(self._current_run(reply))
        self._interrupt_here = way_to_this_code(self._to_be_raised)
        self._guard.table.enter(reply.token, self, reply.requested_at, reply.granted)
        return None

    def confirm(self) -> Refused | None:
        """The last step before the body: asks again if the grant is too old by now."""
        if is_trusted(self._granted.requested_at, self._granted.lease_ttl):
            return None
        reply = self._ask()
        if isinstance(reply, Refused):
            self.phase = Phase.OVER
            set_current_run(None)
            return reply
        self.grant = reply
        return None

    def _ask(self) -> Grant | Refused:
        return begin(self._guard, self.delivery, self._content)

    @contextmanager
    def running(
        self, reporter: Reporter, publish: Callable[[ReportedProgress], None] | None
    ) -> Iterator[None]:
        """The job's code; what it reports of itself is written before this is left."""
        self.report = reporter.open(self.run_id, self.delivery.token, publish)
        run = current_run()
        bound = bind_contextvars(**(run.log_fields if run else {}))
        pid = os.getpid()
        try:
            self.phase = Phase.RUNNING
            try:
                if error := self._to_be_raised():  # it was to end before it got here
                    raise error
                yield
            finally:
                if os.getpid() != pid:
                    self._end_fork(sys.exc_info()[1])
                self.leave()
                if self._begun_line:
                    self.printed("\n")
                reporter.close(self.report)
        finally:
            reset_contextvars(**bound)

    def _end_fork(self, error: BaseException | None) -> NoReturn:
        """Ends this process, which the job's code has forked, and which has left that code.

        The lease, the run's end and the pipes to the worker's main process are its parent's.
        """
        status = 0 if error is None else 1
        try:
            if isinstance(error, SystemExit):
                status = error.code if isinstance(error.code, int) else int(bool(error.code))
            elif error:
                log.error("forked process failed", job=self.job, run=self.run_id, exc_info=error)
            sys.stdout.flush()
        finally:
            os._exit(status & 0xFF)

    @property
    def captures(self) -> bool:
        """Whether what its code logs is a part of the run's log."""
        return self.delivery.log == RunLog.CAPTURE and self.phase is Phase.RUNNING

    def log(self, text: str, *, is_captured: bool = False) -> None:
        """Adds to the run's log, as far as its job wants one."""
        if self.report is not None and self.delivery.log != RunLog.NONE:
            self.report.log(self.shown(text), is_captured=is_captured)

    def printed(self, text: str) -> None:
        """Takes a part of what its code prints, and logs it line by line."""
        *lines, rest = (self._begun_line + text).split("\n")
        self._begun_line = rest[:LINE_LENGTH]
        for line in lines:
            self.log(line, is_captured=True)

    def leave(self) -> None:
        """The job's code has ended, or never will begin.

        Called again, it leaves the end alone that was recorded meanwhile. After a refusal it only
        clears the entry in the child table.
        """
        if self.phase is Phase.LEFT:
            return
        if self.phase < Phase.LEFT:
            self.phase, self.ended_at = Phase.LEFT, clock()
        self._guard.table.leave(self.delivery.token)

    def interrupt(self, number: int) -> bool:
        """The run is to end; called by the heartbeat of the same process.

        False where nothing is raised in the job's code, which may see it by itself.
        """
        self.reason_to_end = RAISED[number](self.run_id)
        if self._interrupt_here is None:
            return False
        self._interrupt_here(number)
        return True

    def raise_in_code(self, number: int) -> None:
        """Called by the handler of a signal, within the code that it interrupts."""
        self.reason_to_end = RAISED[number](self.run_id)
        if error := self._to_be_raised():
            raise error

    def is_without_lease(self) -> bool:
        return isinstance(self.reason_to_end, LeaseLost)

    def _to_be_raised(self) -> RunInterrupted | None:
        return self.reason_to_end if self.phase is Phase.RUNNING else None

    def record_end(self, outcome: RunState) -> None:
        """Leaves the end for the main process, which reports it if this process dies first."""
        if outcome is not RunState.SUCCEEDED or not self.returned:  # that is known here alone
            self._guard.table.record_end(self._granted.token, outcome, self._work_ended_at)

    def end(
        self,
        outcome: RunState,
        reason: str = "",
        returned: Mapping[str, Any] | None = None,
        failure: BaseException | None = None,
    ) -> None:
        """Reports how it ended; `lost` when the process is going down under it.

        failure: what its code raised, whose traceback is kept.
        """
        token, ended_at = self._granted.token, self._work_ended_at
        reason, traceback = self.shown(reason), self._traceback_of(failure)
        # A server that hangs may hold up the report for longer than this process lives.
        self.record_end(outcome)
        finish = self._guard.ledger.finish
        self._report(
            outcome,
            reason,
            lambda: finish(
                *(self.run_id, token, outcome, reason, returned, ended_at, traceback),
                granted=self.granted,
            ),
        )

    def retry(self, delay: timedelta, reason: str, failure: BaseException | None = None) -> None:
        """Reports that it failed, and that its run is tried again after `delay`."""
        token, ended_at = self._granted.token, self._work_ended_at
        reason, traceback = self.shown(reason), self._traceback_of(failure)
        arguments = self.next.arguments if self.next else JOB_ARGUMENTS
        retry = self._guard.ledger.retry
        self._report(
            RunState.RETRYING,
            reason,
            lambda: retry(
                *(self.run_id, token, delay, reason, arguments, ended_at, traceback),
                granted=self.granted,
            ),
        )

    def retry_by_backoff(self, failure: Exception) -> timedelta:
        """Plans another attempt by the job's own rules; returns after how long."""
        delay = self.delivery.backoff
        before = self.next or NextAttempt(delay, failure)
        self.next = replace(before, delay=delay, error=failure)
        return delay

    def discard(self) -> None:
        """Drops the exception, and with it all that its frames keep alive."""
        self.raised = self.interruption = self.next = None

    def shown(self, text: str) -> str:
        """A text from the job's code, without what is hidden."""
        return self.arguments.shown(text)

    def _traceback_of(self, failure: BaseException | None) -> str:
        if failure is None or self.delivery.log == RunLog.NONE:
            return ""
        try:
            return "".join(text_of(failure, self) for text_of in self._guard.texts_of_failures)
        except Exception as error:  # noqa: BLE001 - it asks the job's exceptions for their texts
            log.warning("traceback not kept", run=self.run_id, error=repr(error))
            return ""

    @property
    def granted(self) -> GrantedAttempt:
        return self._granted.granted

    @property
    def _granted(self) -> Grant:
        assert self.grant is not None, "no lease was granted"
        return self.grant

    @property
    def _work_ended_at(self) -> float:
        return clock() if self.ended_at is None else self.ended_at

    def _current_run(self, grant: Grant) -> CurrentRun:
        step_id = StepId.of(grant.run_id)
        return CurrentRun(
            job=grant.job,
            run_id=step_id.run if step_id else grant.run_id,
            nominal_at=grant.nominal_at,
            attempt=grant.attempt,
            fencing_token=grant.fencing_token,
            step=step_id.step if step_id else None,
            item=step_id.item if step_id else None,
            params=self._guard.params_of(step_id.run, grant.stage) if step_id else {},
            _attempt=self,
        )

    def _report(self, outcome: RunState, reason: str, call: Callable[[], Finished]) -> None:
        set_current_run(None)
        try:
            report_end(self._guard, self.delivery, self._granted, outcome, reason, call)
        finally:
            self.phase = Phase.OVER


def raise_in_current_run(number: int) -> None:
    if attempt := current_attempt():
        attempt.raise_in_code(number)
