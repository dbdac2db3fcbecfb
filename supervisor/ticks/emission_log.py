"""What became of ticks and of rescued runs, as lines of the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import structlog

from supervisor.ledger.replies import Admission, Placement, Rescue

#: What rescue did, as the event words of the log.
RESCUES = {
    "due": "run due",
    "requeued": "run requeued",
    "skipped": "run skipped",
    "waiting": "run waiting",
    "promoted": "run promoted",
    "expired": "run expired",
    "rescued": "run rescued",
    "lost": "run lost",
    "cancelled": "run ended",
    "replaced": "run ended",
    "timed_out": "run ended",
    "ended": "run ended",
    "failed": "run cannot be rescued",
    "reasserted": "lease reasserted",
    "held": "run held back",
}

log = structlog.get_logger("supervisor.beat")


def note_rescue(rescue: Rescue) -> None:
    log.info(RESCUES[rescue.kind], job=rescue.job, run=rescue.run_id)


def note_all(admissions: Iterable[Admission]) -> None:
    bound = log.bind()  # once, and not for each of thousands
    for admission in admissions:
        for rescue in admission.settled:
            note_rescue(rescue)
        note(admission, bound)


def note(admission: Admission, log: structlog.stdlib.BoundLogger) -> None:
    facts = {"job": admission.job, "run": admission.run_id}
    match admission.placement:
        case Placement.START:
            log.info("run queued", **facts)
        case Placement.WAIT | Placement.DELAY:
            log.info("run waiting", **facts, blocked_by=admission.blocked_by)
        case Placement.REPLACE:
            log.warning("run waiting", **facts, replaces=admission.blocked_by)
        case Placement.REQUEUE:
            log.info("run requeued", **facts, blocked_by=admission.blocked_by)
        case Placement.SKIP:
            reason, blocker = admission.reason, admission.blocked_by
            log.warning("run skipped", **facts, reason=reason, blocked_by=blocker)
        case Placement.EXCLUDED:
            log.info("tick excluded", **facts, reason=admission.reason)
        case Placement.DUPLICATE:
            log.warning("duplicate dropped", **facts)
        case Placement.NOT_LEADER:
            log.error("relieved while emitting", **facts)
        case Placement.FAILED:
            log.error("tick not admitted", **facts, error=admission.reason)
        case _:
            assert_never(admission.placement)
