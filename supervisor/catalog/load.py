"""Brings the ledger and RedBeat in line with what says which jobs there are: only what differs.

* `load`: schedule files, all that they have. A job of another source stays as it is.
* `put_jobs`: jobs that are put and removed at run time: those that are named, all or none.

Other sources are compared in reconcile.py, which puts what differs.

An edit is never retroactive: a job whose times changed starts counting now. Running runs of a
removed job go on to their end; those that wait are cancelled when their turn comes.

1. What is loaded is read, with its versions. A job that does not differ stays as it is, version and
   all. What would be refused is, before anything is written.
2. A schedule that ends now is closed: what was due and could not be emitted is missed, or excluded
   by a pause. What came due within the last seconds, and beat was about to emit, is admitted here.
   Then the ticks are audited for the last time.
3. One function of the ledger (load.lua) compares the versions and writes all jobs, or none; of more
   than JOBS_PER_LOAD jobs of files, as many at a time. From its time on the new ticks count. After
   another edit in between, also of which jobs follow which where that counts, or a tick of the old
   schedule that came due, it starts again from 1.
4. Beat finds jobs that were put in RedBeat's schedule at its next look. What it had read before
   counts no more: those ticks are behind the watermark.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType

from supervisor.catalog.entries import AdoptedEntry, Entries, definition_text
from supervisor.catalog.fitness import not_guardable
from supervisor.errors import (
    Conflict,
    InvalidJob,
    InvalidRequest,
    JobConflict,
    JobElsewhere,
    shown,
)
from supervisor.job.changes import Changes, difference
from supervisor.job.fields import NAME_PATTERN
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import Action, with_changes
from supervisor.ledger.job_reads import Loaded
from supervisor.ledger.job_record import FILES, REDBEAT, REDBEATS, Origin, origin_from
from supervisor.ledger.ledger import Ledger, too_many_jobs
from supervisor.ledger.loading import JobChange, LoadReply, LoadVerdict
from supervisor.ledger.specs import times_of
from supervisor.lists.loading import CLOSINGS, LOAD_CHECKS
from supervisor.logs import get_logger
from supervisor.schedule import schedule_of
from supervisor.schedule.emission import PROMPT, closed, emission

log = get_logger("supervisor.beat")

Jobs = Mapping[str, JobSpec]

#: By name the job as it is to be, None for one that is to be removed.
DesiredJobs = Mapping[str, JobSpec | None]

Versions = Mapping[str, int | None]

#: Characters of an entry's name, in the place of the job that is made of it.
LONGEST_SHOWN = 100

#: Jobs of files that one function loads: a tenth of a second in which the server does nothing else.
JOBS_PER_LOAD = 2_000

# Schedule files.


def load(
    ledger: Ledger,
    entries: Entries,
    jobs: Jobs,
    digest: str,
    now: datetime | None = None,
    planned_on: Jobs | None = None,
    places: Mapping[str, str] | None = None,
    action: Action | None = None,
) -> Changes:
    """Applies the difference at once; `digest` names what is loaded from then on.

    Beat and `supervisor apply` may meet here: the second starts over from what the first has
    loaded, so that the result is one of the two sets and never a mixture.

    now: from when it holds, by default the server's time. planned_on: what files had loaded when a
    person agreed to the difference. Raises Conflict when something else is loaded by now,
    JobElsewhere for the name of a job of another source, and WrongSchema when another version
    writes the ledger. places: of the jobs, as "file:line". action: entered in the record of actions
    if something changes.

    A job that another version has loaded and this one cannot read is replaced or removed as well.
    """
    ledger.check_schema()
    places = places or {}
    while True:
        loaded = ledger.loaded().of(FILES)
        if planned_on is not None and loaded.specs != planned_on:
            raise Conflict("what is loaded has changed since this plan was made")
        changes = difference(loaded.specs, jobs, loaded.unread)
        at = now or ledger.now()
        reply = write(ledger, entries, loaded, jobs, changes, digest, at, places, action)
        if reply.verdict is LoadVerdict.LOADED:
            return changes
        refuse(reply, places)


def write(
    ledger: Ledger,
    entries: Entries,
    loaded: Loaded,
    jobs: Jobs,
    changes: Changes,
    digest: str,
    now: datetime,
    places: Mapping[str, str],
    action: Action | None,
) -> LoadReply:
    """Writes the changes of files, JOBS_PER_LOAD at a time: a function of thousands of jobs would
    keep the server from its runs. The digest, by which they are loaded, comes with the last."""
    entries.learn_names()
    edited = [jobs[name] for name in (*changes.added, *changes.changed)]
    replaced, names = entries.replaced_by(edited), entries.names_of(edited)
    close_schedules(ledger, outgoing(loaded, jobs, changes), now, edited=jobs)
    edits = [*job_changes(ledger, loaded, jobs, changes, places, now, names=names)]
    edits += moved(loaded.origins, places, {*changes.added, *changes.changed})
    version = loaded.files_version
    while len(edits) > JOBS_PER_LOAD:
        some, edits = edits[:JOBS_PER_LOAD], edits[JOBS_PER_LOAD:]
        reply = ledger.load(some, entries.keys, FILES, now, "", version)
        if reply.verdict is not LoadVerdict.LOADED:
            return reply
        version = reply.version
    done = with_changes(action, loaded.specs, jobs, changes)
    reply = ledger.load(edits, entries.keys, FILES, now, digest, version, action=done)
    if reply.verdict is LoadVerdict.LOADED:
        for name, entry in replaced.items():
            log.info("entry replaced by job", job=name, entry=entry, place=places.get(name))
        entries.learn_names()
    return reply


def moved(
    origins: Mapping[str, Origin], places: Mapping[str, str], written: Collection[str]
) -> list[JobChange]:
    """Of jobs that only stand elsewhere in the files by now. written: all others."""
    return [
        JobChange(name, None, is_moved=True, place=place)
        for name, place in places.items()
        if name in origins and name not in written and origins[name].place != place
    ]


# Jobs at run time.


def put_jobs(
    ledger: Ledger,
    entries: Entries,
    jobs: DesiredJobs,
    source: str,
    place: str,
    versions: Versions | None = None,
    adopted: Mapping[str, AdoptedEntry] | None = None,
    action: Action | None = None,
) -> tuple[Changes, dict[str, Origin]]:
    """Loads these jobs, or removes those that are None; what does not differ stays untouched.

    Returns the changes, and the origins that the jobs were loaded with, even if others have edited
    them since. versions: those that the caller has seen, 0 for "is not loaded", None for any.
    adopted: the RedBeat entries that jobs are made of. action: entered in the record, with what it
    changes, unless it changes nothing.

    Raises JobConflict if a job has another version by now, JobElsewhere for a job of another
    source, Conflict for too many, and InvalidJob if a job would follow a missing one, or has a
    task that cannot be guarded: then nothing was changed. Raises InvalidRequest for a source that
    is not a name, or is `files`.
    """
    ledger.check_schema()
    check_source(source)
    adopted = adopted or {}
    places = {name: place_of(name, place, adopted.get(name)) for name in jobs}
    for name, problem in not_guardable(entries.app.tasks, filter(None, jobs.values())):
        raise InvalidJob(name, [problem])
    while True:
        links = links_to_keep(ledger, jobs)
        loaded = ledger.loaded(jobs)
        check_origins(loaded, source, place, versions or {})
        specs = {name: spec for name, spec in jobs.items() if spec is not None}
        changes = difference(loaded.specs, specs, loaded.unread)
        if not changes:
            return changes, dict(loaded.origins)
        check_by_features(ledger, jobs)
        check_additions(ledger, entries, changes, source, place)
        now, ending = ledger.now(), outgoing(loaded, specs, changes)
        close_schedules(ledger, ending, now, edited=specs.keys())
        due_at = {spec.name: schedule_of(spec).next_after(now) for spec in ending}
        names = entries.names_of(specs.values())
        reply = ledger.load(
            [
                replace(
                    change, version=version_of(loaded, change.job), due_at=due_at.get(change.job)
                )
                for change in job_changes(
                    ledger, loaded, specs, changes, places, now, adopted, names
                )
            ],
            entries.keys,
            source,
            links=links,
            action=with_changes(action, loaded.specs, jobs, changes),
        )
        if reply.verdict is LoadVerdict.LOADED:
            origin = Origin(source, reply.version, place)
            edited = dict.fromkeys((*changes.added, *changes.changed), origin)
            kept = {name: at for name, at in loaded.origins.items() if name in specs}
            return changes, {**kept, **edited}
        refuse(reply, dict.fromkeys(jobs, place))


def place_of(name: str, place: str, entry: AdoptedEntry | None) -> str:
    """Where a job stands, for people, with the name of its entry if that is another."""
    if entry is None or entry.name == name:
        return place
    return f"{place}: {shown(entry.name, LONGEST_SHOWN)}"


def links_to_keep(ledger: Ledger, jobs: DesiredJobs) -> str:
    """What must not change between the check of which jobs follow which and the load: for load.lua.

    A job that follows others needs them, and no circle; one that is removed, that none follows it.
    """
    is_linked = any(spec is None or spec.after for spec in jobs.values())
    return ledger.links() if is_linked else ""


def check_source(source: str) -> None:
    """Raises InvalidRequest."""
    if source == FILES or not re.fullmatch(NAME_PATTERN, source):
        what = f"source: {source[:100]!r} is not a name for a source of jobs that are put"
        raise InvalidRequest(what)


def check_origins(loaded: Loaded, source: str, place: str, versions: Versions) -> None:
    """Raises JobElsewhere and JobConflict."""
    for name, origin in loaded.origins.items():
        if origin.source != source:
            raise JobElsewhere(name, origin.place, own_place=place)
    for name, version in versions.items():
        current = loaded.origins[name].version if name in loaded.origins else 0
        if version is not None and version != current:
            raise JobConflict(name, current)


def check_additions(
    ledger: Ledger, entries: Entries, changes: Changes, source: str, place: str
) -> None:
    """What the load would refuse, before schedules are closed that would not end then.

    Raises Conflict.
    """
    if not changes.added or not (changes.changed or changes.removed):
        return
    refuse_entries(entries, changes.added if source != REDBEAT else (), place)
    ledger.check_room(len(changes.added) - len(changes.removed))


def refuse_entries(entries: Entries, names: Collection[str], place: str) -> None:
    """Raises JobElsewhere for the name of an entry that the app's own code has saved."""
    for name in entries.redbeats_own(names):
        raise JobElsewhere(name, REDBEATS, own_place=place)


