"""Asks the ledger for the lease of an attempt, until a reply can be trusted.

With the ledger unavailable nothing begins: the run stays queued and is published again. Where it is
not known whether `begin` was executed, the main process has it undone (heartbeat.py).
"""

from __future__ import annotations

import logging
from contextlib import suppress

from supervisor.errors import WrongSchema
from supervisor.guard.delivery import Delivery, note_shared_queue
from supervisor.guard.guard import Guard
from supervisor.guard.lease import is_trusted
from supervisor.job.content import Content
from supervisor.ledger.attempt import Grant, Refusal, Refused
from supervisor.logs import get_logger
from supervisor.store.failures import RedisError, may_pass

#: A grant that comes too late to be trusted is asked for again, up to this often.
MOST_REQUESTS = 5

#: Runs that are refused for this are sent again later.
LATER = (Refusal.GRACE, Refusal.PARKED, Refusal.DRAINED)

log = get_logger("supervisor.guard")


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


def why(error: Exception) -> str:
    return "ledger of another schema" if isinstance(error, WrongSchema) else "ledger unavailable"
