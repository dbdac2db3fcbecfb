"""Brings the ledger and RedBeat in line with the schedule files: only what differs is touched.

An edit is never retroactive: a job whose times changed starts counting now. Runs of a removed job
that are at work end as they end; those that wait are cancelled when their turn comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from redis.exceptions import WatchError

from supervisor.auditing import audit, note
from supervisor.changes import Changes, difference
from supervisor.emission import missed
from supervisor.entries import Entries
from supervisor.errors import PlanOutdated
from supervisor.ledger.connection import Client
from supervisor.ledger.keys import Keys
from supervisor.ledger.requests import Statement
from supervisor.ledger.runs import Ledger
from supervisor.ledger.schema import check_schema
from supervisor.ledger.scripts import HISTORY_TTL
from supervisor.spec import JobSpec
from supervisor.timing import schedule_of

Jobs = Mapping[str, JobSpec]


def kept_keys(keys: Keys, spec: JobSpec) -> tuple[str, ...]:
    """What is known of a job beside its spec; it outlives the job by the time runs are kept."""
    return keys.job(spec.name), keys.history(spec.name), keys.open(spec.name)


def load(
    ledger: Ledger,
    entries: Entries,
    wanted: Jobs,
    digest: str,
    now: datetime,
    planned_on: Jobs | None = None,
) -> Changes:
    """Applies the difference in one transaction; `digest` names what is loaded from then on.

    Beat and `supervisor apply` may meet here: who comes second starts over from what the first
    has loaded, so that the result is one of the two sets and never a mixture.

    planned_on: what was loaded when a person agreed to the difference. Raises PlanOutdated when
    something else is loaded by now, and WrongSchema when another version writes the ledger.
    """
    check_schema(ledger.client, ledger.keys)
    while True:
        with ledger.client.pipeline(transaction=True) as pipe:
            pipe.watch(ledger.keys.jobs)
            loaded = ledger.scheduled()
            if planned_on is not None and loaded != planned_on:
                raise PlanOutdated("what is loaded has changed since this plan was made")
            changes = difference(loaded, wanted)
            outgoing = [
                loaded[name] for name in (*retimed(loaded, wanted, changes), *changes.removed)
            ]
            settle(ledger, outgoing, now)
            stated = ledger.marks(changes.added)
            paused = {name: mark.file_paused for name, mark in stated.items()}
            pipe.multi()
            write(pipe, ledger, entries, loaded, wanted, changes, paused, now)
            pipe.hset(ledger.keys.beat, "config", digest)
            try:
                pipe.execute()
            except WatchError:
                continue
            return changes


def retimed(loaded: Jobs, wanted: Jobs, changes: Changes) -> list[str]:
    return [name for name in changes.changed if loaded[name].when != wanted[name].when]


def settle(ledger: Ledger, outgoing: Sequence[JobSpec], now: datetime) -> None:
    """Closes the accounts of schedules that end now.

    Beat has emitted what was due before it loads; what is left was due with nobody there to emit
    it, and is missed.
    """
    marks = ledger.marks([spec.name for spec in outgoing])
    for spec in outgoing:
        watermark = marks[spec.name].watermark
        if watermark:
            left = missed(spec, schedule_of(spec), watermark, now, "edited")
            ledger.pass_over(left)
    for finding in audit(ledger, outgoing, now):
        note(finding)


def write(
    pipe: Client,
    ledger: Ledger,
    entries: Entries,
    loaded: Jobs,
    wanted: Jobs,
    changes: Changes,
    paused: Mapping[str, bool | None],
    now: datetime,
) -> None:
    """`paused`: what the files said of the jobs that come, the last time that they had them."""
    keys, said = ledger.keys, []
    for name in (*changes.added, *changes.changed):
        spec, before = wanted[name], loaded.get(name)
        pipe.hset(keys.jobs, name, spec.model_dump_json(exclude_defaults=True))
        is_new = before is None or before.when != spec.when
        if is_new:
            entries.write(pipe, spec, schedule_of(spec).next_after(now))
        else:
            entries.rewrite(pipe, spec)
        stated = before.paused if before else paused[name]
        said.append(Statement(name, is_new, spec.paused if spec.paused != stated else None))
        for key in kept_keys(keys, spec):
            pipe.persist(key)
    ledger.state(pipe, said, now)
    for name in changes.removed:
        pipe.hdel(keys.jobs, name)
        entries.remove(pipe, name)
        # Runs at work still end and count; a job that comes back goes on counting.
        for key in kept_keys(keys, loaded[name]):
            pipe.expire(key, HISTORY_TTL)
