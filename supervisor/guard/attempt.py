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
   script. The process that reported it publishes the promoted run; if it dies first, beat does.
5. A child that dies in between reports nothing: its worker's main process does, else the lease runs
   out and beat's rescue decides by `on_crash`.

The phases:

    DELIVERED --begin--> GRANTED --running--> RUNNING --leave--> LEFT --end, retry--> OVER

Refused by `begin` or by `confirm`, an attempt is over at once. Only while RUNNING may a signal
interrupt the job's code. `leave` is the one place that ends the work, however it ended: from then
on nothing interrupts what is left to do, and the main process does not kill the child for it.

With the ledger unavailable nothing begins (the run stays queued and is published again). An end is
reported until it is taken, however long that lasts: the process has nothing else to do, and what is
done would be done again. Only when its worker is stopping, or when the server answers and refuses
this very report, is it given up after `PATIENCE`.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import IntEnum
from functools import partial
from typing import Any

import structlog

from supervisor.errors import RunInterrupted, WrongSchema
from supervisor.guard import child_table
from supervisor.guard.current_run import CurrentRun, current_run, set_current_run
from supervisor.guard.delivery import Delivery
from supervisor.guard.lease import is_trusted
from supervisor.guard.progress import Report, Reporter
from supervisor.job.run import RunState, SaidProgress, StepId
from supervisor.job.secrets import has_references, put, resolved, texts_in
from supervisor.job.steps import Params
from supervisor.ledger.connection import RedisError, may_pass
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Ending, Finished, Grant, Refusal, Refused
from supervisor.ledger.requests import NOTHING, Asked
from supervisor.times import clock

PATIENCE = timedelta(seconds=30)

#: A grant that comes too late to be trusted is asked for again, up to this often.
MOST_ASKED = 5

#: Between two tries to report an end, and between two log lines about them.
PAUSE_SECONDS = 0.5
SILENT_SECONDS = 60

log = structlog.get_logger("supervisor.guard")

Publish = Callable[[Sequence[str]], Any]


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
    """When and with what a failed attempt is tried again.

    error: what it failed by, if it was given. deferred: what a `retry(throw=False)` returned, which
    is raised once the body has returned.
    """

    delay: timedelta
    error: BaseException | None
    asked: Asked = NOTHING
    deferred: Exception | None = None


