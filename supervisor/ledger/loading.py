"""Changes of the loaded jobs: what is asked for, and what became of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from supervisor.job.content import content_of_job
from supervisor.job.spec import JobSpec
from supervisor.times import ms_of


@dataclass(frozen=True, slots=True)
class EntryKeys:
    """What keys of RedBeat's entries begin with, and the key of its sorted set."""

    prefix: str
    schedule: str


@dataclass(frozen=True, slots=True)
class JobChange:
    """What is to be done with one job that is loaded or not."""

    job: str
    spec: JobSpec | None
    """None to remove the job, or to change nothing but its place."""

    is_moved: bool = False
    """Whether nothing but its place has changed."""

    version: int | None = None
    """The job's at present, 0 of one that is not loaded; None for any."""

    place: str = ""
    """Where it stands, for people."""

    definition: str = ""
    """Its entry for RedBeat."""

    entry: str = ""
    """The name of that, where it is another than the job's."""

    has_new_times: bool = False
    is_paused: bool | None = None
    """None where that has not changed."""

    next_at: datetime | None = None
    """When a job with new times is next due."""

    due_at: datetime | None = None
    """When it would have been next due as it was: from then on the change is refused."""


class LoadVerdict(StrEnum):
    """What became of changes of loaded jobs; all but the first changed nothing."""

    LOADED = "loaded"
    OUTDATED = "outdated"
    CHANGED = "changed"
    ELSEWHERE = "elsewhere"
    DUE = "due"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class LoadReply:
    """The reply to a change of the loaded jobs."""

    verdict: LoadVerdict
    version: int = 0
    """With which the jobs were loaded."""

    job: str = ""
    """The one that was refused."""

    source: str = ""
    """Of that, where it is another's."""

    jobs: int = 0
    """How many would be loaded at run time."""


def change_entry(change: JobChange) -> dict[str, Any]:
    """The change as load.lua reads it."""
    entry: dict[str, Any] = {"job": change.job, "place": change.place}
    if change.entry:
        entry["entry"] = change.entry
    if change.version is not None:
        entry["version"] = change.version
    if change.due_at:
        entry["due_at"] = ms_of(change.due_at)
    if change.is_moved:
        entry["is_moved"] = True
    if change.spec is None:
        return entry
    entry["spec"] = change.spec.model_dump_json(exclude_defaults=True)
    entry["definition"] = change.definition
    entry["has_new_times"] = change.has_new_times
    if content := content_of_job(change.spec):
        entry["content"] = content
    if change.is_paused is not None:
        entry["is_paused"] = change.is_paused
    if change.next_at:
        entry["next_at"] = ms_of(change.next_at)
    return entry


def load_reply(text: str) -> LoadReply:
    reply = json.loads(text)
    verdict, version = LoadVerdict(reply.pop("verdict")), int(reply.pop("version", 0))
    return LoadReply(verdict, version, **reply)