def check_by_features(ledger: Ledger, jobs: DesiredJobs) -> None:
    """What features find wrong with jobs beside those that are loaded. Raises InvalidJob."""
    for check in LOAD_CHECKS:
        check(ledger, jobs)


def version_of(loaded: Loaded, name: str) -> int:
    return loaded.origins[name].version if name in loaded.origins else 0


# Both.


def refuse(reply: LoadReply, places: Mapping[str, str]) -> None:
    """Raises Conflict.

    Another edit, or a tick that came due, is a reason to start again.
    """
    if reply.verdict is LoadVerdict.ELSEWHERE:
        place = origin_from(reply.source).place
        raise JobElsewhere(reply.job, place, own_place=places.get(reply.job, ""))
    if reply.verdict is LoadVerdict.FULL:
        raise too_many_jobs(reply.jobs)


def outgoing(loaded: Loaded, jobs: Jobs, changes: Changes) -> list[JobSpec]:
    """Jobs, as they were, whose times have changed or that have been removed."""
    return [
        loaded.specs[name]
        for name in (*changes.changed, *changes.removed)
        if name in loaded.specs and has_new_times(name, loaded, jobs)
    ]


def has_new_times(name: str, loaded: Loaded, jobs: Jobs) -> bool:
    if name in loaded.unread and name in jobs:
        return times_of(loaded.unread[name]) != jobs[name].when
    before, after = loaded.specs.get(name), jobs.get(name)
    return before is None or after is None or before.when != after.when


