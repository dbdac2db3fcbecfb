"""Notices: what people are told of jobs, where to, and in which words. Pure.

An event is one thing that happened to a job. Events of one kind and cause that come close together
go to a destination as one notice; beat/notices.py has the whole way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, field_serializer

from supervisor.times import render_moment


class Event(StrEnum):
    """What a destination may ask for; the first eight are events of jobs."""

    FAILED = "failed"
    RECOVERED = "recovered"
    MISSED = "missed"
    OVERLAPPED = "overlapped"
    LATE = "late"
    SKIPPED = "skipped"
    DUE_BY = "due_by"
    LOST = "lost"
    SCHEDULE_REJECTED = "schedule_rejected"
    NO_BEAT = "no_beat"
    REDIS_UNAVAILABLE = "redis_unavailable"
    TEST = "test"


#: Those of no job, which go where SUPERVISOR_NOTIFY says.
SERVICE_EVENTS = frozenset(
    {Event.SCHEDULE_REJECTED, Event.NO_BEAT, Event.REDIS_UNAVAILABLE, Event.TEST}
)
JOB_EVENTS = frozenset(Event) - SERVICE_EVENTS

#: A late start is told by `missed` and `due_by` where it matters.
DEFAULT_EVENTS = JOB_EVENTS - {Event.LATE}


class Destination(BaseModel):
    """Where notices of a job go, and which."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    url: str = Field(min_length=1, repr=False)
    """An address, or a reference to one such as ${SLACK_URL}; a secret."""
    events: frozenset[Event] = DEFAULT_EVENTS
    """Which events are told there."""
    secret: str | None = Field(default=None, repr=False)
    """What a webhook is signed with, or a reference to it."""

    @field_serializer("events")
    def _in_order(self, events: frozenset[Event]) -> list[str]:
        return [event.value for event in Event if event in events]


class Answer(StrEnum):
    """What a service said. refused: trying again would not help. unavailable: it may."""

    TAKEN = "taken"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"


#: Jobs that a notice names; of the others it says how many there are.
JOBS_NAMED = 20


@dataclass(frozen=True, slots=True)
class Notice:
    """One message to one destination.

    key: the same whenever this message is sent again, and of no other. incident: the same for all
    messages of one cause to one destination, that of its end included. jobs: the first of them, out
    of `job_count`; none for an event of the service. runs: how often it happened. run: the last of
    them. reason: what the last of them said. link: to the page, where its address is known.
    """

    key: str
    incident: str
    event: Event
    cause: str
    jobs: tuple[str, ...]
    job_count: int
    first_at: datetime
    last_at: datetime
    runs: int = 1
    run: str = ""
    reason: str = ""
    link: str = ""

    @property
    def is_good(self) -> bool:
        return self.event is Event.RECOVERED


#: Of one job, and of several.
WORDS = {
    Event.FAILED: ("failed", "failed"),
    Event.RECOVERED: ("recovered", "recovered"),
    Event.MISSED: ("missed a run", "missed runs"),
    Event.OVERLAPPED: ("had runs that overlapped", "had runs that overlapped"),
    Event.LATE: ("is late to start", "are late to start"),
    Event.SKIPPED: ("was skipped too often", "were skipped too often"),
    Event.DUE_BY: ("has not succeeded in time", "have not succeeded in time"),
    Event.LOST: ("lost its worker", "lost their workers"),
}

SERVICE_TITLES = {
    Event.SCHEDULE_REJECTED: "Schedule files were rejected",
    Event.NO_BEAT: "No beat leads",
    Event.REDIS_UNAVAILABLE: "Redis is unavailable",
    Event.TEST: "A test of notices",
}


def title(notice: Notice) -> str:
    """One line: ``import-orders failed: ConnectionError``, ``500 jobs failed: ConnectionError``."""
    if notice.event in SERVICE_TITLES:
        return SERVICE_TITLES[notice.event]
    if not notice.jobs:
        return "The service recovered"
    one, several = WORDS[notice.event]
    is_one = notice.job_count == 1
    subject = f"{notice.jobs[0]} {one}" if is_one else f"{notice.job_count:,} jobs {several}"
    return f"{subject}: {notice.cause}" if notice.cause else subject


def body(notice: Notice) -> str:
    """Plain text, a fact on each line."""
    lines = [_named(notice)] if notice.job_count > 1 else []
    if notice.reason:
        lines.append(notice.reason)
    if notice.is_good and notice.runs:
        lines.append(f"{notice.runs:,} more since {_clock(notice.first_at)}")
    elif notice.runs > max(1, notice.job_count):
        lines.append(f"{notice.runs:,} times since {_clock(notice.first_at)}")
    lines.append(f"Last at {_clock(notice.last_at)}" + (f", {notice.run}" if notice.run else ""))
    if notice.jobs and not notice.is_good:
        lines.append(f"supervisor why {notice.jobs[0]}")
    if notice.link:
        lines.append(notice.link)
    return "\n".join(lines)


def _named(notice: Notice) -> str:
    more = notice.job_count - len(notice.jobs)
    return ", ".join(notice.jobs) + (f" and {more:,} more" if more > 0 else "")


def _clock(moment: datetime) -> str:
    return render_moment(moment.replace(microsecond=0))


#: An exception's class at the beginning of a reason: ``ConnectionError: refused``.
ERROR = re.compile(r"(?:step \S+ )?(?:failed: )?([A-Za-z_][\w.]{0,80})(?=[:(])")


def cause_of(event: Event, reason: str) -> str:
    """Events of one cause go together: the class of an error; else all of one kind."""
    found = ERROR.match(reason) if event is Event.FAILED else None
    return found[1].rpartition(".")[2] if found else ""


def wanted_events(destinations: Sequence[Destination]) -> tuple[str, ...]:
    """Those of a job that any of them asks for, in order."""
    wanted = frozenset().union(*(each.events for each in destinations)) & JOB_EVENTS
    return tuple(event.value for event in Event if event in wanted)