class Attempt:
    """ended_at: since when the job's code no longer runs, by the clock of times.py.

    How the body ended: has_returned; raised, as Celery was to take it; interruption, by which its
    main process ended it. returned: by a step, for the steps after it. next: how it is tried again.
    written: each text of the arguments that has a reference, and the secret it became -> the text.
    """

    def __init__(self, guard: Guard, delivery: Delivery) -> None:
        self._guard = guard
        self.delivery = delivery
        self.phase = Phase.DELIVERED
        self.grant: Grant | None = None
        self.report: Report | None = None
        self.ended_at: float | None = None
        self.has_returned = False
        self.raised: BaseException | None = None
        self.interruption: RunInterrupted | None = None
        self.returned: dict[str, Any] | None = None
        self.next: NextAttempt | None = None
        self.written: dict[str, str] = {}

    @property
    def run_id(self) -> str:
        return self.delivery.run_id

    @property
    def job(self) -> str:
        return self.delivery.job

    def begin(self) -> Refused | None:
        """Asks for the lease; why the run must not start here and now, if it must not."""
        own = self.delivery
        answer = self._guard.begin(own.run_id, own.job, own.token, own.queue)
        if isinstance(answer, Refused):
            self.phase = Phase.OVER
            return answer
        self.grant, self.phase = answer, Phase.GRANTED
        set_current_run(self._guard.run_of(answer, self))
        child_table.set_running(own.token)
        return None

    def confirm(self) -> Refused | None:
        """The last step before the body: all before it takes time, and a grant grows old."""
        answer = self._guard.confirm(self._granted, self.delivery.queue)
        if isinstance(answer, Refused):
            self.phase = Phase.OVER
            set_current_run(None)
            return answer
        self.grant = answer
        return None

    @contextmanager
    def running(
        self, reporter: Reporter, publish: Callable[[SaidProgress], None] | None
    ) -> Iterator[None]:
        """The job's code; what it reports of itself is written before this is left."""
        self.report = reporter.open(self.run_id, self.delivery.token, publish)
        self.phase = Phase.RUNNING
        try:
            yield
        finally:
            self.leave()
            reporter.close(self.report)

    def leave(self) -> None:
        """The job's code has ended, or never will begin."""
        if self.phase < Phase.LEFT:
            self.phase, self.ended_at = Phase.LEFT, clock()
        child_table.set_running(None)

    def end(
        self, outcome: RunState, reason: str = "", returned: Mapping[str, Any] | None = None
    ) -> None:
        """Reports how it ended; `lost` when the process is going down under it."""
        set_current_run(None)
        self._guard.end(self._granted, outcome, reason, returned, self.ended_at)
        self.phase = Phase.OVER

    def retry(self, delay: timedelta, reason: str) -> None:
        """Reports that it failed, and that its run is tried again after `delay`."""
        set_current_run(None)
        asked = self.next.asked if self.next else NOTHING
        self._guard.retry(self._granted, delay, reason, asked, self.ended_at)
        self.phase = Phase.OVER

    def retry_by_backoff(self, failure: Exception) -> timedelta:
        """It is tried again by the job's own rules; after how long."""
        delay = self.delivery.backoff
        before = self.next or NextAttempt(delay, failure)
        self.next = replace(before, delay=delay, error=failure)
        return delay

    def discard(self) -> None:
        """Lets go of what was raised, with all that its frames hold."""
        self.raised = self.interruption = self.next = None

    def with_secrets(self, args: Any, kwargs: Any, environ: Mapping[str, str]) -> tuple[Any, Any]:
        """The arguments with secrets in place of references. Raises SecretMissing."""
        given = deepcopy({"args": list(args), "kwargs": dict(kwargs)})
        for place, text in list(texts_in(given)):
            if self.delivery.is_written(place) and has_references(text):
                secret = resolved(text, environ)
                self.written |= {text: text, **({secret: text} if secret else {})}
                put(given, place, secret)
        return given["args"], given["kwargs"]

    @property
    def _granted(self) -> Grant:
        assert self.grant is not None, "no lease was granted"
        return self.grant


def current_attempt() -> Attempt | None:
    """The attempt that this code works for; None outside of one, and once its end is reported."""
    run = current_run()
    return run._attempt if run else None


def interruptible_run() -> str | None:
    """The run whose code is running here."""
    attempt = current_attempt()
    return attempt.run_id if attempt and attempt.phase is Phase.RUNNING else None


