"""What the functions write down for the leading beat to send: pings, revocations, and notices.

**Pings** and **revocations** are lists of JSON. An entry is taken off once it was sent.

**Notices** are made of the events of jobs:

1. The functions write events into a list, with the change of state itself (accounts.lua).
2. The leading beat reads some of them, and what is known of their jobs at their destinations:
   `read`. A pure policy decides (job/incidents.py).
3. It writes notices and incidents, and takes the events off the list, in one function: `commit`
   (fold.lua). A beat that dies before that leaves the events to the next one.
4. A thread sends a notice, and takes it off with `answered` (answered.lua), if it is still what was
   sent. A beat that dies in between sends the same again, under the same key.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import chain
from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from supervisor.job.incidents import GROUP_WAIT, Box, Facts, Happened, Incident, Pair, Pending
from supervisor.job.notices import Event
from supervisor.ledger.connection import Client
from supervisor.ledger.functions import Functions, digest
from supervisor.ledger.keys import Keys
from supervisor.ledger.records import BeatRecord, beat_from
from supervisor.ledger.replies import instant, ms_of
from supervisor.ledger.requests import Leadership
from supervisor.logs import get_logger
from supervisor.times import to_ms

log = get_logger("supervisor.ledger")


class ListEntry(BaseModel):
    """An entry of a list of runs that began or ended. text: as it stands in the list."""

    model_config = ConfigDict(frozen=True)

    run: str
    job: str
    at: Annotated[datetime, BeforeValidator(instant)]
    outcome: str
    reason: str
    text: str = Field(repr=False)


E = TypeVar("E", bound=ListEntry)


class SendQueue(Generic[E]):
    """The entries of one list, until a beat is done with them."""

    def __init__(self, client: Client, key: str, kind: type[E]) -> None:
        self._client = client
        self._key = key
        self._kind = kind

    def oldest(self, limit: int) -> list[E]:
        """An entry that cannot be read is dropped and logged: another program has written it."""
        found = []
        for text in self._client.lrange(self._key, 0, limit - 1):
            try:
                found.append(self._kind.model_validate({**json.loads(text), "text": text}))
            except (ValueError, TypeError, OverflowError):
                if self._remove(text):
                    log.error("unreadable entry dropped", key=self._key, text=text[:200])
        return found

    def done(self, entry: E) -> bool:
        """Removes it. Whether it was still there: two beats may be sending."""
        return self._remove(entry.text)

    def _remove(self, text: str) -> bool:
        return bool(self._client.lrem(self._key, 1, text))


# Pings: starts and ends of runs that are still to be sent to a job's `ping_url`.


class PingKind(StrEnum):
    """What a ping makes of the check; see accounts.lua."""

    START = "start"
    SUCCESS = "success"
    FAIL = "fail"
    LOG = "log"


class Ping(ListEntry):
    """attempt: 0 for a run that never began."""

    kind: PingKind
    attempt: int
    lasted: Annotated[timedelta, BeforeValidator(lambda ms: timedelta(milliseconds=ms))]


class Pings(SendQueue[Ping]):
    def __init__(self, client: Client, keys: Keys) -> None:
        super().__init__(client, keys.pings, Ping)
        self._keys = keys

    def drop(self, ping: Ping) -> None:
        """Gives it up, and counts that; once, if two beats do."""
        if self.done(ping):
            self._client.hincrby(self._keys.job(ping.job), "n:pings_dropped", 1)


# Revocations: calls that ended before they began, still to be sent to Celery's result backend.


class Revocation(ListEntry):
    """A call that never began."""


class Revocations(SendQueue[Revocation]):
    def __init__(self, client: Client, keys: Keys) -> None:
        super().__init__(client, keys.revocations, Revocation)


# Notices.

#: Events, and incidents that are to be looked at again, which one commit deals with.
EVENTS_AT_A_TIME = 500

#: Destinations that are looked at for one to send to.
DESTINATIONS_AT_A_TIME = 100

TOLD, AWAY = "told", "away"


@dataclass(frozen=True, slots=True)
class Backlog:
    """What there is to decide about: `texts` are the events as they stand in the list."""

    texts: Sequence[str]
    happened: Sequence[Happened]
    due: Sequence[Pair]

    @property
    def is_any(self) -> bool:
        return bool(self.texts or self.due)

    @property
    def jobs(self) -> set[str]:
        return {each.job for each in self.happened} | {job for _, job in self.due}


@dataclass(slots=True)
class Known:
    """What is known of jobs at destinations, for a policy to change, and as it was read."""

    incidents: dict[Pair, Incident]
    boxes: dict[str, Box]
    pairs: Sequence[Pair]
    fields: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unsent:
    """A notice as it stands in the ledger. `key`: of just this content."""

    destination: str
    id: str
    text: str = field(repr=False)
    pending: Pending

    @property
    def key(self) -> str:
        return digest(f"{self.destination} {self.id} {self.text}")


@dataclass(frozen=True, slots=True)
class Finding:
    """What beat found of a job, for `note`. mark: the same one is reported once."""

    job: str
    wanted: str
    event: Event
    mark: str
    reason: str


@dataclass(frozen=True, slots=True)
class NoticeFigures:
    """sent, dropped: how many, by event. oldest_due_at: of those that wait to be sent."""

    sent: Mapping[str, int]
    dropped: Mapping[str, int]
    oldest_due_at: datetime | None


class Notices:
    def __init__(self, client: Client, keys: Keys, functions: Functions) -> None:
        self._client = client
        self._keys = keys
        self._functions = functions

    def note(self, findings: Iterable[Finding], leadership: Leadership) -> int:
        """Makes each finding an event, once. Returns how many were new."""
        facts = [(f.job, f.wanted, f.event.value, f.mark, "", f.reason) for f in findings]
        if not facts:
            return 0
        told = self._functions(
            "findings", leadership.token, *chain.from_iterable(facts), keys=(leadership.key,)
        )
        return int(told)

    def watched(self) -> list[str]:
        """Jobs with `notify`."""
        return sorted(self._client.smembers(self._keys.watched))

    def backlog(self, now: datetime) -> Backlog:
        with self._client.pipeline(transaction=False) as pipe:
            pipe.lrange(self._keys.events, 0, EVENTS_AT_A_TIME - 1)
            pipe.zrangebyscore(self._keys.incidents_due, "-inf", ms_of(now), 0, EVENTS_AT_A_TIME)
            texts, names = pipe.execute()
        happened = [each for text in texts if (each := readable(text))]
        return Backlog(texts, happened, [pair_of(name) for name in names])

    def read(self, pairs: Collection[Pair], wait: timedelta = GROUP_WAIT) -> Known:
        """What is known of these at their destinations; a missing incident has not begun.

        wait: how long a new notice is to wait there.
        """
        destinations = sorted({destination for destination, _ in pairs})
        wanted = sorted(pairs)
        with self._client.pipeline(transaction=False) as pipe:
            if wanted:
                pipe.hmget(self._keys.incidents, [" ".join(pair) for pair in wanted])
            for destination in destinations:
                pipe.hgetall(self._keys.notices(destination))
            replies = pipe.execute()
        texts = replies.pop(0) if wanted else []
        found = {
            p: Incident.model_validate_json(t) for p, t in zip(wanted, texts, strict=True) if t
        }
        fields = dict(zip(destinations, replies, strict=True))
        boxes = {destination: box_of(each, wait) for destination, each in fields.items()}
        return Known(found, boxes, wanted, fields)

    def commit(self, backlog: Backlog, known: Known, leadership: Leadership) -> bool:
        """Writes what a policy made of them. False when another beat leads, or has done it."""
        fields = [
            (destination, name, before, after)
            for destination, box in known.boxes.items()
            for name, before, after in changed(known.fields[destination], fields_of(box))
        ]
        incidents: list[tuple[str | int, ...]] = [
            (" ".join(pair), incident.model_dump_json(exclude_defaults=True), ms_of(at))
            if (incident := known.incidents.get(pair)) and (at := incident.looked_at_next)
            else (" ".join(pair), "", 0)
            for pair in known.pairs
        ]
        verdict = self._functions(
            "fold",
            leadership.token,
            len(backlog.texts),
            backlog.texts[0] if backlog.texts else "",
            len(fields),
            *chain.from_iterable(fields),
            *chain.from_iterable(incidents),
            keys=(leadership.key,),
        )
        return bool(verdict == "done")

    def due(self, now: datetime) -> list[str]:
        """Destinations that something is to be sent to now, those that wait longest first."""
        due: list[str] = self._client.zrangebyscore(
            self._keys.notices_due, "-inf", ms_of(now), 0, DESTINATIONS_AT_A_TIME
        )
        return due

    def unsent(self, destination: str, now: datetime) -> tuple[list[Unsent], timedelta]:
        """The notices that are due there, in order; how long the last wait for it was."""
        fields = self._client.hgetall(self._keys.notices(destination))
        found = [
            Unsent(destination, id, fields[id], pending)
            for id, pending in box_of(fields).notices.items()
        ]
        due = sorted((n for n in found if n.pending.due_at <= now), key=lambda n: n.pending.due_at)
        return due, timedelta(milliseconds=int(fields.get(AWAY, "0 0").split()[1]))

    def sent(self, notice: Unsent) -> bool:
        """Takes it off; False where it is another by now."""
        return self._answered(notice, "sent")

    def drop(self, notice: Unsent) -> bool:
        """Gives it up, and counts that."""
        return self._answered(notice, "dropped")

    def put_off(self, notice: Unsent, until: datetime, wait: timedelta) -> bool:
        """Its destination is unavailable, and is not asked again before."""
        return self._answered(notice, f"{ms_of(until)} {to_ms(wait)}")

    def figures(self) -> tuple[BeatRecord, NoticeFigures]:
        """The figures of notices for a scrape, and the record of beat, in one round trip."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.hgetall(self._keys.beat)
            pipe.hgetall(self._keys.notice_counts)
            pipe.zrange(self._keys.unsent, 0, 0, withscores=True)
            beat, counts, oldest = pipe.execute()

        def of(result: str) -> Mapping[str, int]:
            return {event.value: int(counts.get(f"{result}:{event}", 0)) for event in Event}

        oldest_due_at = instant(oldest[0][1]) if oldest else None
        return beat_from(beat), NoticeFigures(of("sent"), of("dropped"), oldest_due_at)

    def _answered(self, notice: Unsent, answer: str) -> bool:
        event = notice.pending.event.value
        facts = (notice.destination, notice.id, notice.text, event, answer)
        return bool(self._functions("answered", *facts))


