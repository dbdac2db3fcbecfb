"""What an attempt asks of the ledger, and how long it goes on asking: its begin, and its end.

1. **Begin.** With the ledger unavailable nothing begins: the run stays queued and is published
   again. Where it is not known whether `begin` was executed, the main process has it undone
   (heartbeat.py).
2. **End.** An end is reported however long that lasts: the process has nothing else to do, and what
   is done would be done again. Only when its worker is stopping, or when the server answers and
   refuses this very report, is it given up after `Guard.report_timeout`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from supervisor.errors import WrongSchema
from supervisor.guard.delivery import Delivery, note_shared_queue, work_of
from supervisor.guard.guard import Guard
from supervisor.guard.lease import is_trusted
from supervisor.job.content import Content
from supervisor.job.run import RunState
from supervisor.ledger.attempt import (
    Ending,
    Finished,
    Grant,
    GrantedAttempt,
    Refusal,
    Refused,
    Work,
)
from supervisor.ledger.ledger import Ledger
from supervisor.logs import get_logger
from supervisor.store.failures import RedisError, may_pass

#: A grant that comes too late to be trusted is asked for again, up to this often.
MOST_REQUESTS = 5

#: Runs that are refused for this are sent again later.
LATER = (Refusal.GRACE, Refusal.PARKED, Refusal.DRAINED)

#: Between two tries to report an end, and between two log lines about them.
PAUSE_SECONDS = 0.5
SILENT_SECONDS = 60

log = get_logger("supervisor.guard")

T = TypeVar("T")


def begin(guard: Guard, delivery: Delivery, content: Content | None) -> Grant | Refused:
    """content: of its message, for the ledger to compare.

    Raises RedisError for what the server would refuse again."""
    run_id, job = delivery.run_id, delivery.job
    try:
        reply = _trusted_reply(guard, delivery, content)
    except (RedisError, WrongSchema) as error:
        if not (may_pass(error) or isinstance(error, WrongSchema)):
            raise
        log.error("run not begun", job=job, run=run_id, reason=why(error), error=str(error))
        return Refused(run_id, Refusal.UNAVAILABLE, str(error))
    if isinstance(reply, Refused):
        _note_refusal(guard, delivery, content, reply)
    return reply


def _trusted_reply(guard: Guard, delivery: Delivery, content: Content | None) -> Grant | Refused:
    """A late reply may be about a lease that has run out."""
    for _ in range(MOST_REQUESTS):
        reply = guard.ledger.begin(
            delivery.run_id,
            delivery.token,
            guard.worker,
            delivery.queue,
            delivery.sent_after,
            guard.lock_file.process,
            content,
        )
        if isinstance(reply, Refused) or is_trusted(reply.requested_at, reply.lease_ttl):
            return reply
        log.warning("grant delayed", job=reply.job, run=delivery.run_id)
    return Refused(delivery.run_id, Refusal.UNAVAILABLE, "each grant came too late")


def _note_refusal(
    guard: Guard, delivery: Delivery, content: Content | None, refused: Refused
) -> None:
    of_run = {"job": delivery.job, "run": delivery.run_id}
    if refused.refusal is Refusal.DIFFERS and refused.detail == "1":
        task = content and content.task
        log.error("message differs from the ledger", **of_run, task=task, queue=delivery.queue)
    if refused.refusal is Refusal.UNKNOWN and delivery.owner != guard.owner:
        note_shared_queue(guard.ledger, delivery)
    level = logging.INFO if refused.refusal in LATER else logging.WARNING
    log.log(level, "delivery dropped", **of_run, reason=refused.reason, detail=refused.detail)


def kept_out(guard: Guard, delivery: Delivery) -> Refused | None:
    """Refuses a run whose code still runs here without its lease, which the ledger cannot know.

    The run stays queued, and is sent again until that code has ended.
    """
    run_id = delivery.run_id
    for other in guard.table.in_the_way_of(run_id, delivery.lock):
        log.warning("run kept out", job=delivery.job, run=run_id, by=other.run_id)
        with suppress(RedisError, WrongSchema):
            text = f"code of {other.run_id} still runs there without its lease"
            guard.ledger.note_obstacle([run_id], guard.worker, text)
            if other.run_id == run_id and not other.is_without_lease():
                # As the ledger would. It is not asked, since it might grant the lease.
                guard.ledger.count_duplicate(delivery.job)
        return Refused(run_id, Refusal.KEPT_OUT, f"{other.run_id} still runs here")
    return None


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
    work = replace(work_of(delivery.header), worker=guard.worker)
    token, granted = delivery.token, grant.granted
    try:
        finished = insist(guard, lambda: finish(guard.ledger, work, token, granted, call), of_run)
    except (RedisError, WrongSchema) as error:
        log.error("end not reported", **of_run, outcome=word, reason=why(error), error=str(error))
        return
    if finished.overlapped_with:
        log.error("runs overlapped", **of_run, other=finished.overlapped_with)
    if finished.ending in (Ending.STALE, Ending.UNKNOWN):
        log.error("lease lost", **of_run, outcome=word)
        return
    log.info("run ended", **of_run, outcome=word, reason=reason or None)
    if finished.to_publish:
        guard.publish(finished.to_publish)


def finish(
    ledger: Ledger,
    work: Work,
    token: str,
    granted: GrantedAttempt | None,
    call: Callable[[], Finished],
) -> Finished:
    """Reports an end. Where the ledger is older than the attempt, or has its run as ended without
    it, the attempt is written back first."""
    finished = call()
    if finished.ending is Ending.UNKNOWN and granted:
        other = ledger.restore_ended(work, token, granted)
        finished = call()
        finished = replace(finished, overlapped_with=other or finished.overlapped_with)
    return finished


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


def why(error: Exception) -> str:
    return "ledger of another schema" if isinstance(error, WrongSchema) else "ledger unavailable"
