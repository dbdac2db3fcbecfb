"""One attempt of a run in a worker's child, from its message to its reported end.

1. A message arrives in a worker; it names a run and carries nothing that decides anything.
2. `begin` asks the ledger for the lease, with a token made for this delivery. A second delivery, an
   expired run, a run of a busy serial queue is refused: the task's body never starts, and the
   message is dropped. What must come again comes from the ledger, not from the broker. The lease
   counts from when it was asked for (lease.py): a reply that comes late is not trusted, nor is a
   grant that has grown old by the time the body is to start, and the lease is asked for again.
3. The task's body runs; the worker's main process renews the lease (heartbeat.py) and may interrupt
   the body (child_table.py).
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

With the ledger unavailable nothing begins: the run stays queued and is published again. Where it is
not known whether `begin` was executed, the main process has it undone (heartbeat.py). An end is
reported until it is taken, however long that lasts: the process has nothing else to do, and what is
done would be done again. Only when its worker is stopping, or when the server answers and refuses
this very report, is it given up after `REPORT_TIMEOUT`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import IntEnum
from functools import partial
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from structlog.contextvars import bind_contextvars, reset_contextvars

from supervisor.errors import LeaseLost, RunInterrupted, WrongSchema
from supervisor.guard import child_table, liveness
from supervisor.guard.child_table import RAISED, way_to_this_code
from supervisor.guard.current_run import CurrentRun, current_attempt, current_run, set_current_run
from supervisor.guard.delivery import Delivery, note_shared_queue, work_of
from supervisor.guard.lease import is_trusted
from supervisor.guard.progress import Report, Reporter
from supervisor.job.content import Content
from supervisor.job.policies import RunLog
from supervisor.job.run import LINE_LENGTH, Reference, ReportedProgress, RunState, StepId
from supervisor.job.secrets import (
    MASK,
    ArgumentPath,
    has_references,
    hidden_in,
    put,
    resolved,
    texts_in,
    without_hidden,
)
from supervisor.job.steps import Params
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Ending, Finished, Grant, Known, Refusal, Refused
from supervisor.ledger.requests import NOTHING, CallArguments
from supervisor.logs import get_logger
from supervisor.store.connection import RedisError, may_pass
from supervisor.times import clock

REPORT_TIMEOUT = timedelta(seconds=30)

#: A grant that comes too late to be trusted is asked for again, up to this often.
MOST_ASKED = 5

#: Between two tries to report an end, and between two log lines about them.
PAUSE_SECONDS = 0.5
SILENT_SECONDS = 60

log = get_logger("supervisor.guard")

T = TypeVar("T")


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

    asked: CallArguments = NOTHING

    deferred: Exception | None = None
    """What a `retry(throw=False)` returned; it is raised once the body has returned."""


class Hook:
    """What a feature does with each attempt."""

    def begin(self, attempt: Attempt) -> None:
        """The job's code is about to run."""

    def text_of(self, failure: BaseException, attempt: Attempt) -> str:
        """What is kept, with the failed attempt, of what its code raised."""
        return ""


@dataclass(slots=True)
class Guard:
    """What the attempts of a process share."""

    ledger: Ledger

    publish: Callable[[Sequence[str]], Any]
    """Sends the messages of runs that Celery has to make."""

    worker: str
    """This process' name, as people see it."""

    owner: str = ""
    """The name of the ledger's app."""

    decode: Callable[[str], Any] = json.loads
    """Reads a step's params."""

    report_timeout: timedelta = REPORT_TIMEOUT
    """For how long an end is reported once there is a reason to give it up."""

    hooks: Sequence[Hook] = ()
    _params: tuple[str, Mapping[str, Any]] = ("", MappingProxyType({}))

    def params_of(self, run_id: str, stage: str) -> Mapping[str, Any]:
        """The params of a stage, which all of its steps and items share: they are read once."""
        known, kept = f"{run_id} {stage}", self._params
        if kept[0] != known:
            load = partial(self.ledger.steps.params, run_id)
            kept = self._params = (known, Params(load, self.decode))
        return kept[1]


