"""Notices are made of the events of jobs.

1. The functions write events into a list, with the change of state itself (events.lua).
2. The leading beat reads some of them, and what is known of their jobs at their destinations:
   `read`. A pure policy decides (features/notices/incidents.py).
3. It writes notices and incidents, and takes the events off the list, in one function: `commit`
   (group.lua). A beat that dies before that leaves the events to the next one.

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
    Groups,
    Incident,
    JobEvent,
    Occurrences,
    Pair,
    PendingNotice,
)
from supervisor.features.notices.keys import Event
from supervisor.features.outbound.store import LATEST, Kind
from supervisor.ledger.ledger import Ledger
from supervisor.times import instant, ms_of

#: Events, and incidents that are due, which one commit deals with.
EVENTS_AT_A_TIME = 500


@dataclass(frozen=True, slots=True)
class Backlog:
    """What there is to decide about: `texts` are the events as they stand in the list."""

    texts: Sequence[str]
    events: Sequence[JobEvent]
    due: Sequence[Pair]

    @property
    def is_any(self) -> bool:
        return bool(self.texts or self.due)

    @property
    def jobs(self) -> set[str]:
        return {each.job for each in self.events} | {job for _, job in self.due}


@dataclass(slots=True)
class Snapshot:
    """Jobs at destinations, for a policy to change, and as they were read."""

    incidents: dict[Pair, Incident]
    groups: dict[str, Groups]
    pairs: Sequence[Pair]
    fields: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """What beat observed of a job, for `observe`."""

    job: str

    events: str
    """Those that its `notify` asks for."""

    event: Event

    mark: str
    """An observation of the same mark is reported once."""

    reason: str


class NoticeStore:
    def __init__(self, ledger: Ledger) -> None:
        self._client = ledger.client
        self._keys = ledger.keys
        self._functions = ledger.functions
        self._leadership = ledger.leadership

    def observe(self, occurrences: Iterable[Occurrence]) -> int:
        """Makes each occurrence an event, once. Returns how many were new."""
        fields = [(o.job, o.events, o.event.value, o.mark, "", o.reason) for o in occurrences]
        if not fields:
            return 0
        added = self._functions(
            "observe",
            self._leadership.token,
            *chain.from_iterable(fields),
            keys=self._leadership.keys,
        )
        return int(added)

    def watched(self) -> list[str]:
        """Jobs with `notify`."""
        return sorted(self._client.smembers(self._keys.watched))

    def backlog(self, now: datetime) -> Backlog:
        with self._client.pipeline(transaction=False) as pipe:
            pipe.lrange(self._keys.events, 0, EVENTS_AT_A_TIME - 1)
            pipe.zrangebyscore(self._keys.incidents_due, "-inf", ms_of(now), 0, EVENTS_AT_A_TIME)
            texts, names = pipe.execute()
        return Backlog(texts, [*map(event_in, texts)], [*map(pair_of, names)])

    def read(self, pairs: Collection[Pair], wait: timedelta = GROUP_WAIT) -> Snapshot:
        """What is known of these at their destinations; a missing incident has not begun.

        wait: how long a new notice is to wait there.
        """
        destinations = sorted({destination for destination, _ in pairs})
        in_order = sorted(pairs)
        with self._client.pipeline(transaction=False) as pipe:
            if in_order:
                pipe.hmget(self._keys.incidents, [" ".join(pair) for pair in in_order])
            for destination in destinations:
                pipe.hgetall(self._keys.to_send(f"{Kind.NOTICE} {destination}"))
                pipe.zscore(self._keys.outbound, f"{Kind.NOTICE} {destination}")
            replies = pipe.execute()
        texts = replies.pop(0) if in_order else []
        incidents = {
            p: Incident.model_validate_json(t) for p, t in zip(in_order, texts, strict=True) if t
        }
        fields = dict(zip(destinations, replies[::2], strict=True))
        tried_at = dict(zip(destinations, replies[1::2], strict=True))
        groups = {d: groups_of(each, wait, tried_at[d]) for d, each in fields.items()}
        return Snapshot(incidents, groups, in_order, fields)

    def commit(self, backlog: Backlog, snapshot: Snapshot) -> bool:
        """Writes what a policy made of them. False when another beat leads, or has done it."""
        fields = [
            (f"{Kind.NOTICE} {destination}", name, before, after)
            for destination, groups in snapshot.groups.items()
            for name, before, after in changed(snapshot.fields[destination], fields_of(groups))
        ]
        incidents: list[tuple[str | int, ...]] = [
            (" ".join(pair), incident.model_dump_json(exclude_defaults=True), ms_of(at))
            if (incident := snapshot.incidents.get(pair)) and (at := incident.next_check)
            else (" ".join(pair), "", 0)
            for pair in snapshot.pairs
        ]
        reply = self._functions(
            "group",
            self._leadership.token,
            len(backlog.texts),
            backlog.texts[0] if backlog.texts else "",
            len(fields),
            *chain.from_iterable(fields),
            *chain.from_iterable(incidents),
            keys=self._leadership.keys,
        )
        return bool(reply == "done")


def event_in(text: str) -> JobEvent:
    fields = json.loads(text)
    at, event = instant(fields["at"]), Event(fields["event"])
    occurrences = Occurrences(
        first_at=at,
        last_at=at,
        runs=0 if event is Event.RECOVERED else 1,
        run=fields["run"],
        reason=fields["reason"],
    )
    return JobEvent(fields["job"], event, occurrences)


def pair_of(name: str) -> Pair:
    destination, _, job = name.partition(" ")
    return destination, job


def groups_of(fields: Mapping[str, str], wait: timedelta, tried_at: float | None) -> Groups:
    """tried_at: in ms; when the destination is tried next, if something waits for it."""
    latest = {g: instant(ms) for g, ms in json.loads(fields.get(LATEST, "{}")).items()}
    notices = {id: PendingNotice.model_validate_json(t) for id, t in fields.items() if id != LATEST}
    return Groups(notices, latest, None if tried_at is None else instant(tried_at), wait)


def fields_of(groups: Groups) -> dict[str, str]:
    notices = {id: n.model_dump_json(exclude_defaults=True) for id, n in groups.notices.items()}
    latest = json.dumps({group: ms_of(at) for group, at in sorted(groups.latest.items())})
    return {**notices, LATEST: latest} if groups.latest else notices


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[tuple[str, str, str]]:
    names = sorted(before.keys() | after.keys())
    pairs = ((name, before.get(name, ""), after.get(name, "")) for name in names)
    return [(name, old, new) for name, old, new in pairs if old != new]
