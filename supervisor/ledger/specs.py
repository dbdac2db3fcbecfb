"""Jobs as texts in the ledger, which another version of this code may have written.

A version knows the keys of its time. A job that it cannot read - after a rollback, or on a standby
that is not upgraded yet - is logged once and passed over.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import ValidationError

from supervisor.job.spec import KEPT_AT_HAND, VARYING_KEYS, GuardedTaskSpec, JobSpec
from supervisor.job.when import When
from supervisor.logs import get_logger

log = get_logger("supervisor.ledger")


S = TypeVar("S", bound=JobSpec)


def read_job(text: str) -> JobSpec | None:
    """The job; None if this version cannot read it.

    What jobs have in common is validated once; they differ in what is their own.
    """
    try:
        keys = json.loads(text)
        own = {key: keys.pop(key) for key in VARYING_KEYS if key in keys}
    except (ValueError, TypeError, AttributeError):
        return read_spec(JobSpec, text)
    is_known = "name" in own and all(type(own[key]) is VARYING_KEYS[key] for key in own)
    kind = _kind(json.dumps(keys)) if is_known and "after" not in keys else None
    if kind is None:  # one that follows others may not follow itself
        return read_spec(JobSpec, text)
    if "args" in own:
        own["args"] = tuple(own["args"])
    return kind.varied(own)


def read_spec(kind: type[S], text: str) -> S | None:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        note(text, words(error))
        return None


@lru_cache(maxsize=1_000)
def _kind(text: str) -> JobSpec | None:
    """A job that stands for all of its kind, of JSON; None if this version cannot read it."""
    try:
        return JobSpec.model_validate({**json.loads(text), "name": "any"})
    except ValidationError:
        return None


@lru_cache(maxsize=KEPT_AT_HAND)
def job_spec(text: str) -> JobSpec | None:
    """The same, cached: jobs are read far more often than they change."""
    return read_job(text)


@lru_cache(maxsize=KEPT_AT_HAND)
def guarded_spec(text: str) -> GuardedTaskSpec | None:
    """The same for a task that is guarded by code."""
    return read_spec(GuardedTaskSpec, text)


def times_of(text: str) -> tuple[Any, ...] | None:
    """JobSpec.when of a job, even if its other keys cannot be read."""
    try:
        keys = json.loads(text)
        return When.model_validate({k: keys[k] for k in When.model_fields if k in keys}).when
    except (ValueError, TypeError):
        return None


def words(error: ValidationError) -> str:
    """Which keys are at fault; never their values, which may be secret."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)


@lru_cache(maxsize=10_000)
def note(text: str, problems: str) -> None:
    """Logged once for each text in a process."""
    log.error("job not read by this version", job=name_in(text), problems=problems)


def name_in(text: str) -> str | None:
    try:
        return str(json.loads(text)["name"])
    except (ValueError, TypeError, KeyError):
        return None