class Attempt:
    """content: of its message, for the ledger to compare.

    ended_at: since when the job's code no longer runs, by `times.clock`.
    How the body ended: has_returned; raised, as Celery was to take it; interruption, by which its
    main process ended it. asked_to_end: what is raised in the code for that, or would be.
    returned: by a step, for the steps after it. next: how it is tried again.
    written: each text of the arguments that has a reference, and the secret it became -> the text.
    hidden: each secret and masked value in the arguments -> what is shown in its place.
    """

    def __init__(self, guard: Guard, delivery: Delivery, content: Content | None = None) -> None:
        self._guard = guard
        self.delivery = delivery
        self._content = content
        self.phase = Phase.DELIVERED
        self.grant: Grant | None = None
        self.report: Report | None = None
        self.ended_at: float | None = None
        self.has_returned = False
        self.raised: BaseException | None = None
        self.interruption: RunInterrupted | None = None
        self.asked_to_end: RunInterrupted | None = None
        self._interrupt_here: Callable[[int], Any] | None = None
        self.returned: dict[str, Any] | None = None
        self.next: NextAttempt | None = None
        self.written: dict[str, str] = {}
        self.hidden: dict[str, str] = {}
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
        answer = self._kept_out() or self._ask()
        if isinstance(answer, Refused):
            self.phase = Phase.OVER
            return answer
        log.info("run started", job=answer.job, run=self.run_id, attempt=answer.attempt)
        self.grant, self.phase = answer, Phase.GRANTED
        set_current_run(self._current_run(answer))
        self._interrupt_here = way_to_this_code(self._to_be_raised)
        child_table.enter(answer.token, self, answer.asked_at, answer.known)
        return None

    def confirm(self) -> Refused | None:
        """The last step before the body: asks again if the grant is too old by now."""
        if is_trusted(self._granted.asked_at, self._granted.lease_ttl):
            return None
        answer = self._ask()
        if isinstance(answer, Refused):
            self.phase = Phase.OVER
            set_current_run(None)
            return answer
        self.grant = answer
        return None

    @contextmanager
    def running(
        self, reporter: Reporter, publish: Callable[[ReportedProgress], None] | None
    ) -> Iterator[None]:
        """The job's code; what it reports of itself is written before this is left."""
        self.report = reporter.open(self.run_id, self.delivery.token, publish)
        run = current_run()
        for hook in self._guard.hooks:
            hook.begin(self)
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
                facts = {"job": self.job, "run": self.run_id}
                log.error("forked process failed", **facts, exc_info=error)
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
        child_table.leave(self.delivery.token)

    def interrupt(self, number: int) -> bool:
        """The run is to end; called by the heartbeat of the same process.

        False where nothing is raised in the job's code, which may see it by itself.
        """
        self.asked_to_end = RAISED[number](self.run_id)
        if self._interrupt_here is None:
            return False
        self._interrupt_here(number)
        return True

    def raise_in_code(self, number: int) -> None:
        """Called by the handler of a signal, within the code that it interrupts."""
        self.asked_to_end = RAISED[number](self.run_id)
        if error := self._to_be_raised():
            raise error

    def is_without_lease(self) -> bool:
        return isinstance(self.asked_to_end, LeaseLost)

    def _to_be_raised(self) -> RunInterrupted | None:
        return self.asked_to_end if self.phase is Phase.RUNNING else None

    def record_end(self, outcome: RunState) -> None:
        """Leaves the end for the main process, which reports it if this process dies first."""
        if outcome is not RunState.SUCCEEDED or not self.returned:  # that is known here alone
            child_table.record_end(self._granted.token, outcome, self._work_ended_at)

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
                known=self.known,
            ),
        )

    def retry(self, delay: timedelta, reason: str, failure: BaseException | None = None) -> None:
        """Reports that it failed, and that its run is tried again after `delay`."""
        token, ended_at = self._granted.token, self._work_ended_at
        reason, traceback = self.shown(reason), self._traceback_of(failure)
        asked = self.next.asked if self.next else NOTHING
        retry = self._guard.ledger.retry
        self._report(
            RunState.RETRYING,
            reason,
            lambda: retry(
                *(self.run_id, token, delay, reason, asked, ended_at, traceback),
                known=self.known,
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

    def with_secrets(self, args: Any, kwargs: Any, environ: Mapping[str, str]) -> tuple[Any, Any]:
        """The arguments with secrets in place of references. Raises SecretMissing."""
        given = deepcopy({"args": list(args), "kwargs": dict(kwargs)})
        for path, text in list(texts_in(given)):
            if self._is_written(path) and has_references(text):
                secret = resolved(text, environ, self.hidden)
                self.written |= {text: text, **({secret: text} if secret else {})}
                put(given, path, secret)
        return given["args"], given["kwargs"]

    @property
    def references(self) -> Sequence[Reference]:
        """Where the arguments have references of a schedule file, as the ledger says."""
        return self._granted.references

    def _is_written(self, path: ArgumentPath) -> bool:
        """Whether the value at this path of the arguments comes from the schedule file."""
        if [*path] in self.references:
            return True
        step = StepId.of(self.run_id)
        # The item of a batch is data.
        is_item = path[:2] == ("args", 0) and step is not None and step.item is not None
        return path[0] in self.references and not is_item

    def hide(self, *arguments: Any) -> None:
        """Also keeps the arguments that the job's `mask` hides out of its log."""
        if mask := self.delivery.mask:
            self.hidden |= dict.fromkeys(hidden_in(mask, arguments), MASK)

    def shown(self, text: str) -> str:
        """A text from the job's code, without what is hidden."""
        return without_hidden(text, self.hidden) if self.hidden else text

    def _traceback_of(self, failure: BaseException | None) -> str:
        if failure is None or self.delivery.log == RunLog.NONE:
            return ""
        try:
            return "".join(hook.text_of(failure, self) for hook in self._guard.hooks)
        except Exception as error:  # noqa: BLE001 - it asks the job's exceptions for their texts
            log.warning("traceback not kept", run=self.run_id, error=repr(error))
            return ""

    @property
    def known(self) -> Known:
        return self._granted.known

    @property
    def _granted(self) -> Grant:
        assert self.grant is not None, "no lease was granted"
        return self.grant

    @property
    def _work_ended_at(self) -> float:
        return clock() if self.ended_at is None else self.ended_at

    def _kept_out(self) -> Refused | None:
        """Refuses a run whose code still runs here without its lease, which the ledger cannot know.

        The run stays queued, and is sent again until that code has ended.
        """
        for other in child_table.in_the_way_of(self.run_id, self.lock):
            log.warning("run kept out", job=self.job, run=self.run_id, by=other.run_id)
            self._note_obstacle(f"code of {other.run_id} still runs there without its lease")
            if other.run_id == self.run_id and not other.is_without_lease():
                self._count_duplicate()
            return Refused(self.run_id, Refusal.DUPLICATE, f"{other.run_id} still runs here")
        return None

    def _note_obstacle(self, text: str) -> None:
        with suppress(RedisError, WrongSchema):
            self._guard.ledger.note_obstacle([self.run_id], self._guard.worker, text)

    def _count_duplicate(self) -> None:
        """Counts it as the ledger would. It is not asked, since it might grant the lease."""
        with suppress(RedisError):
            self._guard.ledger.count_duplicate(self.job)

    def _ask(self) -> Grant | Refused:
        run_id, job = self.run_id, self.job
        try:
            answer = self._trusted()
        except (RedisError, WrongSchema) as error:
            if not (may_pass(error) or isinstance(error, WrongSchema)):
                raise
            log.error("run not begun", job=job, run=run_id, reason=why(error), error=str(error))
            return Refused(run_id, Refusal.UNAVAILABLE, str(error))
        if isinstance(answer, Refused):
            if answer.refusal is Refusal.DIFFERS and answer.detail == "1":
                facts = {"job": job, "run": run_id, "task": self._content and self._content.task}
                log.error("message differs from the ledger", **facts, queue=self.delivery.queue)
            if answer.refusal is Refusal.UNKNOWN and self.delivery.owner != self._guard.owner:
                note_shared_queue(self._guard.ledger, self.delivery)
            # Those that are sent again later are expected.
            expected = answer.refusal in (Refusal.GRACE, Refusal.PARKED, Refusal.DRAINED)
            log.log(
                logging.INFO if expected else logging.WARNING,
                "delivery dropped",
                job=job,
                run=run_id,
                reason=answer.refusal.value,
                detail=answer.detail,
            )
        return answer

    def _trusted(self) -> Grant | Refused:
        """Asks until a reply can be trusted: a late one may be about a lease that has run out."""
        guard, own = self._guard, self.delivery
        for _ in range(MOST_ASKED):
            answer = guard.ledger.begin(
                own.run_id,
                own.token,
                guard.worker,
                own.queue,
                own.sent_after,
                liveness.own_process(),
                self._content,
            )
            if isinstance(answer, Refused) or is_trusted(answer.asked_at, answer.lease_ttl):
                return answer
            log.warning("grant delayed", job=answer.job, run=own.run_id)
        return Refused(own.run_id, Refusal.UNAVAILABLE, "each grant came too late")

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

    def _report(self, outcome: RunState, reason: str, report: Callable[[], Finished]) -> None:
        set_current_run(None)
        grant, word = self._granted, outcome.value
        facts = {"job": grant.job, "run": grant.run_id, "attempt": grant.attempt}
        try:
            finished = self._insist(report, facts)
            if finished.ending is Ending.UNKNOWN:
                self._insist(self._write_back, facts)
                finished = self._insist(report, facts)
        except (RedisError, WrongSchema) as error:
            log.error(
                "end not reported", **facts, outcome=word, reason=why(error), error=str(error)
            )
            return
        finally:
            self.phase = Phase.OVER
        if finished.ending in (Ending.STALE, Ending.UNKNOWN):
            if finished.overlapped_with:
                log.error("runs overlapped", **facts, other=finished.overlapped_with)
            log.error("lease lost", **facts, outcome=word)
            return
        log.info("run ended", **facts, outcome=word, reason=reason or None)
        if finished.to_publish:
            self._guard.publish(finished.to_publish)

    def _write_back(self) -> bool:
        """For a ledger that is older than the run, or has it as ended without this attempt."""
        work = replace(work_of(self.delivery.header), worker=self._guard.worker)
        return self._guard.ledger.restore_ended(work, self.delivery.token, self.known)

    def _insist(self, report: Callable[[], T], facts: Mapping[str, Any]) -> T:
        """Reports until the ledger takes it. Raises RedisError when it has to give up."""
        given_up_at, logged_again_at = math.inf, 0.0
        while True:
            try:
                return report()
            except RedisError as error:
                now = time.monotonic()
                if may_pass(error) and not child_table.is_stopping():
                    given_up_at = math.inf
                else:
                    given_up_at = min(given_up_at, now + self._guard.report_timeout.total_seconds())
                if now >= given_up_at:
                    raise
                if now >= logged_again_at:
                    log.warning("ledger unavailable", **facts, error=str(error))
                    logged_again_at = now + SILENT_SECONDS
                time.sleep(PAUSE_SECONDS)


def raise_in_current_run(number: int) -> None:
    if attempt := current_attempt():
        attempt.raise_in_code(number)


def why(error: Exception) -> str:
    return "ledger of another schema" if isinstance(error, WrongSchema) else "ledger unavailable"
