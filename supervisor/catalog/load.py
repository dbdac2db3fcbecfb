"""Brings the ledger and RedBeat in line with what says which jobs there are: only what differs.

* `load`: schedule files, all that they have. A job of another source stays as it is.
* `put_jobs`: jobs that are put and removed at run time: those that are named, all or none.
* `reconcile`: any other source, such as a table of Django's, all that it has.

An edit is never retroactive: a job whose times changed starts counting now. Running runs of a
removed job go on to their end; those that wait are cancelled when their turn comes.

1. What is loaded is read, with its versions. A job that is as wanted stays as it is, version and
   all. What would be refused is, before anything is settled.
2. A schedule that ends now is settled: what was due and could not be emitted is missed. What came
   due within the last seconds, and beat was about to emit, is admitted here. Then the ticks are
   audited for the last time.
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
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from types import MappingProxyType

from supervisor.catalog.entries import AdoptedEntry, Entries, definition_text
from supervisor.catalog.fitness import not_guardable
from supervisor.catalog.refusals import mass_removal
from supervisor.errors import (
    InvalidJob,
    InvalidRequest,
    JobConflict,
    JobElsewhere,
    PlanOutdated,
    SupervisorError,
)
from supervisor.job.changes import Changes, Found, Source, difference
from supervisor.job.fields import NAME_PATTERN
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import Action, Actor, with_changes
from supervisor.ledger.ledger import Ledger, too_many_jobs
from supervisor.ledger.reads import Loaded, times_of
from supervisor.ledger.records import FILES, REDBEAT, REDBEATS, Origin, origin_from
from supervisor.ledger.replies import LoadReply, LoadVerdict
from supervisor.ledger.requests import JobChange
from supervisor.lists.loading import CLOSINGS, LOAD_CHECKS
from supervisor.logs import get_logger
from supervisor.schedule import schedule_of
from supervisor.schedule.emission import PROMPT, emission, missed

log = get_logger("supervisor.beat")

Jobs = Mapping[str, JobSpec]

#: By name the job that is wanted, None for one that is to be removed.
Wanted = Mapping[str, JobSpec | None]

Versions = Mapping[str, int | None]

NO_CHANGES = Changes((), (), (), unchanged=0)

#: Characters of an entry's name, in the place of the job that is made of it.
LONGEST_SHOWN = 100

#: Jobs of files that one function loads: a tenth of a second in which the server does nothing else.
JOBS_PER_LOAD = 2_000

REMOVAL_HINT = "if that is meant, remove half of them first, or run manage.py supervisor sync --yes"

# Schedule files.


def load(
    ledger: Ledger,
    entries: Entries,
    wanted: Jobs,
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
    person agreed to the difference. Raises PlanOutdated when something else is loaded by now,
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
            raise PlanOutdated("what is loaded has changed since this plan was made")
        changes = difference(loaded.specs, wanted, loaded.unread)
        at = now or ledger.now()
        reply = write(ledger, entries, loaded, wanted, changes, digest, at, places, action)
        if reply.verdict is LoadVerdict.LOADED:
            return changes
        refuse(reply, places)


def write(
    ledger: Ledger,
    entries: Entries,
    loaded: Loaded,
    wanted: Jobs,
    changes: Changes,
    digest: str,
    now: datetime,
    places: Mapping[str, str],
    action: Action | None,
) -> LoadReply:
    """Writes the changes of files, JOBS_PER_LOAD at a time: a function of thousands of jobs would
    keep the server from its runs. The digest, by which they are loaded, comes with the last."""
    entries.learn_names()
    edited = [wanted[name] for name in (*changes.added, *changes.changed)]
    replaced, names = entries.replaced_by(edited), entries.names_of(edited)
    settle(ledger, outgoing(loaded, wanted, changes), now, edited=wanted)
    news = moved(loaded.origins, places, {*changes.added, *changes.changed})
    edits = job_changes(ledger, loaded, wanted, changes, places, now, names=names)
    version, number = loaded.files_version, len(changes) + len(news)
    while number > JOBS_PER_LOAD:
        some = list(islice(edits, JOBS_PER_LOAD))
        moves = dict(islice(news.items(), JOBS_PER_LOAD - len(some)))
        reply = ledger.load(some, entries.keys, FILES, now, "", version, moves)
        if reply.verdict is not LoadVerdict.LOADED:
            return reply
        number -= len(some) + len(moves)
        news = {name: place for name, place in news.items() if name not in moves}
        version = reply.version
    done = with_changes(action, loaded.specs, wanted, changes)
    reply = ledger.load(list(edits), entries.keys, FILES, now, digest, version, news, action=done)
    if reply.verdict is LoadVerdict.LOADED:
        for name, entry in replaced.items():
            log.info("entry replaced by job", job=name, entry=entry, place=places.get(name))
        entries.learn_names()
    return reply


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


def as_paused(before: JobSpec | None, wanted: JobSpec) -> JobSpec:
    if before is None:
        return wanted
    return before.model_copy(update={"paused": before.paused or wanted.paused})


def moved(
    origins: Mapping[str, Origin], places: Mapping[str, str], written: Collection[str]
) -> dict[str, str]:
    """The jobs that only stand elsewhere in the files by now, and where. written: all others."""
    return {
        name: place
        for name, place in places.items()
        if name in origins and name not in written and origins[name].place != place
    }


# Jobs at run time.


def put_jobs(
    ledger: Ledger,
    entries: Entries,
    wanted: Wanted,
    source: str,
    place: str,
    versions: Versions | None = None,
    adopted: Mapping[str, AdoptedEntry] | None = None,
    action: Action | None = None,
) -> tuple[Changes, dict[str, Origin]]:
    """Loads these jobs, or removes those that are None; what is as wanted stays untouched.

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
    places = {name: place_of(name, place, adopted.get(name)) for name in wanted}
    for name, problem in not_guardable(entries.app.tasks, filter(None, wanted.values())):
        raise InvalidJob(name, [problem])
    while True:
        links = links_to_keep(ledger, wanted)
        loaded = ledger.loaded(wanted)
        check_origins(loaded, source, place, versions or {})
        specs = {name: spec for name, spec in wanted.items() if spec is not None}
        changes = difference(loaded.specs, specs, loaded.unread)
        if not changes:
            return changes, dict(loaded.origins)
        check_wanted(ledger, wanted)
        check_additions(ledger, entries, changes, source, place)
        now, ending = ledger.now(), outgoing(loaded, specs, changes)
        settle(ledger, ending, now, edited=specs.keys())
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
            action=with_changes(action, loaded.specs, wanted, changes),
        )
        if reply.verdict is LoadVerdict.LOADED:
            origin = Origin(source, reply.version, place)
            edited = dict.fromkeys((*changes.added, *changes.changed), origin)
            kept = {name: at for name, at in loaded.origins.items() if name in specs}
            return changes, {**kept, **edited}
        refuse(reply, dict.fromkeys(wanted, place))


