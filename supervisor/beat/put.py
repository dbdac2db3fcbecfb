"""Puts and removes jobs at run time, while beats run: only those that are named, all or none.

1. What is loaded under the names is read, with its versions. A job that is as wanted stays as it
   is, version and all. What would be refused is, before anything is settled.
2. A schedule that ends now is settled: what came due within the last seconds, and beat was about to
   emit, is admitted here; what was due before and could not be emitted is missed. Then its ticks
   are audited for the last time.
3. One function of the ledger (load.lua) compares the versions and writes all jobs, or none. From
   its time on the new ticks count. Another edit in between, also of who follows whom where that
   counts, or a tick of the old schedule that came due, and it starts again from 1.
4. Beat finds the jobs in RedBeat's schedule at its next look. What it had read before counts no
   more: those ticks are behind the watermark.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime

from supervisor.beat.entries import AdoptedEntry, Entries, definition_text
from supervisor.beat.load import has_new_times, outgoing, stated_pauses
from supervisor.errors import InvalidJob, InvalidRequest, JobConflict, JobElsewhere, TooManyJobs
from supervisor.job.changes import Changes, difference
from supervisor.job.fields import NAME_PATTERN
from supervisor.job.following import following_problems
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import Action, with_changes
from supervisor.ledger.functions import check_schema
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.reads import Loaded
from supervisor.ledger.records import FILES, REDBEAT, REDBEATS, Origin, origin_from
from supervisor.ledger.replies import LoadReply, LoadVerdict
from supervisor.ledger.requests import JobChange
from supervisor.schedule import schedule_of
from supervisor.ticks.audit import audit, note
from supervisor.ticks.emission import PROMPT, emission, missed

Versions = Mapping[str, int | None]

#: Of an entry's name, in the place of the job that is made of it.
LONGEST_SHOWN = 100


def put_jobs(
    ledger: Ledger,
    entries: Entries,
    wanted: Mapping[str, JobSpec | None],
    source: str,
    place: str,
    versions: Versions | None = None,
    adopted: Mapping[str, AdoptedEntry] | None = None,
    action: Action | None = None,
) -> Changes:
    """As `put_in_place`, whose origins are not asked for."""
    return put_in_place(ledger, entries, wanted, source, place, versions, adopted, action)[0]


def put_in_place(
    ledger: Ledger,
    entries: Entries,
    wanted: Mapping[str, JobSpec | None],
    source: str,
    place: str,
    versions: Versions | None = None,
    adopted: Mapping[str, AdoptedEntry] | None = None,
    action: Action | None = None,
) -> tuple[Changes, dict[str, Origin]]:
    """Loads these jobs, or removes those that are None; what is as wanted stays untouched.

    Gives the origins that the jobs were loaded with, whatever became of them since: what others did
    then is an edit of another version. versions: those that the caller has seen, 0 for "is not
    loaded"; None for any. adopted: the entries of RedBeat's that jobs are made of. action: is
    entered, with what it changes, if that is anything. Raises JobConflict when one of them is
    another by now, JobElsewhere for a job of another source, TooManyJobs, and InvalidJob where jobs
    that follow others would have no one to follow. Then nothing was changed. Raises InvalidRequest
    for a source that is no name, or files.
    """
    check_schema(ledger.client, ledger.keys)
    check_source(source)
    while True:
        links = links_to_keep(ledger, wanted)
        loaded = ledger.loaded(wanted)
        check_origins(loaded, source, place, versions or {})
        specs = {name: spec for name, spec in wanted.items() if spec is not None}
        changes = difference(loaded.specs, specs, loaded.unread)
        if not changes:
            return changes, dict(loaded.origins)
        check_following(ledger, wanted)
        check_additions(ledger, entries, changes, source, place)
        now = ledger.now()
        settle(ledger, loaded, specs, changes, now)
        outcome = changes_of(ledger, loaded, specs, changes, place, now, adopted or {})
        told = with_changes(action, loaded.specs, wanted, changes)
        reply = ledger.load(list(outcome), entries.keys, source, links=links, action=told)
        if reply.verdict is LoadVerdict.LOADED:
            origin = Origin(source, int(reply.details[0]), place)
            edited = dict.fromkeys((*changes.added, *changes.changed), origin)
            kept = {name: at for name, at in loaded.origins.items() if name in specs}
            return changes, {**kept, **edited}
        raise_refusal(reply, place)


def links_to_keep(ledger: Ledger, wanted: Mapping[str, JobSpec | None]) -> str:
    """What must not change between the check of who follows whom and the load: for load.lua.

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

    Raises JobElsewhere and TooManyJobs.
    """
    if not changes.added or not (changes.changed or changes.removed):
        return
    refuse_entries(entries, changes.added if source != REDBEAT else (), place)
    ledger.check_room(len(changes.added) - len(changes.removed))


def refuse_entries(entries: Entries, names: Collection[str], place: str) -> None:
    """Raises JobElsewhere for the name of an entry that the app's own code has saved."""
    for name in entries.stock(names):
        raise JobElsewhere(name, REDBEATS, wanted_at=place)


