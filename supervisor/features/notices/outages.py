"""What `serve` itself sends notices of: no beat leads, and Redis is unavailable.

The leading beat sends all other notices, and cannot send these. `serve` depends on neither:

1. A thread polls the ledger every `POLL_SECONDS`.
2. An outage is reported once it has lasted for a grace, again every `REPEAT`, and once more when it
   is over (`recovered`). One that ends within the grace is not reported: a planned restart. While
   Redis is unavailable nothing is known of beats; once it is back they have the grace again.
3. While all notices are silenced (features/notices/silences.py), none of these is made; an outage
   that lasts longer is reported then. A ledger that does not answer is taken to have the silences
   that it had.
4. The notices are sent as those of beat are (features/outbound/sender.py), from an outbox in
   memory.

Outages are kept in this process' memory: after a restart of `serve` one that lasts is reported
again, and the end of an earlier one is not. Several `serve` report independently, with the same
keys: that of a beat names its last turn, that of Redis when it was seen, in steps of the grace,
within which no two reported outages begin.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from threading import Thread

from redis.exceptions import RedisError

from supervisor.features.notices.incidents import SERVICE
from supervisor.features.notices.keys import Destination, Event
from supervisor.features.notices.rules import Notice, service_destinations
from supervisor.features.notices.services import send
from supervisor.features.notices.silences import SilenceStore, silenced
from supervisor.features.outbound.sender import Outbound, Result
from supervisor.features.outbound.store import End, Kind, Unsent
from supervisor.job.secrets import masked_url
from supervisor.ledger.ledger import Ledger
from supervisor.logs import get_logger
from supervisor.settings import PAGE_URL, Settings
from supervisor.store.address import database_of
from supervisor.store.failures import NotServed, explained
from supervisor.times import duration_in, ms_of

log = get_logger("supervisor.notices")

POLL_SECONDS = 3.0

#: The variable that says how long an outage lasts before it is reported.
NOTIFY_AFTER = "SUPERVISOR_NOTIFY_AFTER"

GRACE = timedelta(minutes=1)

REPEAT = timedelta(hours=4)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a poll found, `at` an instant of this machine's clock."""

    at: datetime

    error: str = ""
    """Why the ledger did not answer; '' if it did."""

    refusal: str = ""
    """Why the ledger refuses writes, if it does and no beat leads."""

    leads: bool = False

    last_turn_at: datetime | None = None
    """When a leading beat had its last turn; None if there was none yet."""

    silenced_until: datetime | None = None
    """Of all notices, as far as it is known."""

    @property
    def is_silenced(self) -> bool:
        return self.silenced_until is not None and self.at < self.silenced_until


@dataclass(frozen=True, slots=True)
class Outage:
    incident: str

    seen_at: datetime
    """When the first poll found it."""

    first_at: datetime
    reason: str

    reports: int = 0
    """How many were made, the last at `reported_at`."""

    reported_at: datetime | None = None

    def is_due(self, now: datetime, grace: timedelta) -> bool:
        if self.reported_at is None:
            return now - self.seen_at >= grace
        return now - self.reported_at >= REPEAT


Outages = Mapping[Event, Outage]


def after_poll(
    before: Outages, seen: Seen, grace: timedelta, ledger: str
) -> tuple[Outages, list[Notice]]:
    """The outages after a poll, and what is to be sent of them now.

    ledger: its name in the keys: a destination may get notices of several.
    """
    outages, notices = {}, []
    for event in (Event.REDIS_UNAVAILABLE, Event.NO_BEAT):
        outage = before.get(event)
        match is_going_on(event, seen):
            case True:
                outage = outage or outage_of(event, seen, grace, ledger)
                if outage.is_due(seen.at, grace) and not seen.is_silenced:
                    outage = replace(outage, reports=outage.reports + 1, reported_at=seen.at)
                    notices.append(notice_of(event, outage, seen.at, f"{outage.reports}"))
                outages[event] = outage
            case False if outage and outage.reports and not seen.is_silenced:
                outage = replace(outage, reason=OVER[event])
                notices.append(notice_of(Event.RECOVERED, outage, seen.at, "over"))
            case None if outage and outage.reports:
                outages[event] = outage
    return outages, notices


def is_going_on(event: Event, seen: Seen) -> bool | None:
    """None if that cannot be known."""
    if event is Event.REDIS_UNAVAILABLE:
        return bool(seen.error)
    return None if seen.error else not seen.leads


OVER = {Event.NO_BEAT: "a beat leads again", Event.REDIS_UNAVAILABLE: "Redis answers again"}


