"""One delivery of a run, from message to end state.

1. A message arrives in a worker; it names a run and carries nothing that decides anything.
2. `begin` asks the ledger for the lease, with a token made for this delivery. A second delivery, an
   expired run, a run of a busy serial queue is refused: the task's body never starts, and the
   message is dropped. What must come again comes from the ledger, not from the broker. The lease
   counts from when it was asked for: a reply that comes late is not trusted, nor is one that was
   left lying until just before the body starts, and the lease is asked for again.
3. The task's body runs; the worker's main process renews the lease (heartbeat.py).
4. `end` reports the outcome: the lease is given back and the next waiting run promoted, in one
   script. Whoever finished publishes the promoted run; if it dies first, beat does.
5. A worker that dies in between reports nothing: its main process does once the child is gone,
   else the lease runs out and beat's rescue decides by `on_crash`.

With the ledger away nothing begins (the run stays queued and is published again). An end is
reported until it is taken, however long that lasts: the process has nothing else to do, and what is
done would be done again. Only when its worker is told to stop, or when the server answers and will
not have this very report, is it given up after `PATIENCE`.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import structlog

from supervisor.errors import WrongSchema
from supervisor.guard import child_table
from supervisor.guard.current_run import CurrentRun, set_current_run
from supervisor.guard.lease import is_trusted
from supervisor.job.run import RunState, StepId
from supervisor.job.steps import Params
from supervisor.ledger.connection import RedisError, may_pass
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Ending, Finished, Grant, Refusal, Refused
from supervisor.ledger.requests import NOTHING, Asked
from supervisor.times import clock

PATIENCE = timedelta(seconds=30)

#: A grant that comes too late to be trusted is asked for again, up to this often.
MOST_ASKED = 5

#: Between two tries, and between two words about them in the log.
PAUSE_SECONDS = 0.5
SILENT_SECONDS = 60

log = structlog.get_logger("supervisor.guard")

Publish = Callable[[Sequence[str]], Any]


class Guard:
    """`publish` sends the messages of the runs it is given; `worker` is who we are to people.

    patience: for how long an end is reported once there is a reason to give it up.
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
            set_current_run(self._current_run(answer))
            log.info("run started", job=answer.job, run=run_id, attempt=answer.attempt)
        return answer

    def confirm(self, grant: Grant, queue: str = "") -> Grant | Refused:
        """The same grant while it is trusted; else it is asked for again, or why it is refused."""
        if is_trusted(grant.asked_at, grant.lease_ttl):
            return grant
        answer = self._ask(grant.run_id, grant.job, grant.token, queue)
        if isinstance(answer, Refused):
            set_current_run(None)
        return answer

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

    def _current_run(self, grant: Grant) -> CurrentRun:
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
        """Reports how the attempt ended; `lost` when the process is going down under it.

        returned: by a step, for those after it. ended_at: when the work was over, by
        `times.clock`; now without it.
        """
        since = clock() if ended_at is None else ended_at

        def report() -> Finished:
            return self._ledger.finish(
                *(grant.run_id, grant.token, outcome, reason, returned), ended_at=since
            )

        def tell() -> None:
            if not returned:  # what a step returned is known here alone
                child_table.record_end(grant.token, outcome, since)

        self._report(grant, outcome, reason, report, tell)

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

        def report() -> Finished:
            return self._ledger.retry(
                *(grant.run_id, grant.token, delay, reason, asked), ended_at=since
            )

        self._report(grant, RunState.RETRYING, reason, report, lambda: None)

    def _report(
        self,
        grant: Grant,
        outcome: RunState,
        reason: str,
        report: Callable[[], Finished],
        tell: Callable[[], None],
    ) -> None:
        """`tell`: tells the main process, which reports it should this process be ended."""
        set_current_run(None)
        facts = {"job": grant.job, "run": grant.run_id, "attempt": grant.attempt}
        word = outcome.value
        try:
            tell()  # a server that hangs may hold the report up for longer than this process lives
            try:
                finished = report()
            except RedisError:
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
