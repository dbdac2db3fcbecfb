"""Brings the ledger and RedBeat in line with the schedule files: only what differs is touched.

An edit is never retroactive: a job whose times changed starts counting now. Running runs of a
removed job go on to their end; those that wait are cancelled when their turn comes.

Jobs of other sources, which are put at run time (put.py), stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime

from supervisor.beat.entries import Entries, definition_text
from supervisor.errors import JobElsewhere, PlanOutdated
from supervisor.job.changes import Changes, difference
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import Action, with_changes
from supervisor.ledger.functions import check_schema
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.reads import Loaded, times_of
from supervisor.ledger.records import FILES, Origin, origin_from
from supervisor.ledger.replies import LoadReply, LoadVerdict
from supervisor.ledger.requests import JobChange
from supervisor.logs import get_logger
from supervisor.schedule import schedule_of
from supervisor.ticks.audit import audit, note
from supervisor.ticks.emission import missed

log = get_logger("supervisor.beat")

Jobs = Mapping[str, JobSpec]

NO_CHANGES = Changes((), (), (), unchanged=0)


def load(
    ledger: Ledger,
    entries: Entries,
    wanted: Jobs,
    digest: str,
    now: datetime,
    planned_on: Jobs | None = None,
    places: Mapping[str, str] | None = None,
    action: Action | None = None,
) -> Changes:
    """Applies the difference at once; `digest` names what is loaded from then on.

    Beat and `supervisor apply` may meet here: the second starts over from what the first has
    loaded, so that the result is one of the two sets and never a mixture.

    planned_on: what files had loaded when a person agreed to the difference. Raises PlanOutdated
    when something else is loaded by now, JobElsewhere for the name of a job of another source, and
    WrongSchema when another version writes the ledger. places: of the jobs, as "file:line".
    action: who asks for it, which is entered where it changes something.

    A job that another version has loaded and this one cannot read is replaced or removed as well.
    """
    check_schema(ledger.client, ledger.keys)
    places = places or {}
    while True:
        everything = ledger.loaded()
        loaded = everything.of(FILES)
        if planned_on is not None and loaded.specs != planned_on:
            raise PlanOutdated("what is loaded has changed since this plan was made")
        changes = difference(loaded.specs, wanted, loaded.unread)
        replaced = entries.stock(changes.added)
        settle(ledger, outgoing(loaded, wanted, changes), now)
        reply = ledger.load(
            list(job_changes(ledger, loaded, wanted, changes, places, now)),
            entries.keys,
            FILES,
            at=now,
            digest=digest,
            files_version=loaded.files_version,
            moved=moved(loaded.origins, places, {*changes.added, *changes.changed}),
            action=with_changes(action, loaded.specs, wanted, changes),
        )
        if reply.verdict is LoadVerdict.LOADED:
            for name in replaced:
                log.info("entry replaced by job", entry=name, place=places.get(name))
            return changes
        if reply.verdict is LoadVerdict.ELSEWHERE:
            raise elsewhere(reply, places)


def withdraw(
    ledger: Ledger, entries: Entries, wanted: Jobs, now: datetime, action: Action | None = None
) -> Changes:
    """Removes jobs of files that `wanted` no longer has, and pauses those that it pauses; all else
    stays.

    For a beat that did not run when the files changed, before it emits what was due meanwhile. In
    the changes, the changed jobs are those that were paused. Raises WrongSchema.
    """
    loaded = ledger.loaded().of(FILES)
    left = {
        name: as_paused(loaded.specs.get(name), spec)
        for name, spec in wanted.items()
        if name in loaded.specs or name in loaded.unread
    }
    digest = ledger.loaded_digest()
    if digest is None:
        return NO_CHANGES
    places = {name: origin.place for name, origin in loaded.origins.items()}
    try:
        return load(ledger, entries, left, digest, now, loaded.specs, places, action)
    except PlanOutdated:  # `supervisor apply` loaded others at this very moment
        return NO_CHANGES


def elsewhere(reply: LoadReply, places: Mapping[str, str]) -> JobElsewhere:
    job, text = reply.details
    return JobElsewhere(job, origin_from(text).place, wanted_at=places.get(job, ""))


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


def job_changes(
    ledger: Ledger,
    loaded: Loaded,
    wanted: Jobs,
    changes: Changes,
    places: Mapping[str, str],
    now: datetime,
) -> Iterator[JobChange]:
    """What load.lua is to do: of each job its spec, its entry, and whether it is paused anew."""
    paused = stated_pauses(ledger, [*changes.added, *loaded.unread])
    for name in (*changes.added, *changes.changed):
        spec, before = wanted[name], loaded.specs.get(name)
        is_new = has_new_times(name, loaded, wanted)
        was_paused = before.paused if before else paused[name]
        yield JobChange(
            name,
            spec,
            place=places.get(name, ""),
            definition=definition_text(spec),
            has_new_times=is_new,
            is_paused=spec.paused if spec.paused != was_paused else None,
            next_at=schedule_of(spec).next_after(now) if is_new else None,
        )
    yield from (JobChange(name, None) for name in changes.removed)


def stated_pauses(ledger: Ledger, names: Sequence[str]) -> dict[str, bool | None]:
    """Whether these jobs were paused by their own `paused` the last time that they were loaded."""
    return {name: mark.file_paused for name, mark in ledger.marks(names).items()}


def moved(
    origins: Mapping[str, Origin], places: Mapping[str, str], written: Collection[str] = ()
) -> dict[str, str]:
    """The jobs that only stand elsewhere in the files by now, and where. written: all others."""
    return {
        name: place
        for name, place in places.items()
        if name in origins and name not in written and origins[name].place != place
    }


def move(ledger: Ledger, entries: Entries, places: Mapping[str, str]) -> None:
    """Notes where the jobs of the files stand, which have changed nothing else."""
    if news := moved(ledger.origins(), places):
        ledger.load([], entries.keys, FILES, moved=news)
