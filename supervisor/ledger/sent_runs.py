"""Runs whose messages were sent and that have not begun: what is to be known of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from supervisor.ledger.replies import instant
from supervisor.runs.run import RunState

#: The fields of a run's hash that a SentRun is made of.
SENT_RUN_FIELDS = ("state", "queue", "sends", "queued", "job")


@dataclass(frozen=True, slots=True)
class SentRun:
    """`sends`: how often a message was sent for the attempt to come, last at `sent_at`.

    queue: where to; None of a run that is not queued, or has no record.
    """

    id: str
    queue: str | None
    sent_at: datetime
    sends: int
    queued_at: datetime
    job: str | None


def sent_run_from(run_id: str, sent: float, values: Sequence[str | None]) -> SentRun:
    """`sent`: its score, in ms; and the values of SENT_RUN_FIELDS."""
    state, queue, sends, queued, job = values
    return SentRun(
        *(run_id, queue if state == RunState.QUEUED else None, instant(sent)),
        sends=int(sends or 0) or 1,
        queued_at=instant(queued or sent),
        job=job,
    )
