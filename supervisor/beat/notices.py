"""Notices: the leading beat informs people about jobs.

1. The functions that change a run write an event, with the change itself, where the job's
   `notify` asks for it (ledger/accounts.lua). What no function comes across - a start that is late,
   a `due_by` that has passed - beat finds as it looks at the jobs with `notify`, some at each turn.
2. At each turn with events beat makes notices of them, a pure policy (job/incidents.py) between a
   read and a write of the ledger that is all or nothing. A beat that dies in between leaves the
   events to the next one.
3. A notice that is due is sent by a thread, one for each destination, in order. It is taken off the
   ledger when the service took it.
4. A service that is unavailable is asked again after waits that double, up to an hour; meanwhile
   what happens joins the notices that wait for it. After a day a notice is dropped, logged and
   counted; so is one that the service refuses, at once.

A beat that dies between the answer and the ledger, or two that lead in turn, send a notice twice,
with the same key: services that look at it (a webhook's `Idempotency-Key`) take it once.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

from redis.exceptions import RedisError

from supervisor.integrations import Send
from supervisor.job.changes import masked_url
from supervisor.job.incidents import GROUP_WAIT, SERVICE, by_id, fold, notice_of
from supervisor.job.notices import (
    Answer,
    Destination,
    Event,
    service_destinations,
    wanted_events,
)
from supervisor.job.spec import JobSpec
from supervisor.ledger.leader import Look
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.notifications import Backlog, Finding, Unsent
from supervisor.ledger.requests import Leadership
from supervisor.logs import get_logger
from supervisor.settings import NOTIFY, NOTIFY_WAIT, PAGE_URL
from supervisor.ticks.expectations import interval_of, late_after, next_ticks, usual_duration
from supervisor.times import duration_in, render_moment

log = get_logger("supervisor.notices")

# Making notices.

#: How often in a turn events are dealt with, a few hundred each time.
COMMITS_PER_TURN = 4


@dataclass(frozen=True, slots=True)
class Maker:
    """service: destinations for what concerns the service itself. wait: as in the policy."""

    ledger: Ledger
    leadership: Leadership
    service: Mapping[str, Destination]
    wait: timedelta = GROUP_WAIT

    def make(self, now: datetime) -> None:
        """Makes notices of what has happened; what is left after a turn's share, in the next."""
        for _ in range(COMMITS_PER_TURN):
            backlog = self.ledger.notices.backlog(now)
            if not backlog.is_any or not self._deal_with(backlog, now):
                return

    def _deal_with(self, backlog: Backlog, now: datetime) -> bool:
        """Whether it is done; else another beat leads, or did it."""
        specs = self.ledger.some_specs(backlog.jobs - {SERVICE})
        destinations = {name: by_id(spec.notify) for name, spec in specs.items()}
        destinations[SERVICE] = self.service
        pairs = {*backlog.due}
        for each in backlog.happened:
            pairs |= {(id, each.job) for id in destinations.get(each.job, {})}
        known = self.ledger.notices.read(pairs, self.wait)
        fold(backlog.happened, backlog.due, destinations, known.incidents, known.boxes, now)
        return self.ledger.notices.commit(backlog, known, self.leadership)


# What no function comes across.

#: All jobs with `notify` are looked at once in this time, some at each turn.
EACH_WITHIN = timedelta(seconds=30)
TURNS = 25
JOBS_PER_TURN = 20