def readable(text: str) -> Happened | None:
    """The event; None if another version wrote it."""
    try:
        said = json.loads(text)
        at, event = instant(said["at"]), Event(said["event"])
        runs = 0 if event is Event.RECOVERED else 1
        facts = Facts(first_at=at, last_at=at, runs=runs, run=said["run"], reason=said["reason"])
        return Happened(said["job"], event, facts)
    except (ValueError, KeyError, TypeError):
        log.error("event not read by this version", text=text[:200])
        return None


def pair_of(name: str) -> Pair:
    destination, _, job = name.partition(" ")
    return destination, job


def box_of(fields: Mapping[str, str], wait: timedelta = GROUP_WAIT) -> Box:
    told = {g: instant(ms) for g, ms in json.loads(fields.get(TOLD, "{}")).items()}
    away = fields.get(AWAY)
    return Box(
        {id: Pending.model_validate_json(t) for id, t in fields.items() if id not in (TOLD, AWAY)},
        told,
        instant(away.split()[0]) if away else None,
        wait,
    )


def fields_of(box: Box) -> dict[str, str]:
    """The fields of a box, without those about an unavailable destination."""
    notices = {id: n.model_dump_json(exclude_defaults=True) for id, n in box.notices.items()}
    told = json.dumps({group: ms_of(at) for group, at in sorted(box.told.items())})
    return {**notices, TOLD: told} if box.told else notices


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[tuple[str, str, str]]:
    names = sorted((before.keys() | after.keys()) - {AWAY})
    pairs = ((name, before.get(name, ""), after.get(name, "")) for name in names)
    return [(name, old, new) for name, old, new in pairs if old != new]