def close_schedules(
    ledger: Ledger, ending: Sequence[JobSpec], now: datetime, edited: Collection[str]
) -> None:
    """Closes the accounts of schedules that end now.

    edited: names of jobs whose ticks of the last seconds are admitted here; removed jobs emit
    nothing more.
    """
    marks = ledger.marks([spec.name for spec in ending])
    for spec in ending:
        mark, schedule = marks[spec.name], schedule_of(spec)
        if mark.watermark is None:
            continue
        until = now - PROMPT if spec.name in edited else now
        ledger.pass_over(closed(spec, schedule, mark.watermark, until, now, mark.pause))
        if spec.name in edited:
            prompt = emission(spec, schedule, max(mark.watermark, until), now, mark.pause)
            ledger.pass_over(prompt.passed)
            ledger.admit(prompt.ticks)
    for close in CLOSINGS:
        close(ledger, ending, now)


def job_changes(
    ledger: Ledger,
    loaded: Loaded,
    jobs: Jobs,
    changes: Changes,
    places: Mapping[str, str],
    now: datetime,
    adopted: Mapping[str, AdoptedEntry] = MappingProxyType({}),
    names: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[JobChange]:
    """What load.lua is to do: of each job its spec, its entry, and whether it is newly paused.

    names: of the entries, where they are not those of `adopted`.
    """
    # As they were the last time that they were loaded, by their own `paused`.
    marks = ledger.marks([*changes.added, *loaded.unread])
    for name in (*changes.added, *changes.changed):
        spec, before, entry = jobs[name], loaded.specs.get(name), adopted.get(name)
        entry_name = entry.name if entry else names.get(name, name)
        is_new = has_new_times(name, loaded, jobs)
        was_paused = before.paused if before else marks[name].file_paused
        yield JobChange(
            name,
            spec,
            place=places.get(name, ""),
            definition=entry.definition if entry else definition_text(spec, entry_name),
            entry=entry_name if entry_name != name else "",
            has_new_times=is_new,
            is_paused=spec.paused if spec.paused != was_paused else None,
            next_at=schedule_of(spec).next_after(now) if is_new else None,
        )
    yield from (JobChange(name, None) for name in changes.removed)