class Watch:
    """Looks at jobs with `notify` that ask for a late start, or for a `due_by` that has passed."""

    def __init__(self, ledger: Ledger, leadership: Leadership) -> None:
        self._ledger = ledger
        self._leadership = leadership
        self._left: list[str] = []
        self._each = JOBS_PER_TURN
        self._next_at: datetime | None = None

    def look(self, now: datetime) -> None:
        if not self._left:
            if self._next_at and now < self._next_at:
                return
            self._next_at = now + EACH_WITHIN
            self._left = self._ledger.notices.watched()
            self._each = max(JOBS_PER_TURN, -(-len(self._left) // TURNS))
        names, self._left = self._left[: self._each], self._left[self._each :]
        if specs := [s for s in self._ledger.some_specs(names).values() if is_to_be_watched(s)]:
            self._ledger.notices.note(self._findings(specs, now), self._leadership)

    def _findings(self, specs: Sequence[JobSpec], now: datetime) -> list[Finding]:
        open_runs = self._ledger.open_runs_of([spec.name for spec in specs])
        found = []
        for job in self._ledger.records_of(specs):
            spec, deadline = job.spec, job.deadline
            if deadline and deadline.at < now:
                reason = f"due by {render_moment(deadline.at)}"
                found.append(finding(spec, Event.DUE_BY, deadline.tick, reason))
            runs = open_runs.get(spec.name)
            since = runs.oldest_queued_at if runs else None
            if since:
                interval = interval_of(next_ticks(spec, now))
                usual = usual_duration(spec, job.durations, interval)
                if now > since + late_after(spec, interval, usual):
                    found.append(finding(spec, Event.LATE, since, f"due at {render_moment(since)}"))
        return found


def is_to_be_watched(spec: JobSpec) -> bool:
    wanted = wanted_events(spec.notify)
    return Event.LATE in wanted or (Event.DUE_BY in wanted and spec.due_by is not None)


def finding(spec: JobSpec, event: Event, mark: datetime, reason: str) -> Finding:
    return Finding(spec.name, spec.events_told, event, render_moment(mark), reason)


# Sending.

GIVE_UP_AFTER = timedelta(days=1)
FIRST_WAIT = timedelta(seconds=5)
LONGEST_WAIT = timedelta(hours=1)
DEADLINE_SECONDS = 10.0

#: Destinations whose last message failed or was slow have half of the threads at most.
MOST_THREADS = 8
MOST_SLOW_THREADS = MOST_THREADS // 2
SLOW_SECONDS = 3.0


class Messenger:
    """Sends the notices that are due, those of several destinations side by side.

    service: as for a Maker. page: where people see the service, for links.
    """

    def __init__(
        self, ledger: Ledger, send: Send, service: Mapping[str, Destination], page: str = ""
    ) -> None:
        self._ledger = ledger
        self._send = send
        self._service = service
        self._page = page
        self._due: deque[str] = deque()
        self._sending: set[str] = set()
        self._slow: set[str] = set()
        self._lock = threading.Lock()

    def look(self, now: datetime) -> None:
        """Returns at once; threads send the notices and end by themselves."""
        due = deque(self._ledger.notices.due(now))
        with self._lock:
            self._due = due
        while (destination := self._next()) is not None:
            threading.Thread(
                target=self._run, args=(destination, now), name="supervisor-notices", daemon=True
            ).start()

    def _next(self) -> str | None:
        """A destination that a thread may send to, which it then counts as begun."""
        with self._lock:
            for destination in self._due if len(self._sending) < MOST_THREADS else ():
                is_slow = destination in self._slow
                has_room = not is_slow or len(self._sending & self._slow) < MOST_SLOW_THREADS
                if destination not in self._sending and has_room:
                    self._due.remove(destination)
                    self._sending.add(destination)
                    return destination
            return None

    def _run(self, first: str, now: datetime) -> None:
        """Serves one destination after the other, until there is none that this thread may take."""
        destination: str | None = first
        began = time.monotonic()
        while destination is not None:
            self._send_to(destination, now + since(began))
            destination = self._next()

    def _send_to(self, destination: str, now: datetime) -> None:
        began, is_done = time.monotonic(), False
        try:
            is_done = self._send_all(destination, now)
        except RedisError as error:
            log.warning("notices not sent", destination=destination, error=str(error))
        finally:
            is_slow = not is_done or time.monotonic() - began > SLOW_SECONDS
            with self._lock:
                self._sending.discard(destination)
                (self._slow.add if is_slow else self._slow.discard)(destination)

    def _send_all(self, destination: str, now: datetime) -> bool:
        """Whether none failed; those behind one that did wait with it."""
        notices, waited = self._ledger.notices.unsent(destination, now)
        return all(self._is_done_with(notice, waited, now) for notice in notices)

    def _is_done_with(self, unsent: Unsent, waited: timedelta, now: datetime) -> bool:
        """Whether the next one may be sent."""
        began = time.monotonic()
        answer, error = self._answer(unsent)
        now += since(began)
        facts = {
            "destination": unsent.destination,
            "address": self._shown(unsent),
            "notice": unsent.id,
            "key": unsent.key,
        }
        match answer:
            case Answer.TAKEN:
                self._ledger.notices.sent(unsent)
                log.info("notice sent", **facts)
                return True
            case Answer.REFUSED:
                self._ledger.notices.drop(unsent)
                log.error("notice dropped", **facts, reason=error)
                return True
            case Answer.UNAVAILABLE if now - unsent.pending.due_at > GIVE_UP_AFTER:
                self._ledger.notices.drop(unsent)
                log.error("notice dropped", **facts, reason="too old", error=error)
                return False
            case Answer.UNAVAILABLE:
                wait = min(max(FIRST_WAIT, 2 * waited), LONGEST_WAIT)
                self._ledger.notices.put_off(unsent, now + wait, wait)
                log.warning("notice not sent", **facts, error=error, again_in=wait.total_seconds())
                return False
            case _:
                assert_never(answer)

    def _answer(self, unsent: Unsent) -> tuple[Answer, str]:
        to = self._to(unsent)
        if to is None:
            return Answer.REFUSED, f"the address is not in {NOTIFY} any more"
        notice = notice_of(unsent.pending, unsent.key, unsent.destination, self._page)
        try:
            return self._send(to, notice, deadline_seconds=DEADLINE_SECONDS)
        except Exception as error:  # noqa: BLE001 - each service's code has errors of its own
            return Answer.UNAVAILABLE, type(error).__name__

    def _to(self, unsent: Unsent) -> Destination | None:
        pending = unsent.pending
        if pending.url:
            return Destination(url=pending.url, secret=pending.secret)
        return self._service.get(unsent.destination)

    def _shown(self, unsent: Unsent) -> str | None:
        """The address as the log shows it: the reference, or the service, and no secret."""
        to = self._to(unsent)
        return masked_url(to.url) if to else None


def since(began: float) -> timedelta:
    """began: on the monotonic clock."""
    return timedelta(seconds=time.monotonic() - began)


# All of it, for one beat.

#: A notice has up to this many of the problems of rejected files.
MOST_PROBLEMS = 5

#: Events of the service itself: its files are rejected, or no longer are.
OF_FILES = f"{Event.SCHEDULE_REJECTED} {Event.RECOVERED}"


class Notices:
    def __init__(
        self,
        ledger: Ledger,
        leadership: Leadership,
        send: Send,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Raises NotConfigured for what `environ` says wrongly."""
        self._ledger = ledger
        self._leadership = leadership
        self._service = by_id(service_destinations(environ))
        self._maker = Maker(
            ledger, leadership, self._service, duration_in(environ, NOTIFY_WAIT, GROUP_WAIT)
        )
        self._watch = Watch(ledger, leadership)
        self._messenger = Messenger(ledger, send, self._service, environ.get(PAGE_URL, ""))
        self._problems: Sequence[str] | None = None

    def destinations(self) -> Iterator[Destination]:
        """Those of all jobs and of the service, read as they are asked for. Raises RedisError."""
        yield from self._service.values()
        for spec in (*self._ledger.guarded().values(), *self._ledger.scheduled_with("notify")):
            yield from spec.notify

    def look(self, look: Look) -> None:
        """Raises RedisError."""
        try:
            if look.has_watched:
                self._watch.look(look.at)
            if look.has_notices:
                self._maker.make(look.at)
                self._messenger.look(look.at)
        except RedisError:
            raise
        except Exception:  # notices must not keep beat from its ticks
            log.exception("notices not made")

    def tell_of_files(self, problems: Sequence[str]) -> None:
        """Reports what is wrong with the schedule files, or that nothing is, when that changes."""
        if self._service and problems != self._problems:
            event = Event.SCHEDULE_REJECTED if problems else Event.RECOVERED
            words = "\n".join(problems[:MOST_PROBLEMS])
            found = Finding(SERVICE, OF_FILES, event, "", words)
            self._ledger.notices.note([found], self._leadership)
            self._problems = problems
