"""What `serve` itself sends notices of: no beat leads, and Redis is unavailable.

The leading beat sends all other notices, and cannot send these. `serve` depends on neither:

1. A thread looks at the ledger every `LOOK_SECONDS`.
2. An outage is reported once it has lasted for a grace, again every `REPEAT`, and once more when it
   is over (`recovered`). One that ends within the grace is not reported: a planned restart. While
   Redis is unavailable nothing is known of beats; once it is back they have the grace again.
3. Each destination has a thread, which sends what there is in order, and tries again after waits
   that double. One that hangs delays nothing else.

Outages are kept in this process' memory: after a restart of `serve` one that lasts is reported
again, and the end of an earlier one is not. Several `serve` report independently, with the same
keys: that of a beat names its last turn, that of Redis when it was seen, in steps of the grace,
within which no two reported outages begin.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from queue import SimpleQueue
from threading import Thread

from redis.exceptions import RedisError

from supervisor.integrations import sender
from supervisor.job.changes import masked_url
from supervisor.job.notices import Answer, Destination, Event, Notice
from supervisor.ledger.connection import NotServed, explained
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import ms_of
from supervisor.logs import get_logger
from supervisor.settings import Settings, database_of

log = get_logger("supervisor.notices")

LOOK_SECONDS = 3.0

#: The variable that says how long an outage lasts before it is reported.
NOTIFY_AFTER = "SUPERVISOR_NOTIFY_AFTER"

GRACE = timedelta(minutes=1)

REPEAT = timedelta(hours=4)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look found, `at` an instant of this machine's clock.

    error: why the ledger did not answer, "" if it did. last_turn_at: of a leading beat, None if
    there was none yet.
    """

    at: datetime
    error: str = ""
    leads: bool = False
    last_turn_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Outage:
    """`seen_at`: by the first look that found it. reports: how many, the last at `reported_at`."""

    incident: str
    seen_at: datetime
    first_at: datetime
    reason: str
    reports: int = 0
    reported_at: datetime | None = None

    def is_due(self, now: datetime, grace: timedelta) -> bool:
        if self.reported_at is None:
            return now - self.seen_at >= grace
        return now - self.reported_at >= REPEAT


Outages = Mapping[Event, Outage]


def after_look(
    known: Outages, seen: Seen, grace: timedelta, ledger: str
) -> tuple[Outages, list[Notice]]:
    """The outages after a look, and what is to be sent of them now.

    ledger: its name in the keys: a destination may get notices of several.
    """
    outages, notices = {}, []
    for event in (Event.REDIS_UNAVAILABLE, Event.NO_BEAT):
        outage = known.get(event)
        match is_there(event, seen):
            case True:
                outage = outage or found(event, seen, grace, ledger)
                if outage.is_due(seen.at, grace):
                    outage = replace(outage, reports=outage.reports + 1, reported_at=seen.at)
                    notices.append(notice_of(event, outage, seen.at, f"{outage.reports}"))
                outages[event] = outage
            case False if outage and outage.reports:
                outage = replace(outage, reason=OVER[event])
                notices.append(notice_of(Event.RECOVERED, outage, seen.at, "over"))
            case None if outage and outage.reports:
                outages[event] = outage
    return outages, notices


def is_there(event: Event, seen: Seen) -> bool | None:
    """Whether there is an outage; None if that cannot be known."""
    if event is Event.REDIS_UNAVAILABLE:
        return bool(seen.error)
    return None if seen.error else not seen.leads


OVER = {Event.NO_BEAT: "a beat leads again", Event.REDIS_UNAVAILABLE: "Redis answers again"}


def found(event: Event, seen: Seen, grace: timedelta, ledger: str) -> Outage:
    step = max(1, int(grace.total_seconds()))
    since, named = seen.at, str(int(seen.at.timestamp()) // step * step)
    if event is Event.NO_BEAT:
        since = seen.last_turn_at or seen.at
        named = str(ms_of(since)) if seen.last_turn_at else "never"
    reason = seen.error or "no beat makes turns: nothing is emitted, missed or rescued meanwhile"
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


def look(ledger: Ledger) -> Seen:
    at = datetime.now(UTC)
    try:
        beat = ledger.beat()
        return Seen(at, leads=beat.leads(ledger.now()), last_turn_at=beat.last_tick_at)
    except (RedisError, NotServed, OSError) as error:
        return Seen(at, error=explained(error))


# Sending.


FIRST_WAIT_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 60.0

DEADLINE_SECONDS = 10.0

GIVE_UP_AFTER = timedelta(days=1)


class Courier:
    """Sends notices to one destination, in order, from a thread of its own."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._notices = SimpleQueue[Notice]()
        Thread(target=self._run, name="supervisor-outages", daemon=True).start()

    def take(self, notice: Notice) -> None:
        """Returns at once."""
        self._notices.put(notice)

    def _run(self) -> None:
        while True:
            self._deliver(self._notices.get())

    def _deliver(self, notice: Notice) -> None:
        address = masked_url(self._destination.url)
        facts = {"address": address, "notice": notice.event.value, "key": notice.key}
        wait, until = FIRST_WAIT_SECONDS, time.monotonic() + GIVE_UP_AFTER.total_seconds()
        while True:
            answer, error = sender()(self._destination, notice, deadline_seconds=DEADLINE_SECONDS)
            if answer is not Answer.UNAVAILABLE or time.monotonic() > until:
                break
            log.warning("notice not sent", **facts, error=error, again_in=wait)
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
        if answer is Answer.TAKEN:
            log.info("notice sent", **facts)
        else:
            log.error("notice dropped", **facts, reason=error)


def watch(
    ledger: Ledger, name: str, destinations: Iterable[Destination], grace: timedelta, page: str
) -> None:
    """Looks for as long as the process lives. name: of the ledger, as in the keys. page: of all
    jobs, where its address is known."""
    couriers = [Courier(destination) for destination in destinations]
    outages: Outages = {}
    while True:
        try:
            outages, notices = after_look(outages, look(ledger), grace, name)
            for notice in notices:
                for courier in couriers:
                    courier.take(replace(notice, link=page))
        except Exception:  # whatever failed, the next look must happen
            log.exception("look failed")
        time.sleep(LOOK_SECONDS)


def name_of(settings: Settings) -> str:
    """A name for the ledger, the same wherever its settings are; it does not reveal the address."""
    database = database_of(settings.redis_url)
    return sha256(f"{database} {settings.prefix}".encode()).hexdigest()[:12]
