"""The words a schedule file may use for what is done when things go wrong."""

from __future__ import annotations

from enum import StrEnum


class Catchup(StrEnum):
    """What is done with ticks that passed while nothing could emit them."""

    NONE = "none"
    LATEST = "latest"
    ALL = "all"


class OnCrash(StrEnum):
    """What is done with a run whose worker died."""

    RERUN = "rerun"
    FAIL = "fail"


class OnLeaseLost(StrEnum):
    """What a run does that learns that its lease may be another's."""

    ABORT = "abort"
    CONTINUE = "continue"


class OnStepFailure(StrEnum):
    """What a run of several steps does when one of them failed after its retries."""

    STOP = "stop"
    CONTINUE = "continue"


class OnItemFailure(StrEnum):
    """What a batch does when one of its items failed after its retries."""

    FAIL = "fail"
    IGNORE = "ignore"
    THRESHOLD = "threshold"
