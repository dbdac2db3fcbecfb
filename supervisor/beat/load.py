"""Brings the ledger and RedBeat in line with the schedule files: only what differs is touched.

An edit is never retroactive: a job whose times changed starts counting now. Running runs of a
removed job go on to their end; those that wait are cancelled when their turn comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from redis.exceptions import WatchError

from supervisor.beat.entries import Entries
from supervisor.errors import PlanOutdated
from supervisor.job.changes import Changes, difference
from supervisor.job.spec import JobSpec
from supervisor.ledger.connection import Pipeline
from supervisor.ledger.functions import HISTORY_TTL, check_schema
from supervisor.ledger.keys import Keys
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.reads import Loaded, times_of
from supervisor.ledger.requests import Statement
from supervisor.schedule import schedule_of
from supervisor.ticks.audit import audit, note
from supervisor.ticks.emission import missed

Jobs = Mapping[str, JobSpec]

NO_CHANGES = Changes((), (), (), unchanged=0)


def kept_keys(keys: Keys, job: str) -> tuple[str, ...]:
    """What is known of a job beside its spec; it outlives the job by the time runs are kept."""
    return keys.job(job), keys.history(job), keys.open(job)


def load(
    ledger: Ledger,
    entries: Entries,
    wanted: Jobs,
    digest: str,
    now: datetime,
    planned_on: Jobs | None = None,
) -> Changes:
    """Applies the difference in one transaction; `digest` names what is loaded from then on.

    Beat and `supervisor apply` may meet here: the second starts over from what the first has
    loaded, so that the result is one of the two sets and never a mixture.

    planned_on: what was loaded when a person agreed to the difference. Raises PlanOutdated when
    something else is loaded by now, and WrongSchema when another version writes the ledger.

    A job that another version has loaded and this one cannot read is replaced or removed as well.
    """
    check_schema(ledger.client, ledger.keys)
    while True:
        with ledger.client.pipeline(transaction=True) as pipe:
            pipe.watch(ledger.keys.jobs)  # type: ignore[no-untyped-call]
            loaded = ledger.loaded()
            if planned_on is not None and loaded.specs != planned_on:
                raise PlanOutdated("what is loaded has changed since this plan was made")
            changes = difference(loaded.specs, wanted, loaded.unread)
            settle(ledger, outgoing(loaded, wanted, changes), now)
            paused = file_pauses(ledger, [*changes.added, *loaded.unread])
            pipe.multi()
            write(pipe, ledger, entries, loaded, wanted, changes, paused, now)
            pipe.hset(ledger.keys.beat, "config", digest)
            try:
                pipe.execute()
            except WatchError:
                continue
            return changes


def withdraw(ledger: Ledger, entries: Entries, wanted: Jobs, now: datetime) -> Changes:
    """Removes jobs that `wanted` no longer has, and pauses those that it pauses; all else stays.

    For a beat that did not run when the files changed, before it emits what was due meanwhile. In
    the changes, the changed jobs are those that were paused. Raises WrongSchema.
    """
    loaded = ledger.loaded()
    left = {
        name: as_paused(loaded.specs.get(name), spec)
        for name, spec in wanted.items()
        if name in loaded.specs or name in loaded.unread
    }
    digest = ledger.loaded_digest()
    if digest is None:
        return NO_CHANGES
    try:
        return load(ledger, entries, left, digest, now, planned_on=loaded.specs)
    except PlanOutdated:  # `supervisor apply` loaded others at this very moment
        return NO_CHANGES


def as_paused(before: JobSpec | None, wanted: JobSpec) -> JobSpec:
    if before is None:
        return wanted
    return before.model_copy(update={"paused": before.paused or wanted.paused})


def outgoing(loaded: Loaded, wanted: Jobs, changes: Changes) -> list[JobSpec]:
    """Jobs, as they were, whose times have changed or that have been removed."""
    return [
        loaded.specs[name]
        for name in (*changes.changed, *changes.removed)
        if name in loaded.specs and has_new_times(name, loaded, wanted)
    ]


def has_new_times(name: str, loaded: Loaded, wanted: Jobs) -> bool:
    if name in loaded.unread and name in wanted:
        return times_of(loaded.unread[name]) != wanted[name].when
    before, after = loaded.specs.get(name), wanted.get(name)
    return before is None or after is None or before.when != after.when


def file_pauses(ledger: Ledger, names: Sequence[str]) -> dict[str, bool | None]:
    """Whether the files paused these jobs the last time that they had them."""
    return {name: mark.file_paused for name, mark in ledger.marks(names).items()}


def settle(ledger: Ledger, outgoing: Sequence[JobSpec], now: datetime) -> None:
    """Closes the accounts of schedules that end now.

    Beat has emitted what was due before it loads; what is left was due while no beat could emit
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
    pipe: Pipeline,
    ledger: Ledger,
    entries: Entries,
    loaded: Loaded,
    wanted: Jobs,
    changes: Changes,
    paused: Mapping[str, bool | None],
    now: datetime,
) -> None:
    """`paused`: as file_pauses() says, of the jobs that loaded has no specs of."""
    keys, statements = ledger.keys, []
    for name in (*changes.added, *changes.changed):
        spec, before = wanted[name], loaded.specs.get(name)
        pipe.hset(keys.jobs, name, spec.model_dump_json(exclude_defaults=True))
        is_new = has_new_times(name, loaded, wanted)
        if is_new:
            entries.write(pipe, spec, schedule_of(spec).next_after(now))
        else:
            entries.rewrite(pipe, spec)
        was_paused = before.paused if before else paused[name]
        statements.append(
            Statement(name, is_new, spec.paused if spec.paused != was_paused else None)
        )
        for key in kept_keys(keys, name):
            pipe.persist(key)
    ledger.state(pipe, statements, now)
    for name in changes.removed:
        pipe.hdel(keys.jobs, name)
        entries.remove(pipe, name)
        # Running runs still end and count; a job that comes back goes on counting.
        for key in kept_keys(keys, name):
            pipe.expire(key, HISTORY_TTL)
