"""Notices: the leading beat informs people about jobs.

1. The functions that change a run write an event, with the change itself, where the job's
   `notify` asks for it (events.lua). What no function comes across - a start that is late,
   a `due_by` that has passed - beat finds as it checks the jobs with `notify`, some at each turn.
2. At each turn with events beat makes notices of them, a pure policy
   (features/notices/incidents.py) between a read and a write of the ledger that is all or nothing.
   A beat that dies in between leaves the events to the next one.
3. A notice that is due is sent as one kind of what beat sends (features/outbound/sender.py). What
   happens while its service is unavailable joins it.

A beat that dies between the answer and the ledger, or two that lead in turn, send a notice twice,
with the same key: services that look at it (a webhook's `Idempotency-Key`) take it once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from redis.exceptions import RedisError

from supervisor.beat.turn import BeatContext, Part, Turn
from supervisor.features.notices.incidents import (
    GROUP_WAIT,
    SERVICE,
    PendingNotice,
    by_id,
    notice_of,
    update_incidents,
)
from supervisor.features.notices.keys import Destination, Event, events_of
from supervisor.features.notices.rules import Notice, service_destinations
from supervisor.features.notices.services import missing_extra, send
from supervisor.features.notices.silences import SilenceStore, silenced
from supervisor.features.notices.store import Backlog, NoticeStore, Occurrence
from supervisor.features.outbound.answer import Answer
from supervisor.features.outbound.sender import Result
from supervisor.features.outbound.store import Kind, Unsent
from supervisor.job.secrets import masked_url
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.logs import get_logger
from supervisor.schedule.expectations import interval_of, late_after, next_ticks, usual_duration
from supervisor.settings import NOTIFY, NOTIFY_WAIT, PAGE_URL
from supervisor.times import duration_in, render_moment

log = get_logger("supervisor.notices")

# Making notices.

#: How often in a turn events are dealt with, a few hundred each time.
COMMITS_PER_TURN = 4


@dataclass(frozen=True, slots=True)
class Maker:
    ledger: Ledger

    service: Mapping[str, Destination]
    """Destinations for what concerns the service itself, by id."""

    wait: timedelta = GROUP_WAIT
    """How long a new notice waits for others of its group."""

    def make(self, now: datetime) -> None:
        """Makes notices of what has happened; what is left after a turn's share, in the next."""
        for _ in range(COMMITS_PER_TURN):
            backlog = NoticeStore(self.ledger).backlog(now)
            if not backlog.is_any or not self._deal_with(backlog, now):
                return

    def _deal_with(self, backlog: Backlog, now: datetime) -> bool:
        """Whether it is done; else another beat leads, or did it."""
        specs = self.ledger.some_specs(backlog.jobs - {SERVICE})
        of_jobs = {name: by_id(spec.notify) for name, spec in specs.items()}
        destinations = {**of_jobs, SERVICE: self.service}
        pairs = {*backlog.due}
        for each in backlog.events:
            pairs |= {(id, each.job) for id in destinations.get(each.job, {})}
        snapshot = NoticeStore(self.ledger).read(pairs, self.wait)
        quiet = silenced(specs, SilenceStore(self.ledger).in_force(now))
        update_incidents(
            backlog.events,
            backlog.due,
            destinations,
            snapshot.incidents,
            snapshot.groups,
            now,
            quiet,
        )
        return NoticeStore(self.ledger).commit(backlog, snapshot)


# What no function comes across.

#: All jobs with `notify` are checked once in this time, some at each turn.
EACH_WITHIN = timedelta(seconds=30)
TURNS = 25
JOBS_PER_TURN = 20


