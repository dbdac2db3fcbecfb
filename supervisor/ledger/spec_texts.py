"""Jobs as texts in the ledger, which another version of this code may have written.

A version knows the keys of its time. What it cannot read - after a rollback, or on a standby that
is not upgraded yet - it leaves to those who can: each such text is told once and passed over.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import structlog
from pydantic import ValidationError

from supervisor.job.guarded_spec import GuardedTaskSpec
from supervisor.job.limits import KEPT_AT_HAND
from supervisor.job.spec import JobSpec
from supervisor.job.when import When

log = structlog.get_logger("supervisor.ledger")


def read_job(text: str) -> JobSpec | None:
    """None for one that this version cannot read."""
    try:
        return JobSpec.model_validate_json(text)
    except ValidationError as error:
        note(text, words(error))
        return None


@lru_cache(maxsize=KEPT_AT_HAND)
def job_spec(text: str) -> JobSpec | None:
    """The same, remembered: what is loaded is read far more often than it changes."""
    return read_job(text)


@lru_cache(maxsize=2_000)
def guarded_spec(text: str) -> GuardedTaskSpec | None:
    """A task that is guarded by code; None and remembered likewise."""
    try:
        return GuardedTaskSpec.model_validate_json(text)
    except ValidationError as error:
        note(text, words(error))
        return None


def times_of(text: str) -> tuple[Any, ...] | None:
    """What JobSpec.when is of a job, also of one whose other keys cannot be read."""
    try:
        said = json.loads(text)
        return When.model_validate({k: said[k] for k in When.model_fields if k in said}).when
    except (ValueError, TypeError):
        return None


def words(error: ValidationError) -> str:
    """Which keys are at fault; never what they say, which may be a secret."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)


@lru_cache(maxsize=10_000)
def note(text: str, problems: str) -> None:
    """Once a process and text."""
    log.error("job cannot be read by this version", job=name_in(text), problems=problems)


def name_in(text: str) -> str | None:
    try:
        return str(json.loads(text)["name"])
    except (ValueError, TypeError, KeyError):
        return None
