"""What placing.lua decides about a run that would overlap, as a pure function for the model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from supervisor.job.policies import OnMaxSkips, OverlapPolicy, SkipReason


class Decision(StrEnum):
    START = "start"
    WAIT = "wait"
    REQUEUE = "requeue"
    REPLACE = "replace"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Situation:
    """What the lock of a run looks like at the moment of the decision; None: any number."""

    running: int
    """Runs that hold the lock and are not done, queued ones included."""

    max_running: int | None
    waiting: int
    """Runs that wait for the lock."""

    requeues: int
    """How often this very run was re-queued."""

    skips: int
    """Runs of the job that were skipped since one began."""

    max_waiting: int
    max_requeues: int
    max_skips: int | None
    on_max_skips: OnMaxSkips

    @property
    def is_free(self) -> bool:
        """Whether the run may start at once; no run overtakes those that wait."""
        if self.max_running is None:
            return True
        return self.running < self.max_running and not self.waiting

    @property
    def is_skipped_too_often(self) -> bool:
        return self.max_skips is not None and self.skips >= self.max_skips


@dataclass(frozen=True, slots=True)
class Verdict:
    decision: Decision
    reason: SkipReason | None = None


START = Verdict(Decision.START)
WAIT = Verdict(Decision.WAIT)
REQUEUE = Verdict(Decision.REQUEUE)
REPLACE = Verdict(Decision.REPLACE)


def decide(policy: OverlapPolicy, situation: Situation) -> Verdict:
    """Whether the run starts, waits, is tried again later, replaces another, or is skipped."""
    if situation.is_free:
        return START
    verdict = when_not_free(policy, situation)
    if verdict.decision is not Decision.SKIP or not situation.is_skipped_too_often:
        return verdict
    match situation.on_max_skips:
        case OnMaxSkips.ALERT:
            return verdict
        case OnMaxSkips.QUEUE_ONE:
            return when_not_free(OverlapPolicy.QUEUE_ONE, situation)
        case OnMaxSkips.REPLACE:
            return when_not_free(OverlapPolicy.REPLACE, situation)
        case _:
            assert_never(situation.on_max_skips)


def when_not_free(policy: OverlapPolicy, situation: Situation) -> Verdict:
    match policy:
        case OverlapPolicy.SKIP | OverlapPolicy.ALLOW:
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
        case OverlapPolicy.REPLACE:
            return REPLACE
        case _:
            assert_never(policy)