def outage_of(event: Event, seen: Seen, grace: timedelta, ledger: str) -> Outage:
    step = max(1, int(grace.total_seconds()))
    since, named = seen.at, str(int(seen.at.timestamp()) // step * step)
    if event is Event.NO_BEAT:
        since = seen.last_turn_at or seen.at
        named = str(ms_of(since)) if seen.last_turn_at else "never"
    reason = (
        seen.error
        or seen.refusal
        or "no beat makes turns: nothing is emitted, missed or rescued meanwhile"
    )
    return Outage(f"{event.value}:{ledger}:{named}", seen.at, since, reason)


def notice_of(event: Event, outage: Outage, at: datetime, message: str) -> Notice:
    return Notice(
        key=f"{outage.incident}:{message}",
        incident=outage.incident,
        event=event,
        cause="",
        jobs=(),
        job_count=0,
        first_at=outage.first_at,
        last_at=at,
        runs=int(event is not Event.RECOVERED),
        reason=outage.reason,
    )


def poll(ledger: Ledger, before: Seen | None = None) -> Seen:
    """before: what the poll before this one found."""
    at = datetime.now(UTC)
    try:
        beat = ledger.beat()
        leads = beat.leads(ledger.now())
        refusal = "" if leads else ledger.refusal() or ""
        until = silenced({}, SilenceStore(ledger).in_force(ledger.now())).get(SERVICE)
        return Seen(at, "", refusal, leads, beat.last_tick_at, until)
    except (RedisError, NotServed, OSError) as error:
        until = before.silenced_until if before else None
        return Seen(at, explained(error), silenced_until=until)


class MemoryOutbox:
    """Notices that wait in this process, by destination (features/outbound/sender.py)."""

    def __init__(self, destinations: Sequence[Destination], page: str) -> None:
        self._destinations = {f"{Kind.NOTICE} {n}": to for n, to in enumerate(destinations)}
        self._page = page
        self._waiting: dict[str, list[tuple[Unsent, Notice]]] = {
            to: [] for to in self._destinations
        }
        self._tried_at: dict[str, datetime] = {}

    def put(self, notice: Notice) -> None:
        for destination, waiting in self._waiting.items():
            entry = Unsent(destination, notice.key, "", notice.last_at)
            waiting.append((entry, replace(notice, link=self._page)))

    def due(self, now: datetime) -> list[str]:
        return [d for d, waiting in self._waiting.items() if waiting and self._is_tried(d, now)]

    def unsent(self, destination: str, _: datetime) -> list[Unsent]:
        return [entry for entry, _ in self._waiting[destination]]

    def take_off(self, entry: Unsent, _: End) -> bool:
        self._waiting[entry.destination].pop(0)
        self._tried_at.pop(entry.destination, None)
        return True

    def put_off(self, entry: Unsent, until: datetime) -> bool:
        self._tried_at[entry.destination] = until
        return True

    def send(self, entry: Unsent) -> Result:
        to, (_, notice) = self._destinations[entry.destination], self._waiting[entry.destination][0]
        answer, reason = send(to, notice)
        fields = {"address": str(masked_url(to.url)), "notice": notice.event.value}
        return Result(answer, reason, {**fields, "key": notice.key})

    def _is_tried(self, destination: str, now: datetime) -> bool:
        return self._tried_at.get(destination, now) <= now


def watch(ledger: Ledger, name: str, outbox: MemoryOutbox, grace: timedelta) -> None:
    """Polls for as long as the process lives. name: of the ledger, as in the keys."""
    outbound = Outbound(outbox, {Kind.NOTICE: outbox.send})
    outages: Outages = {}
    seen: Seen | None = None
    while True:
        try:
            seen = poll(ledger, seen)
            outages, notices = after_poll(outages, seen, grace, name)
            for notice in notices:
                outbox.put(notice)
            outbound.send_due(datetime.now(UTC))
        except Exception:  # whatever failed, the next poll must happen
            log.exception("look failed")
        time.sleep(POLL_SECONDS)


def start(ledger: Ledger, settings: Settings) -> None:
    """Starts the watch if notices have destinations. Raises NotConfigured."""
    destinations = service_destinations(os.environ)
    grace = duration_in(os.environ, NOTIFY_AFTER, GRACE)
    if destinations:
        outbox = MemoryOutbox(destinations, os.environ.get(PAGE_URL, ""))
        arguments = (ledger, name_of(settings), outbox, grace)
        Thread(target=watch, args=arguments, name="supervisor-outages", daemon=True).start()


def name_of(settings: Settings) -> str:
    """A name for the ledger, the same wherever its settings are; it does not reveal the address."""
    database = database_of(settings.redis_url)
    return sha256(f"{database} {settings.prefix}".encode()).hexdigest()[:12]
