"""Notices are made of the events of jobs.

1. The functions write events into a list, with the change of state itself (accounts.lua).
2. The leading beat reads some of them, and what is known of their jobs at their destinations:
   `read`. A pure policy decides (features/notices/incidents.py).
3. It writes notices and incidents, and takes the events off the list, in one function: `commit`
   (fold.lua). A beat that dies before that leaves the events to the next one.

From then on a notice waits among all else that is to be sent: features/outbound/store.py.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain

from supervisor.features.notices.incidents import (
    GROUP_WAIT,
    Box,
    Facts,
    Happened,
    Incident,
    Pair,
    Pending,
)
from supervisor.features.notices.keys import Event
from supervisor.features.outbound.store import TOLD, Kind
from supervisor.ledger.reads import Readings
from supervisor.ledger.replies import instant, ms_of
from supervisor.logs import get_logger

log = get_logger("supervisor.ledger")


#: Events, and incidents that are to be looked at again, which one commit deals with.
EVENTS_AT_A_TIME = 500


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
class Finding:
    """What beat found of a job, for `note`. mark: the same one is reported once."""

    job: str
    wanted: str
    event: Event
    mark: str
    reason: str


class NoticeStore:
    def __init__(self, ledger: Readings) -> None:
        self._client = ledger.client
        self._keys = ledger.keys
        self._functions = ledger.functions
        self._leadership = ledger.leadership

    def note(self, findings: Iterable[Finding]) -> int:
        """Makes each finding an event, once. Returns how many were new."""
        facts = [(f.job, f.wanted, f.event.value, f.mark, "", f.reason) for f in findings]
        if not facts:
            return 0
        told = self._functions(
            "findings",
            self._leadership.token,
            *chain.from_iterable(facts),
            keys=self._leadership.keys,
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
                pipe.hgetall(self._keys.to_send(f"{Kind.NOTICE} {destination}"))
                pipe.zscore(self._keys.outbound, f"{Kind.NOTICE} {destination}")
            replies = pipe.execute()
        texts = replies.pop(0) if wanted else []
        found = {
            p: Incident.model_validate_json(t) for p, t in zip(wanted, texts, strict=True) if t
        }
        fields = dict(zip(destinations, replies[::2], strict=True))
        tried_at = dict(zip(destinations, replies[1::2], strict=True))
        boxes = {d: box_of(each, wait, tried_at[d]) for d, each in fields.items()}
        return Known(found, boxes, wanted, fields)

    def commit(self, backlog: Backlog, known: Known) -> bool:
        """Writes what a policy made of them. False when another beat leads, or has done it."""
        fields = [
            (f"{Kind.NOTICE} {destination}", name, before, after)
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
            self._leadership.token,
            len(backlog.texts),
            backlog.texts[0] if backlog.texts else "",
            len(fields),
            *chain.from_iterable(fields),
            *chain.from_iterable(incidents),
            keys=self._leadership.keys,
        )
        return bool(verdict == "done")


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


def box_of(fields: Mapping[str, str], wait: timedelta, tried_at: float | None) -> Box:
    """tried_at: in ms; when the destination is tried next, if something waits for it."""
    told = {g: instant(ms) for g, ms in json.loads(fields.get(TOLD, "{}")).items()}
    notices = {id: Pending.model_validate_json(t) for id, t in fields.items() if id != TOLD}
    return Box(notices, told, None if tried_at is None else instant(tried_at), wait)


def fields_of(box: Box) -> dict[str, str]:
    notices = {id: n.model_dump_json(exclude_defaults=True) for id, n in box.notices.items()}
    told = json.dumps({group: ms_of(at) for group, at in sorted(box.told.items())})
    return {**notices, TOLD: told} if box.told else notices


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[tuple[str, str, str]]:
    names = sorted(before.keys() | after.keys())
    pairs = ((name, before.get(name, ""), after.get(name, "")) for name in names)
    return [(name, old, new) for name, old, new in pairs if old != new]