class Watch:
    """Checks jobs with `notify` that ask for a late start, or for a `due_by` that has passed."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._store = NoticeStore(ledger)
        self._left: list[str] = []
        self._each = JOBS_PER_TURN
        self._next_at = 0.0

    def check_some(self, now: datetime) -> None:
        if not self._left:
            if time.monotonic() < self._next_at:  # the server's clock may be set back
                return
            self._next_at = time.monotonic() + EACH_WITHIN.total_seconds()
            self._left = self._store.watched()
            self._each = max(JOBS_PER_TURN, -(-len(self._left) // TURNS))
        names, self._left = self._left[: self._each], self._left[self._each :]
        if specs := [s for s in self._ledger.some_specs(names).values() if is_to_be_watched(s)]:
            self._store.observe(self._occurrences(specs, now))

    def _occurrences(self, specs: Sequence[JobSpec], now: datetime) -> list[Occurrence]:
        open_runs = self._ledger.open_runs_of([spec.name for spec in specs])
        occurrences = []
        for job in self._ledger.records_of(specs):
            spec, deadline = job.spec, job.deadline
            if deadline and deadline.at < now:
                reason = f"due by {render_moment(deadline.at)}"
                occurrences.append(occurrence(spec, Event.DUE_BY, deadline.tick, reason))
            runs = open_runs.get(spec.name)
            since = runs.oldest_queued_at if runs else None
            if since:
                interval = interval_of(next_ticks(spec, now))
                durations = self._ledger.durations_of([spec])[spec.name]
                usual = usual_duration(spec, durations, interval)
                if now > since + late_after(spec, interval, usual):
                    occurrences.append(
                        occurrence(spec, Event.LATE, since, f"due at {render_moment(since)}")
                    )
        return occurrences


def is_to_be_watched(spec: JobSpec) -> bool:
    events = events_of(spec.notify)
    return Event.LATE in events or (Event.DUE_BY in events and spec.due_by is not None)


def occurrence(spec: JobSpec, event: Event, mark: datetime, reason: str) -> Occurrence:
    return Occurrence(spec.name, spec.notified_events, event, render_moment(mark), reason)


# All of it, for one beat.

#: A notice has up to this many of the problems of rejected files.
MOST_PROBLEMS = 5

#: Events of the service itself: its files are rejected, or no longer are.
OF_FILES = f"{Event.SCHEDULE_REJECTED} {Event.RECOVERED}"


Deliver = Callable[[Destination, Notice, Mapping[str, str]], tuple[Answer, str]]


class Notices:
    def __init__(
        self,
        ledger: Ledger,
        environ: Mapping[str, str] = os.environ,
        deliver: Deliver = send,
    ) -> None:
        """Raises NotConfigured for what `environ` says wrongly."""
        self._ledger = ledger
        self._store = NoticeStore(ledger)
        self._service = by_id(service_destinations(environ))
        self._maker = Maker(ledger, self._service, duration_in(environ, NOTIFY_WAIT, GROUP_WAIT))
        self._watch = Watch(ledger)
        self._environ = environ
        self._deliver = deliver
        self._problems: Sequence[str] | None = None

    def destinations(self) -> Iterator[Destination]:
        """Those of all jobs and of the service, read as they are asked for. Raises RedisError."""
        yield from self._service.values()
        for spec in (*self._ledger.guarded().values(), *self._ledger.scheduled_with("notify")):
            yield from spec.notify

    def is_due(self, turn: Turn) -> bool:
        return turn.poll.has_watched or turn.poll.has_notices

    def do(self, turn: Turn) -> None:
        """Raises RedisError."""
        try:
            if turn.poll.has_watched:
                self._watch.check_some(turn.poll.at)
            if turn.poll.has_notices:
                self._maker.make(turn.poll.at)
        except RedisError:
            raise
        except Exception:  # notices must not keep beat from its ticks
            log.exception("notices not made")

    def send(self, entry: Unsent) -> Result:
        """Sends one of the notices that were made."""
        pending = PendingNotice.model_validate_json(entry.text)
        to = self._service.get(entry.name)
        if pending.url:
            to = Destination(url=pending.url, secret=pending.secret)
        if to is None:
            return Result(Answer.REFUSED, f"the address is not in {NOTIFY} any more")
        page = self._environ.get(PAGE_URL, "")
        notice = notice_of(pending, entry.key, entry.name, page)
        answer, reason = self._deliver(to, notice, self._environ)
        fields = {"address": str(masked_url(to.url)), "notice": entry.id, "key": entry.key}
        return Result(answer, reason, fields)

    def report_files(self, problems: Sequence[str]) -> None:
        """Reports what is wrong with the schedule files, or that nothing is, when that changes."""
        if self._service and problems != self._problems:
            event = Event.SCHEDULE_REJECTED if problems else Event.RECOVERED
            words = "\n".join(problems[:MOST_PROBLEMS])
            self._store.observe([Occurrence(SERVICE, OF_FILES, event, "", words)])
            self._problems = problems


class FileNotices:
    """Reports schedule files that are rejected, and logs what is missing to send notices."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices
        self._has_checked = False

    def is_due(self, turn: Turn) -> bool:
        return turn.has_read_files and not turn.has_more

    def do(self, turn: Turn) -> None:
        if turn.problems is not None:
            self._notices.report_files(turn.problems)
        if not self._has_checked:
            self._has_checked = True
            if missing := missing_extra(self._notices.destinations()):
                log.warning("notices not sent", reason=missing)


def part(beat: BeatContext) -> Part:
    """Raises NotConfigured for what the environment says wrongly."""
    notices = Notices(beat.ledger)
    beat.senders[Kind.NOTICE] = notices.send
    return Part(deliver=(notices,), follow=(FileNotices(notices),))
