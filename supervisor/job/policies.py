"""The policies of a job: the words of a schedule file, and why a run is skipped."""

from __future__ import annotations

from enum import StrEnum


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


class OverlapPolicy(StrEnum):
    """What happens to a run that would overlap: decided in ledger/placing.lua."""

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


class SkipReason(StrEnum):
    """Label ``reason`` of supervisor_runs_skipped_total.

    overlap, buffer_full, requeues_exhausted: as the policy says. replaced: a newer run replaced one
    that waited. wait_expired: it waited for `max_wait`. grace: the run in the way had not begun
    because nothing does on a server that is new. upstream: a run that it follows did not succeed.
    """

    OVERLAP = "overlap"
    BUFFER_FULL = "buffer_full"
    REQUEUES_EXHAUSTED = "requeues_exhausted"
    REPLACED = "replaced"
    WAIT_EXPIRED = "wait_expired"
    GRACE = "grace"
    UPSTREAM = "upstream"