def place_of(name: str, place: str, entry: AdoptedEntry | None) -> str:
    """Where a job stands, for people, with the name of its entry if that is another."""
    return f"{place}: {shown(entry.name)}" if entry and entry.name != name else place


def shown(name: str) -> str:
    """An entry's, for people: on one line, and without what a terminal acts upon."""
    text = name if name.isprintable() else ascii(name)[1:-1]
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def links_to_keep(ledger: Ledger, wanted: Wanted) -> str:
    """What must not change between the check of which jobs follow which and the load: for load.lua.

    A job that follows others needs them, and no circle; one that is removed, that none follows it.
    """
    has_after = any(spec and spec.after for spec in wanted.values())
    if not has_after and None not in wanted.values():
        return ""
    linked, unlinked = ledger.links()
    return f"{linked}/{unlinked}" if has_after else linked


def check_source(source: str) -> None:
    """Raises InvalidRequest."""
    if source == FILES or not re.fullmatch(NAME_PATTERN, source):
        what = f"source: {source[:100]!r} is not a name for a source of jobs that are put"
        raise InvalidRequest(what)


def check_origins(loaded: Loaded, source: str, place: str, versions: Versions) -> None:
    """Raises JobElsewhere and JobConflict."""
    for name, origin in loaded.origins.items():
        if origin.source != source:
            raise JobElsewhere(name, origin.place, wanted_at=place)
    for name, version in versions.items():
        found = loaded.origins[name].version if name in loaded.origins else 0
        if version is not None and version != found:
            raise JobConflict(name, found)


def check_additions(
    ledger: Ledger, entries: Entries, changes: Changes, source: str, place: str
) -> None:
    """What the load would refuse, before schedules are settled that would not end then.

    Raises Conflict.
    """
    if not changes.added or not (changes.changed or changes.removed):
        return
    refuse_entries(entries, changes.added if source != REDBEAT else (), place)
    ledger.check_room(len(changes.added) - len(changes.removed))


def refuse_entries(entries: Entries, names: Collection[str], place: str) -> None:
    """Raises JobElsewhere for the name of an entry that the app's own code has saved."""
    for name in entries.redbeats_own(names):
        raise JobElsewhere(name, REDBEATS, wanted_at=place)


def check_wanted(ledger: Ledger, wanted: Wanted) -> None:
    """What features find wrong with jobs beside those that are loaded. Raises InvalidJob."""
    for check in LOAD_CHECKS:
        check(ledger, wanted)