class Guard:
    """A process' way to the ledger, for one attempt after the other.

    publish: sends the messages of the runs it is given. worker: this process' name, as people see
    it. patience: for how long an end is reported once there is a reason to give it up.
    """

    def __init__(
        self,
        ledger: Ledger,
        publish: Publish,
        worker: str,
        decode: Callable[[str], Any] = json.loads,
        patience: timedelta = PATIENCE,
    ) -> None:
        self._ledger = ledger
        self._patience = patience
        self._publish = publish
        self._worker = worker
        self._decode = decode
        self._params: tuple[str, Mapping[str, Any]] = ("", {})

    def begin(self, run_id: str, job: str, token: str, queue: str = "") -> Grant | Refused:
        """The lease for this delivery, or why its run must not start here and now."""
        answer = self._ask(run_id, job, token, queue)
        if isinstance(answer, Grant):
            log.info("run started", job=answer.job, run=run_id, attempt=answer.attempt)
        return answer

    def confirm(self, grant: Grant, queue: str = "") -> Grant | Refused:
        """The same grant while it is trusted; else it is asked for again, or why it is refused."""
        if is_trusted(grant.asked_at, grant.lease_ttl):
            return grant
        return self._ask(grant.run_id, grant.job, grant.token, queue)

    def _ask(self, run_id: str, job: str, token: str, queue: str) -> Grant | Refused:
        try:
            answer = self._trusted(run_id, token, queue)
        except (RedisError, WrongSchema) as error:
            if not (may_pass(error) or isinstance(error, WrongSchema)):
                raise
            log.error(
                "run not begun", job=job, run=run_id, reason=reason_of(error), error=str(error)
            )
            return Refused(run_id, Refusal.UNAVAILABLE)
        if isinstance(answer, Refused):
            # Those that are sent again later are nothing to wonder about.
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

    def _trusted(self, run_id: str, token: str, queue: str) -> Grant | Refused:
        """A reply that comes late may tell of a lease that has run out meanwhile."""
        for _ in range(MOST_ASKED):
            answer = self._ledger.begin(run_id, token, self._worker, queue)
            if isinstance(answer, Refused) or is_trusted(answer.asked_at, answer.lease_ttl):
                return answer
            log.warning("grant late", job=answer.job, run=run_id)
        return Refused(run_id, Refusal.UNAVAILABLE, "each grant came too late")

    def run_of(self, grant: Grant, attempt: Attempt) -> CurrentRun:
        """What the job's code may ask of the run."""
        place = StepId.of(grant.run_id)
        return CurrentRun(
            job=grant.job,
            run_id=place.run if place else grant.run_id,
            nominal_at=grant.nominal_at,
            attempt=grant.attempt,
            fencing_token=grant.fencing_token,
            step=place.step if place else None,
            item=place.item if place else None,
            params=self._params_of(place.run, grant.stage) if place else {},
            _attempt=attempt,
        )

    def _params_of(self, run_id: str, stage: str) -> Mapping[str, Any]:
        """The same for all steps and items of a stage: read once by each process."""
        known = f"{run_id} {stage}"
        if self._params[0] != known:
            load = partial(self._ledger.steps.params, run_id)
            self._params = (known, Params(load, self._decode))
        return self._params[1]

    def end(
        self,
        grant: Grant,
        outcome: RunState,
        reason: str = "",
        returned: Mapping[str, Any] | None = None,
        ended_at: float | None = None,
    ) -> None:
        """Reports how the attempt ended.

        returned: by a step, for the steps after it. ended_at: when the work was over, by the clock
        of times.py; now without it.
        """
        since = clock() if ended_at is None else ended_at
        if not returned:  # what a step returned is known here alone
            # A server that hangs may hold up the report for longer than this process lives.
            child_table.record_end(grant.token, outcome, since)
        report = partial(
            self._ledger.finish,
            grant.run_id,
            grant.token,
            outcome,
            reason,
            returned,
            ended_at=since,
        )
        self._report(grant, outcome, reason, report)

    def retry(
        self,
        grant: Grant,
        delay: timedelta,
        reason: str,
        asked: Asked = NOTHING,
        ended_at: float | None = None,
    ) -> None:
        """Reports a failed attempt whose run is tried again after `delay`; `ended_at` as above."""
        since = clock() if ended_at is None else ended_at
        report = partial(
            self._ledger.retry, grant.run_id, grant.token, delay, reason, asked, ended_at=since
        )
        self._report(grant, RunState.RETRYING, reason, report)

    def _report(
        self, grant: Grant, outcome: RunState, reason: str, report: Callable[[], Finished]
    ) -> None:
        facts = {"job": grant.job, "run": grant.run_id, "attempt": grant.attempt}
        word = outcome.value
        try:
            finished = self._insist(report, facts)
        except (RedisError, WrongSchema) as error:
            reason = reason_of(error)
            log.error("end not reported", **facts, outcome=word, reason=reason, error=str(error))
            return
        if finished.ending is Ending.STALE:
            if finished.overlapped_with:
                log.error("runs overlapped", **facts, other=finished.overlapped_with)
            log.error("lease lost", **facts, outcome=word)
            return
        log.info("run ended", **facts, outcome=word, reason=reason or None)
        if finished.next_up:
            self._publish(finished.next_up)

    def _insist(self, report: Callable[[], Finished], facts: Mapping[str, Any]) -> Finished:
        """Reports until it is taken. Raises RedisError once `patience` is at its end."""
        given_up_at, said_again_at = math.inf, 0.0
        while True:
            try:
                return report()
            except RedisError as error:
                now = time.monotonic()
                if may_pass(error) and not child_table.is_stopping():
                    given_up_at = math.inf
                else:
                    given_up_at = min(given_up_at, now + self._patience.total_seconds())
                if now >= given_up_at:
                    raise
                if now >= said_again_at:
                    log.warning("ledger away", **facts, error=str(error))
                    said_again_at = now + SILENT_SECONDS
                time.sleep(PAUSE_SECONDS)


def reason_of(error: Exception) -> str:
    return "ledger of another schema" if isinstance(error, WrongSchema) else "ledger away"
