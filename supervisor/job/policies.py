"""The policies of a job, and the decision about a run that would overlap."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never


class Catchup(StrEnum):
    """What happens to ticks that passed while no beat could emit them."""

    NONE = "none"
    LATEST = "latest"
    ALL = "all"


class OnCrash(StrEnum):
    """What happens to a run whose worker died."""

    RERUN = "rerun"
    FAIL = "fail"


class OnLeaseLost(StrEnum):
    """What a run does when it learns that another run may have its lease."""

    ABORT = "abort"
    CONTINUE = "continue"


class RunLog(StrEnum):
    """What is kept of a run: what it reports and how it failed; with capture, also what it logs."""

    REPORTED = "reported"
    CAPTURE = "capture"
    NONE = "none"


class OnStepFailure(StrEnum):
    """What a run of several steps does when one of them failed after its retries."""

    STOP = "stop"
    CONTINUE = "continue"


class OnItemFailure(StrEnum):
    """What a batch does when one of its items failed after its retries."""

    FAIL = "fail"
    IGNORE = "ignore"
    THRESHOLD = "threshold"


class AfterMatch(StrEnum):
    """Which runs of the jobs that a job follows belong together."""

    SAME_TIME = "same_time"
    LATEST = "latest"


class AfterPolicy(StrEnum):
    """How the runs of those jobs must have ended."""

    SUCCESS = "success"
    DONE = "done"


# What happens to a run that would overlap: the policy as a pure function.
#
# `ledger/placing.lua` takes the same decision inside Redis, where it is atomic; this function is
# its oracle in the tests.


class OverlapPolicy(StrEnum):
    """The word after ``overlap:`` in a schedule file."""

    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    QUEUE_ALL = "queue_all"
    REQUEUE = "requeue"
    REPLACE = "replace"
    ALLOW = "allow"


class OnMaxSkips(StrEnum):
    """The word after ``then:``: what becomes of a run once `max_consecutive_skips` is reached."""

    ALERT = "alert"
    QUEUE_ONE = "queue_one"
    REPLACE = "replace"


class Decision(StrEnum):
    START = "start"
    WAIT = "wait"
    REQUEUE = "requeue"
    REPLACE = "replace"
    SKIP = "skip"


class SkipReason(StrEnum):
    """Label ``reason`` of supervisor_runs_skipped_total.

    The last four are not decided here: a newer run replaced one that waited; a run waited for
    `max_wait`; the run in the way had not begun because nothing does on a server that is new; a run
    that it was to follow did not succeed.
    """

    OVERLAP = "overlap"
    BUFFER_FULL = "buffer_full"
    REQUEUES_EXHAUSTED = "requeues_exhausted"
    REPLACED = "replaced"
    WAIT_EXPIRED = "wait_expired"
    GRACE = "grace"
    UPSTREAM = "upstream"


@dataclass(frozen=True, slots=True)
class Situation:
    """What the lock of a run looks like at the moment of the decision.

    running: runs that hold the lock and are not done, queued ones included.
    max_running: how many may; None for any number.
    waiting: runs already waiting for this lock.
    requeues: how often this very run was re-queued before.
    skips: runs of the job skipped since one began; max_skips: how many may be, None for any number.
    """

    running: int
    max_running: int | None = 1
    waiting: int = 0
    requeues: int = 0
    skips: int = 0
    max_waiting: int = 100
    max_requeues: int = 10
    max_skips: int | None = None
    on_max_skips: OnMaxSkips = OnMaxSkips.ALERT

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
