"""Reports how an attempt ended, until the ledger takes it.

An end is reported however long that lasts: the process has nothing else to do, and what is done
would be done again. Only when its worker is stopping, or when the server answers and refuses this
very report, is it given up after `Guard.report_timeout`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from supervisor.errors import WrongSchema
from supervisor.guard.begin import why
from supervisor.guard.delivery import Delivery, work_of
from supervisor.guard.guard import Guard
from supervisor.job.run import RunState
from supervisor.ledger.attempt import Ending, Finished, Grant
from supervisor.logs import get_logger
from supervisor.store.failures import RedisError, may_pass

#: Between two tries to report an end, and between two log lines about them.
PAUSE_SECONDS = 0.5
SILENT_SECONDS = 60

log = get_logger("supervisor.guard")

T = TypeVar("T")


def report_end(
    guard: Guard,
    delivery: Delivery,
    grant: Grant,
    outcome: RunState,
    reason: str,
    call: Callable[[], Finished],
) -> None:
    """call: reports it, once."""
    of_run = {"job": grant.job, "run": grant.run_id, "attempt": grant.attempt}
    word = outcome.value

    def write_back() -> bool:
        """For a ledger that is older than the run, or has it as ended without this attempt."""
        work = replace(work_of(delivery.header), worker=guard.worker)
        return guard.ledger.restore_ended(work, delivery.token, grant.granted)

    try:
        finished = insist(guard, call, of_run)
        if finished.ending is Ending.UNKNOWN:
            insist(guard, write_back, of_run)
            finished = insist(guard, call, of_run)
    except (RedisError, WrongSchema) as error:
        log.error("end not reported", **of_run, outcome=word, reason=why(error), error=str(error))
        return
    if finished.ending in (Ending.STALE, Ending.UNKNOWN):
        if finished.overlapped_with:
            log.error("runs overlapped", **of_run, other=finished.overlapped_with)
        log.error("lease lost", **of_run, outcome=word)
        return
    log.info("run ended", **of_run, outcome=word, reason=reason or None)
    if finished.to_publish:
        guard.publish(finished.to_publish)


def insist(guard: Guard, call: Callable[[], T], of_run: Mapping[str, Any]) -> T:
    """Calls until the ledger takes it. Raises RedisError when it has to give up."""
    given_up_at, logged_again_at = math.inf, 0.0
    while True:
        try:
            return call()
        except RedisError as error:
            now = time.monotonic()
            if may_pass(error) and not guard.table.is_stopping:
                given_up_at = math.inf
            else:
                given_up_at = min(given_up_at, now + guard.report_timeout.total_seconds())
            if now >= given_up_at:
                raise
            if now >= logged_again_at:
                log.warning("ledger unavailable", **of_run, error=str(error))
                logged_again_at = now + SILENT_SECONDS
            time.sleep(PAUSE_SECONDS)