def version_of(loaded: Loaded, name: str) -> int:
    return loaded.origins[name].version if name in loaded.origins else 0


# Both.


def refuse(reply: LoadReply, places: Mapping[str, str]) -> None:
    """Raises Conflict.

    Another edit, or a tick that came due, is a reason to start again.
    """
    if reply.verdict is LoadVerdict.ELSEWHERE:
        place = origin_from(reply.source).place
        raise JobElsewhere(reply.job, place, wanted_at=places.get(reply.job, ""))
    if reply.verdict is LoadVerdict.FULL:
        raise too_many_jobs(reply.jobs)


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


def settle(
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
        ledger.pass_over(missed(spec, schedule, mark.watermark, until, "edited"))
        if spec.name in edited:
            prompt = emission(spec, schedule, max(mark.watermark, until), now, mark.pause)
            ledger.pass_over(prompt.passed)
            ledger.admit(prompt.ticks)
    for close in CLOSINGS:
        close(ledger, ending, now)


def job_changes(
    ledger: Ledger,
    loaded: Loaded,
    wanted: Jobs,
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
        spec, before, entry = wanted[name], loaded.specs.get(name), adopted.get(name)
        entry_name = entry.name if entry else names.get(name, name)
        is_new = has_new_times(name, loaded, wanted)
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


# Other sources of jobs.


@dataclass(slots=True)
class Outcome:
    """What came of one look at one source. changes: None if nothing had to be read."""

    source: str
    changes: Changes | None = None
    problems: list[str] = field(default_factory=list)


def look_at(ledger: Ledger, entries: Entries, source: Source) -> Outcome:
    """Loads the source where it has changed since it was last loaded, all of it."""
    outcome = Outcome(source.name)
    try:
        fingerprint = source.fingerprint()
        if fingerprint == ledger.client.hget(ledger.keys.beat, mark_of(source)):
            return outcome
        action = Action(Actor.of_process("beat", "beat"), "load", source.name)
        reconciled = reconcile(ledger, entries, source, action)
    except SupervisorError as error:  # such as too many jobs
        outcome.problems.append(str(error))
        return outcome
    except Exception as error:  # noqa: BLE001 - a source's own, whatever it is: it is unavailable
        outcome.problems.append(f"unavailable, nothing was changed: {error!r}")
        return outcome
    if not reconciled.problems:
        ledger.client.hset(ledger.keys.beat, mark_of(source), fingerprint)
    return reconciled


def mark_of(source: Source) -> str:
    """The field of beat's hash that has the fingerprint of what was loaded."""
    return f"source:{source.name}"


def reconcile(
    ledger: Ledger,
    entries: Entries,
    source: Source,
    action: Action,
    *,
    may_remove_most: bool = False,
) -> Outcome:
    """Reads the source and loads what differs.

    Raises what the source and redis-py raise; nothing has changed then.
    """
    before = ledger.loaded()
    found = source.read()
    outcome = Outcome(source.name)
    wanted = differing(before, found, source.name, ledger.keys.prefix)
    for name, problem in found.problems.items():
        outcome.problems.append(f"job {name!r} stays as it is: {problem}")
    elsewhere = {n: o.place for n, o in before.origins.items() if o.source != source.name}
    new = [name for name in wanted if name not in before.origins]
    elsewhere |= dict.fromkeys(entries.redbeats_own(new), REDBEATS)
    for name in wanted.keys() & elsewhere.keys():
        error = JobElsewhere(name, elsewhere[name], f"of {source.name}")
        outcome.problems.append(str(error))
        del wanted[name]
    removal = mass_removal(before, [*found.specs, *found.problems], source.name)
    if removal and not may_remove_most:
        outcome.problems.append(f"{removal}, so nothing was changed ({REMOVAL_HINT})")
        return outcome
    versions = {name: version_of(before, name) for name in wanted}
    try:
        outcome.changes, _ = put_jobs(
            ledger,
            entries,
            wanted,
            source.name,
            f"read from {source.name}",
            versions,
            action=action,
        )
    except (JobConflict, JobElsewhere) as error:  # an edit at this very moment
        outcome.problems.append(f"{error}; it is looked at again")
    return outcome


def differing(before: Loaded, found: Found, source: str, prefix: str) -> dict[str, JobSpec | None]:
    """What is to be loaded, by name; None for a job that is to be removed."""
    kept = {name: spec.kept_apart(prefix) for name, spec in found.specs.items()}
    own = before.of(source)
    wanted: dict[str, JobSpec | None] = {
        name: spec for name, spec in kept.items() if own.specs.get(name) != spec
    }
    gone = own.origins.keys() - kept.keys() - found.problems.keys()
    return wanted | dict.fromkeys(sorted(gone))