def check_following(ledger: Ledger, wanted: Mapping[str, JobSpec | None]) -> None:
    """Raises InvalidJob for a job that would follow one that is not there, or go in a circle."""
    removed = [name for name, spec in wanted.items() if spec is None]
    followers = {name for names in ledger.followers.of(removed).values() for name in names}
    specs = {name: spec for name, spec in wanted.items() if spec is not None}
    specs.update(ledger.some_specs(followers - wanted.keys()))
    while more := {name for spec in specs.values() for name in spec.after} - {*specs, *removed}:
        found = ledger.some_specs(more)
        if not found:
            break
        specs.update(found)
    if following_problems(specs):
        left = [name for name in ledger.job_names() if name not in removed]
        problems = following_problems(specs, left, removed)
        texts = [p.what + (f" ({p.hint})" if p.hint else "") for p in problems]
        is_one = len(wanted) == 1 and problems[0].job in wanted
        words = texts if is_one else [f"{p.job}: {t}" for p, t in zip(problems, texts, strict=True)]
        raise InvalidJob(next(iter(wanted)) if len(wanted) == 1 else "", words)


def raise_refusal(reply: LoadReply, place: str) -> None:
    """Of one that stays; another edit, or a tick that came due, is a reason to start again."""
    if reply.verdict is LoadVerdict.ELSEWHERE:
        job, text = reply.details
        raise JobElsewhere(job, origin_from(text).place, wanted_at=place)
    if reply.verdict is LoadVerdict.FULL:
        raise TooManyJobs(int(reply.details[0]))


def settle(
    ledger: Ledger,
    loaded: Loaded,
    wanted: Mapping[str, JobSpec],
    changes: Changes,
    now: datetime,
) -> None:
    """Closes the accounts of schedules that end now; those of removed jobs emit nothing more."""
    ending = outgoing(loaded, wanted, changes)
    marks = ledger.marks([spec.name for spec in ending])
    for spec in ending:
        mark, schedule = marks[spec.name], schedule_of(spec)
        if mark.watermark is None:
            continue
        if spec.name not in wanted:
            ledger.pass_over(missed(spec, schedule, mark.watermark, now, "edited"))
            continue
        ledger.pass_over(missed(spec, schedule, mark.watermark, now - PROMPT, "edited"))
        prompt = emission(spec, schedule, max(mark.watermark, now - PROMPT), now, mark.pause)
        ledger.pass_over(prompt.passed)
        ledger.admit(prompt.ticks)
    for finding in audit(ledger, ending, now):
        note(finding)


def shown(name: str) -> str:
    """An entry's, for people: on one line, and without what a terminal acts upon."""
    text = name if name.isprintable() else ascii(name)[1:-1]
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def changes_of(
    ledger: Ledger,
    loaded: Loaded,
    wanted: Mapping[str, JobSpec],
    changes: Changes,
    place: str,
    now: datetime,
    adopted: Mapping[str, AdoptedEntry],
) -> Iterator[JobChange]:
    """What load.lua is to do, for jobs that are still of the versions that were read."""
    paused = stated_pauses(ledger, [*changes.added, *loaded.unread])
    ending = next_ticks(outgoing(loaded, wanted, changes), now)
    for name in (*changes.added, *changes.changed):
        spec, before = wanted[name], loaded.specs.get(name)
        is_new = has_new_times(name, loaded, wanted)
        was_paused = before.paused if before else paused[name]
        entry = adopted.get(name)
        is_renamed = entry is not None and entry.name != name
        yield JobChange(
            name,
            spec,
            version=version_of(loaded, name),
            place=f"{place}: {shown(entry.name)}" if entry and is_renamed else place,
            definition=entry.definition if entry else definition_text(spec),
            entry=entry.name if entry and is_renamed else "",
            has_new_times=is_new,
            is_paused=spec.paused if spec.paused != was_paused else None,
            next_at=schedule_of(spec).next_after(now) if is_new else None,
            due_at=ending.get(name),
        )
    for name in changes.removed:
        yield JobChange(name, None, version=version_of(loaded, name), due_at=ending.get(name))


def next_ticks(specs: Sequence[JobSpec], now: datetime) -> dict[str, datetime]:
    found = {spec.name: schedule_of(spec).next_after(now) for spec in specs}
    return {name: at for name, at in found.items() if at is not None}


def version_of(loaded: Loaded, name: str) -> int:
    return loaded.origins[name].version if name in loaded.origins else 0
