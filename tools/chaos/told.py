"""What a destination was told, held against what happened: the judge of ``make chaos-notices``."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any

#: Instants of notices are shown to the second.
ROUNDED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Told:
    """One notice as it arrived `at`. Instants are in seconds since 1970."""

    at: float
    key: str
    incident: str
    event: str
    jobs: tuple[str, ...]
    first_at: float
    last_at: float
    runs: int

    def covers(self, moment: float) -> bool:
        return self.first_at - ROUNDED_SECONDS <= moment <= self.last_at + ROUNDED_SECONDS


@dataclass(frozen=True, slots=True)
class Life:
    """Of one job: when it failed and when it succeeded."""

    failures: Sequence[float] = ()
    successes: Sequence[float] = ()

    @property
    def recoveries(self) -> int:
        """How often a success came after a failure."""
        ends = [(at, True) for at in self.failures] + [(at, False) for at in self.successes]
        return sum(failed and not fails for (_, failed), (_, fails) in pairwise(sorted(ends)))


#: What has to be 0.
WRONG = (
    "failures lost",
    "recoveries lost",
    "failures uncounted",
    "invented",
    "told too often",
    "changed under its key",
)


def judged(
    told: Iterable[Told],
    lives: Mapping[str, Life],
    seconds: float,
    repeat_seconds: float,
    *,
    counts: bool = True,
) -> dict[str, int]:
    """What of jobs was told at one destination, and the words of WRONG.

    seconds: how long jobs could fail. repeat_seconds: within these, the failures of a job are told
    once. A destination is taken to drop a key that it knows. A notice that arrived although its
    sender does not know may come again with what has happened since, under another key: it then
    begins at the same time.
    """
    first: dict[str, Told] = {}
    whole: dict[tuple[object, ...], Told] = {}
    found = Counter[str](dict.fromkeys(WRONG, 0))
    for each in sorted(told, key=lambda told: told.at):
        found["arrived"] += 1
        known = first.setdefault(each.key, each)
        if known is not each:
            found["duplicates"] += 1
            found["changed under its key"] += known != replace(each, at=known.at)
            continue
        id = (each.event, each.incident, each.first_at or each.key, each.jobs[:1])
        found["again with more"] += id in whole
        whole[id] = max(each, whole.get(id, each), key=lambda told: told.runs)
    by_job = defaultdict[str, list[Told]](list)
    for each in whole.values():
        for job in each.jobs:
            by_job[job].append(each)
        found[f"notices {each.event}"] += 1
    for job in by_job.keys() | lives.keys():
        found.update(faults_of(by_job[job], lives.get(job, Life()), 2 + seconds // repeat_seconds))
    counted = sum(each.runs for each in whole.values())
    found["failures"] = sum(len(life.failures) for life in lives.values())
    found["recoveries"] = sum(life.recoveries for life in lives.values())
    if counts:
        found["failures uncounted"] = max(0, found["failures"] - counted)
        found["failures counted twice"] = max(0, counted - found["failures"])
    return dict(found)


def sources_of_duplicates(
    told: Iterable[Told], faults: Sequence[tuple[float, str]]
) -> dict[str, int]:
    """What was killed or frozen soon after a notice had arrived that came again.

    faults: when, and what. Its sender did not hear that it was taken, or could not note that.
    """
    last: dict[str, Told] = {}
    found = Counter[str]()
    for each in sorted(told, key=lambda told: told.at):
        if before := last.get(each.key):
            near = [
                what for at, what in faults if before.at - 1 <= at <= min(each.at, before.at + 15)
            ]
            found[near[0] if near else "unexplained"] += 1
        last[each.key] = each
    return dict(found)


def faults_of(told: Sequence[Told], life: Life, most: float) -> Iterator[str]:
    """Of one job, a word for each thing that is wrong. most: how often its failure may be told."""
    failed = [each for each in told if each.event != "recovered"]
    recovered = [each for each in told if each.event == "recovered"]
    for at in life.failures:
        if not any(each.covers(at) for each in told):
            yield "failures lost"
    for each in failed:
        if not any(each.covers(at) for at in life.failures):
            yield "invented"
    if len(failed) > most:
        yield "told too often"
    if len(recovered) > min(life.recoveries, len(failed)):
        yield "invented"
    latest = max(told, key=lambda each: each.at, default=None)
    if life.recoveries and not (latest and latest.event == "recovered"):
        yield "recoveries lost"


# Of the service.

REDIS, BEAT, RECOVERED = "redis_unavailable", "no_beat", "recovered"

#: What is told of, by the address of an incident, in the subject of a mail.
TITLES = {"Redis is unavailable": REDIS, "No beat leads": BEAT, "The service recovered": RECOVERED}


@dataclass
class Away:
    """When something was not there, in seconds since 1970; `until` is inf while it lasts."""

    what: str
    since: float
    until: float = float("inf")

    @property
    def seconds(self) -> float:
        return self.until - self.since

    def meets(self, other: Away) -> bool:
        return self.since <= other.until and other.since <= self.until

    def has(self, moment: float, slack: float) -> bool:
        return self.since - slack <= moment <= self.until + slack


def judged_outages(
    told: Sequence[Told], away: Sequence[Away], at_most: float, at_least: float
) -> dict[str, int]:
    """What a destination was told of outages of Redis, and of times without a leading beat.

    at_most, at_least: seconds of an outage that is not told, and of one that is.
    """
    found = Counter[str]()
    of_redis = [each for each in away if each.what == REDIS]
    firsts = {each.key: each for each in reversed(told)}.values()
    for outage in away:
        hits = [t for t in firsts if t.event == outage.what and outage.has(t.last_at, 5)]
        # Without Redis it is not known whether a beat leads.
        is_sure = outage.what == REDIS or not any(outage.meets(each) for each in of_redis)
        found[f"{outage.what} told"] += bool(hits)
        found[f"{outage.what} untold"] += not hits and is_sure and outage.seconds > at_least
    for each in firsts:
        if each.event in (REDIS, BEAT):
            lasted = [a for a in away if a.what == each.event and a.has(each.last_at, 5)]
            found["outages invented"] += not any(a.seconds > at_most for a in lasted)
            ends = [t for t in firsts if t.event == RECOVERED and t.last_at > each.last_at]
            found["ends untold"] += not any(t.incident == each.incident for t in ends)
    return dict(found)


# As they arrive.


def told_to_webhook(line: Mapping[str, Any]) -> Told:
    document = json.loads(line["body"])
    data = document["data"]
    return Told(
        at=line["at"],
        key=line["headers"]["idempotency-key"],
        incident=data["incident"],
        event=document["type"],
        jobs=tuple(data["jobs"]),
        first_at=moment(data["first_at"]),
        last_at=moment(data["last_at"]),
        runs=data["runs"] if data["jobs"] else 0,
    )


#: The subject of a mail.
SUBJECT = re.compile(
    r"(?P<job>\S+) (?P<event>failed|recovered)|(?P<count>[0-9,]+) jobs (?P<events>\w+)"
)


def told_by_mail(line: Mapping[str, Any]) -> Told:
    """It has no key: its text stands for that. Of several jobs it may not say since when."""
    subject, body = line["headers"]["subject"], line["body"]
    found = SUBJECT.match(subject)
    last_at = re.search(r"^Last at (\S+?),?(?: |\r?$)", body, re.MULTILINE)
    since = re.search(r"([0-9,]+) (?:times|more) since (\S+)", body)
    assert last_at, body
    jobs = (found["job"],) if found and found["job"] else ()
    jobs = tuple(body.splitlines()[0].split(", ")) if found and found["count"] else jobs
    event = (found["event"] or found["events"]) if found else TITLES[subject]
    return Told(
        at=line["at"],
        key=f"{subject} {body}",
        incident="",
        event=event,
        jobs=jobs,
        first_at=moment(since[2]) if since else moment(last_at[1]) if len(jobs) == 1 else 0.0,
        last_at=moment(last_at[1]),
        runs=int(since[1].replace(",", "")) if since else len(jobs) * (event == "failed"),
    )


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


READERS: Mapping[str, Callable[[Mapping[str, Any]], Told]] = {
    "webhook": told_to_webhook,
    "smtp": told_by_mail,
}
