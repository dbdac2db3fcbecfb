"""One delivery of a run, from message to end state.

1. A message arrives in a worker; it names a run and carries nothing that decides anything.
2. `begin` asks the ledger for the lease, with a token made for this delivery. A second delivery, an
   expired run, a run of a busy serial queue is refused: the task's body never starts, and the
   message is dropped. What must come again comes from the ledger, not from the broker.
3. The task's body runs; the worker's main process renews the lease (heartbeat.py).
4. `end` reports the outcome: the lease is given back and the next waiting run promoted, in one
   script. Whoever finished publishes the promoted run; if it dies first, beat does.
5. A worker that dies in between reports nothing: its main process does once the child is gone,
   else the lease runs out and beat's rescue decides by `on_crash`.

With the ledger away nothing begins (the run stays queued and is published again), and an end is
reported again and again for `END_PATIENCE`: nothing else could start meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import structlog

from supervisor.context import CurrentRun, set_current_run
from supervisor.ledger.connection import RedisError, Unavailable
from supervisor.ledger.replies import Ending, Finished, Grant, Refusal, Refused
from supervisor.ledger.runs import Ledger
from supervisor.run import RunState

END_PATIENCE = timedelta(seconds=60)

log = structlog.get_logger("supervisor.guard")

Publish = Callable[[Sequence[str]], Any]


class Guard:
    """`publish` sends the messages of the runs it is given; `worker` is who we are to people."""

    def __init__(self, ledger: Ledger, publish: Publish, worker: str) -> None:
        self._ledger = ledger
        self._publish = publish
        self._worker = worker

    def begin(self, run_id: str, job: str, token: str) -> Grant | Refused:
        """The lease for this delivery, or why its run must not start here and now."""
        try:
            answer = self._ledger.begin(run_id, token, self._worker)
        except Unavailable as error:
            log.error("run not begun", job=job, run=run_id, reason="ledger away", error=str(error))
            return Refused(run_id, Refusal.UNAVAILABLE)
        if isinstance(answer, Refused):
            log.warning(
                "delivery dropped",
                job=job,
                run=run_id,
                reason=answer.refusal.value,
                detail=answer.detail,
            )
            return answer
        set_current_run(
            CurrentRun(
                job=answer.job,
                run_id=run_id,
                nominal_at=answer.nominal_at,
                attempt=answer.attempt,
                fencing_token=answer.fencing_token,
            )
        )
        log.info("run started", job=answer.job, run=run_id, attempt=answer.attempt)
        return answer

    def end(self, grant: Grant, outcome: RunState, reason: str = "") -> None:
        """Reports how the attempt ended; `lost` when the process is going down under it."""
        self._report(
            grant,
            outcome.value,
            reason,
            lambda: self._ledger.finish(grant.run_id, grant.token, outcome, reason),
        )

    def retry(
        self, grant: Grant, delay: timedelta, reason: str, args: Any = None, kwargs: Any = None
    ) -> None:
        """Reports a failed attempt whose run is tried again after `delay`."""
        self._report(
            grant,
            RunState.RETRYING.value,
            reason,
            lambda: self._ledger.retry(grant.run_id, grant.token, delay, reason, args, kwargs),
        )

    def _report(self, grant: Grant, word: str, reason: str, report: Callable[[], Finished]) -> None:
        set_current_run(None)
        facts = {"job": grant.job, "run": grant.run_id, "attempt": grant.attempt}
        finished = self._insist(report)
        if finished is None:
            log.error("end not reported", **facts, outcome=word, reason="ledger away")
            return
        if finished.ending is Ending.STALE:
            if finished.overlapped_with:
                log.error("runs overlapped", **facts, other=finished.overlapped_with)
            log.error("lease lost", **facts, outcome=word)
            return
        log.info("run ended", **facts, outcome=word, reason=reason or None)
        if finished.next_up:
            self._publish(finished.next_up)

    def _insist(self, report: Callable[[], Finished]) -> Finished | None:
        deadline = time.monotonic() + END_PATIENCE.total_seconds()
        while True:
            try:
                return report()
            except RedisError as error:  # away, read-only after a failover, or out of memory
                if time.monotonic() > deadline:
                    return None
                log.warning("ledger away", error=str(error))
                time.sleep(0.5)
