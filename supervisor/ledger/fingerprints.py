"""What the ledger says of the topics that pages watch, so that two answers can be compared.

However many topics: ten round trips at most.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from supervisor.ledger.beat_record import beat_from
from supervisor.ledger.glances import open_runs
from supervisor.ledger.runs import Ledger

#: Fields of beat's hash that change at every tick.
TICKING = ("last_tick",)


class Kind(StrEnum):
    """now: the runs that have not ended."""

    BEAT = "beat"
    NOW = "now"
    WORKERS = "workers"
    JOB = "job"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Topic:
    kind: Kind
    name: str = ""


Print = Hashable


def fingerprints(ledger: Ledger, topics: Iterable[Topic]) -> dict[Topic, Print]:
    wanted = set(topics)
    found: dict[Topic, Print] = {}
    if Topic(Kind.BEAT) in wanted:
        found[Topic(Kind.BEAT)] = of_beat(ledger)
    if Topic(Kind.NOW) in wanted:
        found[Topic(Kind.NOW)] = of_now(ledger)
    if Topic(Kind.WORKERS) in wanted:
        found[Topic(Kind.WORKERS)] = of_workers(ledger)
    found |= of_jobs(ledger, [topic for topic in wanted if topic.kind is Kind.JOB])
    return found | of_runs(ledger, [topic for topic in wanted if topic.kind is Kind.RUN])


def of_beat(ledger: Ledger) -> Print:
    fields = ledger.client.hgetall(ledger.keys.beat)
    leads = beat_from(fields).leads(ledger.now())
    return (leads, frozenset((k, v) for k, v in fields.items() if k not in TICKING))


def of_workers(ledger: Ledger) -> Print:
    """Who is there and consumes what, and who has gone."""
    roll = ledger.presences.roll()
    return (frozenset(roll.workers), frozenset(roll.last_seen))


def of_now(ledger: Ledger) -> Print:
    return tuple(
        (run.id, run.state, run.attempt, run.progress, run.blocked_by, run.due_at)
        for run in open_runs(ledger)
    )


def of_jobs(ledger: Ledger, topics: Sequence[Topic]) -> dict[Topic, Print]:
    if not topics:
        return {}
    names, keys = [topic.name for topic in topics], ledger.keys
    with ledger.client.pipeline(transaction=False) as pipe:
        pipe.hmget(keys.jobs, names)
        pipe.hmget(keys.guarded, names)
        for name in names:
            pipe.hgetall(keys.job(name))
            pipe.scard(keys.open(name))  # who they are changes with what is counted
        scheduled, guarded, *facts = pipe.execute()
    together = zip(topics, scheduled, guarded, facts[::2], facts[1::2], strict=True)
    return {t: (spec, guard, whole(fields), o) for t, spec, guard, fields, o in together}


def of_runs(ledger: Ledger, topics: Sequence[Topic]) -> dict[Topic, Print]:
    """Of a run also the last line of its log, and its steps."""
    if not topics:
        return {}
    with ledger.client.pipeline(transaction=False) as pipe:
        for topic in topics:
            pipe.hgetall(ledger.keys.run(topic.name))
            pipe.xrevrange(ledger.keys.log(topic.name), count=1)
        replies = pipe.execute()
    runs = dict(zip(topics, replies[::2], strict=True))
    below = of_steps(ledger, {topic: step_ids(topic.name, runs[topic]) for topic in topics})
    lines = zip(topics, replies[1::2], strict=True)
    return {t: (whole(runs[t]), below[t], tuple(i for i, _ in last)) for t, last in lines}


def step_ids(run_id: str, fields: Mapping[str, str]) -> list[str]:
    steps: list[dict[str, Any]] = json.loads(fields.get("steps", "{}")).get("steps", [])
    return [f"{run_id}/{step['name']}" for step in steps]


def of_steps(ledger: Ledger, ids: Mapping[Topic, Sequence[str]]) -> dict[Topic, Print]:
    with ledger.client.pipeline(transaction=False) as pipe:
        for step_id in (step_id for run in ids.values() for step_id in run):
            pipe.hgetall(ledger.keys.run(step_id))
        replies = iter(pipe.execute() if any(ids.values()) else ())
    return {topic: tuple(whole(next(replies)) for _ in run) for topic, run in ids.items()}


def whole(fields: Mapping[str, str]) -> Print:
    return frozenset(fields.items())
