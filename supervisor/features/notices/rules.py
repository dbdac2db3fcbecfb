"""Notices: messages about jobs, where they are sent, and how they are worded. Pure.

An event is one thing that happened to a job. Events of one kind and cause that come close together
go to a destination as one notice; features/notices/step.py has the whole way. Destinations are
named by the key `notify` and by the setting SUPERVISOR_NOTIFY: an address is a secret, and no
message has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from supervisor.errors import NotConfigured
from supervisor.features.notices.keys import SERVICE_EVENTS, Destination, Event, destination_fault
from supervisor.job.secrets import FORMS, malformed
from supervisor.settings import NOTIFY
from supervisor.times import render_moment

#: Jobs that a notice names; of the others it says how many there are.
JOBS_NAMED = 20


@dataclass(frozen=True, slots=True)
class Notice:
    """One message to one destination."""

    key: str
    """The same whenever this message is sent again, and of no other message."""

    incident: str
    """The same for all messages of one cause to one destination, that of its end included."""

    event: Event
    cause: str

    jobs: tuple[str, ...]
    """The first of `job_count`; none for an event of the service."""

    job_count: int
    first_at: datetime
    last_at: datetime

    runs: int = 1
    """How often it happened."""

    run: str = ""
    """The id of the last of them."""

    reason: str = ""
    """That of the last of them."""

    link: str = ""
    """To the page, where its address is known."""

    @property
    def is_good(self) -> bool:
        return self.event is Event.RECOVERED


#: Each event in a sentence about one job, and about several.
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
    Event.DAILY: "The summary of a day",
    Event.TEST: "A test of notices",
}


def title(notice: Notice) -> str:
    """One line: ``import-orders failed: ConnectionError``, ``500 jobs failed: ConnectionError``."""
    if notice.event is Event.DAILY:
        return notice.reason.partition("\n")[0]
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
    if notice.event is Event.DAILY:
        _, _, rest = notice.reason.partition("\n")
        return "\n".join(filter(None, [rest, notice.link]))
    lines = [_named(notice)] if notice.job_count > 1 else []
    if notice.reason:
        lines.append("".join(c if c.isprintable() else " " for c in notice.reason))
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
    match = ERROR.match(reason) if event is Event.FAILED else None
    return match[1].rpartition(".")[2] if match else ""


# Notices of the service itself.

#: Between two addresses; a comma inside of one, as of several recipients, is a part of it.
BETWEEN = re.compile(r",(?=[A-Za-z][A-Za-z0-9+.-]*://|\$\{)")


def service_destinations(environ: Mapping[str, str]) -> tuple[Destination, ...]:
    """The destinations in SUPERVISOR_NOTIFY, for notices of the service. Raises NotConfigured."""
    words = [word.strip(",") for word in environ.get(NOTIFY, "").split()]
    urls = [url for word in words for url in BETWEEN.split(word) if url]
    for number, url in enumerate(urls, 1):
        if malformed(url):
            raise NotConfigured(
                f"{NOTIFY}: address {number} has a reference that is none ({FORMS})"
            )
        if what := destination_fault(url):
            raise NotConfigured(f"{NOTIFY}: address {number} is {what}")
    events = SERVICE_EVENTS | {Event.RECOVERED}
    return tuple(Destination(url=url, events=events) for url in urls)
