"""What happens to a run that would overlap: the policy as a pure function.

`ledger/admit.lua` takes the same decision inside Redis, where it is atomic; this function is
its oracle in the tests and what `plan` and `simulate` reason with.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never


class OverlapPolicy(StrEnum):
    """The word after ``overlap:`` in a schedule file."""

    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    QUEUE_ALL = "queue_all"
    REQUEUE = "requeue"


class Decision(StrEnum):
    START = "start"
    WAIT = "wait"
    REQUEUE = "requeue"
    SKIP = "skip"


class SkipReason(StrEnum):
    """Label ``reason`` of supervisor_runs_skipped_total."""

    OVERLAP = "overlap"
    BUFFER_FULL = "buffer_full"
    REQUEUES_EXHAUSTED = "requeues_exhausted"


@dataclass(frozen=True, slots=True)
class Situation:
    """What the lock of a run looks like at the moment of the decision.

    held: a run that is not done holds the lock, or runs wait for it.
    waiting: runs already waiting for this lock.
    requeues: how often this very run was re-queued before.
    """

    held: bool
    waiting: int = 0
    requeues: int = 0
    max_waiting: int = 100
    max_requeues: int = 10


@dataclass(frozen=True, slots=True)
class Verdict:
    decision: Decision
    reason: SkipReason | None = None


START = Verdict(Decision.START)
WAIT = Verdict(Decision.WAIT)
REQUEUE = Verdict(Decision.REQUEUE)


def decide(policy: OverlapPolicy, situation: Situation) -> Verdict:
    """Whether the run starts, waits, is tried again later, or is skipped and why."""
    if not situation.held:
        return START
    match policy:
        case OverlapPolicy.SKIP:
            return Verdict(Decision.SKIP, SkipReason.OVERLAP)
        case OverlapPolicy.QUEUE_ONE:
            if situation.waiting:
                return Verdict(Decision.SKIP, SkipReason.OVERLAP)
            return WAIT
        case OverlapPolicy.QUEUE_ALL:
            if situation.waiting >= situation.max_waiting:
                return Verdict(Decision.SKIP, SkipReason.BUFFER_FULL)
            return WAIT
        case OverlapPolicy.REQUEUE:
            if situation.requeues >= situation.max_requeues:
                return Verdict(Decision.SKIP, SkipReason.REQUEUES_EXHAUSTED)
            return REQUEUE
        case _:
            assert_never(policy)
