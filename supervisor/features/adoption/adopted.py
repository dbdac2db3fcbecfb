"""RedBeat's entries that an app's own code saves, as jobs: `supervise(app, adopt_entries=True)`.

After it has emitted, the leading beat compares RedBeat's schedule with the jobs of this source:

1. An entry that is no job becomes one, as `supervisor import redbeat` would translate it. What is
   due at that very moment has been emitted by RedBeat's own code, for the last time. Where no job
   can have the entry's name, or another one has it, the job gets the nearest one, and keeps it.
2. A job whose entry was saved again becomes what that says: its hash has a field `adopted`, the
   definition that the job was made of. One that is not enabled is paused.
3. A job whose entry was deleted is removed. Without `adopt_entries` all are, and the entries stay.

The entry is the app's: its `definition` is never written, and its `meta` has what RedBeat would
have written there. An entry without a translation goes on as before, unguarded; the log says why.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from celery import Celery
from redbeat.decoder import RedBeatJSONDecoder, RedBeatJSONEncoder
from redbeat.schedulers import RedBeatSchedulerEntry

from supervisor.beat.turn import Turn
from supervisor.catalog.entries import (
    CELERYS_OWN,
    AdoptedEntry,
    Entries,
    SavedEntry,
    beat_schedule_of,
)
from supervisor.catalog.job_checks import check_job
from supervisor.catalog.load import put_jobs
from supervisor.errors import Conflict, InvalidJob, NotTranslatable
from supervisor.features.adoption.import_celery import item_of, translate
from supervisor.features.adoption.imported import (
    Item,
    LeftOut,
    is_job_name,
    job_name,
    without_defaults,
)
from supervisor.job.secrets import escaped
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import Action, Actor
from supervisor.ledger.job_record import REDBEAT, REDBEATS, Origin
from supervisor.ledger.ledger import Ledger
from supervisor.logs import get_logger
from supervisor.schedule.emission import Emission

log = get_logger("supervisor.beat")

#: Up to this many entries become jobs in one turn of beat.
ENTRIES_PER_TURN = 200

#: A comparison is followed by a pause of this many times its duration.
REST = 20


class Adopted:
    """is_on: entries become jobs; otherwise those that did so once are given back."""

    def __init__(self, app: Celery, ledger: Ledger, entries: Entries, *, is_on: bool) -> None:
        self._app = app
        self._ledger = ledger
        self._entries = entries
        self.is_on = is_on
        self._own: frozenset[str] = frozenset()
        self._refused: dict[str, str] = {}
        self._next = 0.0

    def begin(self) -> None:
        """Learns or gives back the adopted entries, before a new leader emits anything."""
        self._entries.learn_names()
        own = self._jobs(self._ledger.origins())
        if own and not self.is_on:
            self._apply(dict.fromkeys(own), {})
            self._entries.learn_names()
            log.warning("entries given back to RedBeat", entries=len(own))
        self._own = own if self.is_on else frozenset()

    def is_due(self, _: Turn) -> bool:
        return self.is_on

    def do(self, turn: Turn) -> None:
        self.record(turn.emissions)
        self.follow()

    def follow(self) -> None:
        """Makes jobs, edits and removes them, as RedBeat's schedule says now."""
        if time.monotonic() < self._next:
            return
        began = time.monotonic()
        origins = self._ledger.origins()
        own = self._jobs(origins)
        saved = self._entries.saved_by_app(own, but=origins)
        taken = {*origins, *self._entries.of_beat_schedule()}
        jobs, adopted = self._edited(own, saved, taken)
        self._own = own
        if jobs:
            self._apply(jobs, adopted)
            self._entries.learn_names()
            self._own = self._jobs(self._ledger.origins())
        self._next = time.monotonic() + REST * (time.monotonic() - began)

    def record(self, emissions: Iterable[Emission]) -> None:
        """Writes when these entries last ran, and how often, where RedBeat's users read it."""
        ran = {e.spec.name: e.ticks for e in emissions if e.ticks and e.spec.name in self._own}
        for name, meta in self._entries.metas(ran).items():
            before = json.loads(meta, cls=RedBeatJSONDecoder) if meta else {}
            count = int(before.get("total_run_count") or 0) + len(ran[name])
            last = {"last_run_at": ran[name][-1].nominal_at, "total_run_count": count}
            self._entries.write_meta(name, json.dumps(last, cls=RedBeatJSONEncoder))

    def _edited(
        self, own: frozenset[str], saved: Mapping[str, SavedEntry], taken: set[str]
    ) -> tuple[dict[str, JobSpec | None], dict[str, AdoptedEntry]]:
        """Jobs to load or, without a spec, to remove, and their entries. taken: names."""
        jobs: dict[str, JobSpec | None] = {}
        adopted: dict[str, AdoptedEntry] = {}
        # Names that jobs can have go to the entries that have them.
        changed = sorted(self._changed(own, saved), key=lambda each: not is_job_name(each[0]))
        for name, definition in changed:
            if len(jobs) == ENTRIES_PER_TURN:
                break
            before = self._entries.job(name)
            others = {*taken, *jobs, *(saved.keys() - {name})}
            job = before if before in own else job_name(name, others)
            entry = AdoptedEntry(name, definition or "")
            spec = self._translated(job, entry) if definition else None
            if spec is not None:
                jobs[job], adopted[job] = spec, entry
            elif job in own:
                jobs[job] = None
        return jobs, adopted

    def _apply(
        self, jobs: Mapping[str, JobSpec | None], adopted: Mapping[str, AdoptedEntry]
    ) -> None:
        """Applies them all at once, or one by one if one of them is refused."""
        try:
            self._put(jobs, adopted)
        except (InvalidJob, Conflict) as error:
            for job, spec in jobs.items():
                entry = {job: adopted[job]} if job in adopted else {}
                if len(jobs) == 1:
                    self._refuse(entry.get(job, AdoptedEntry(job, "")), error)
                else:
                    self._apply({job: spec}, entry)

    def _changed(
        self, own: frozenset[str], saved: Mapping[str, SavedEntry]
    ) -> Iterator[tuple[str, str | None]]:
        """Entries with their new definitions; None for one that was deleted."""
        for name, entry in saved.items():
            if self._entries.job(name) in own:
                is_new = entry.definition != entry.adopted
            else:
                is_new = entry.is_of_redbeat and entry.definition != self._refused.get(name)
            if is_new and name != CELERYS_OWN:
                yield name, entry.definition
        yield from ((name, None) for name in {*map(self._entries.name, own)} - saved.keys())

    def _translated(self, job: str, entry: AdoptedEntry) -> JobSpec | None:
        try:
            return spec_of(self._app, job, entry).kept_apart(self._ledger.keys.prefix)
        except NotTranslatable as error:
            self._refuse(entry, error)
            return None

    def _refuse(self, entry: AdoptedEntry, why: Exception) -> None:
        if self._refused.get(entry.name) != entry.definition:
            log.warning("entry left unguarded", entry=entry.name, reason=str(why))
        self._refused[entry.name] = entry.definition

    def _put(self, jobs: Mapping[str, JobSpec | None], adopted: Mapping[str, AdoptedEntry]) -> None:
        changes, _ = put_jobs(
            self._ledger,
            self._entries,
            jobs,
            REDBEAT,
            REDBEATS,
            adopted=adopted,
            action=Action(Actor.of_process("beat", "beat"), "load", REDBEATS),
        )
        for event, names in (
            ("entry adopted", changes.added),
            ("adopted entry edited", changes.changed),
            ("adopted entry removed", changes.removed),
        ):
            for job in names:
                log.info(event, job=job, entry=adopted[job].name if job in adopted else None)
        written = {*changes.added, *changes.changed}
        left = {job: entry.definition for job, entry in adopted.items() if job not in written}
        self._entries.note_adopted(left)

    @staticmethod
    def _jobs(origins: Mapping[str, Origin]) -> frozenset[str]:
        return frozenset(name for name, at in origins.items() if at.source == REDBEAT)


def why_unguarded(app: Celery, name: str, saved: SavedEntry | None) -> str:
    """saved: None for an entry of `beat_schedule`."""
    if saved is None:
        return why_of_code(app, name)
    if not app.supervisor["adopt_entries"]:  # type: ignore[attr-defined]
        return "no job has its name, or names it with 'entry'; and adopt_entries is off"
    try:
        spec_of(app, job_name(name), AdoptedEntry(name, saved.definition or ""))
    except NotTranslatable as error:
        return str(error)
    return "a job is made of it when beat looks next; if not, its log says why"


def why_of_code(app: Celery, name: str) -> str:
    entries = beat_schedule_of(app)
    if name not in entries:
        return "of the beat_schedule of other code: the next beat removes it"
    try:
        spec_from(job_name(name), item_of(name, entries[name], app, datetime.now(UTC)))
    except NotTranslatable as error:
        return f"of beat_schedule: {error}"
    return "of beat_schedule: `supervisor adopt` makes a job of it"


def spec_of(app: Celery, job: str, entry: AdoptedEntry) -> JobSpec:
    """The job of this name that is made of the entry. Raises NotTranslatable."""
    if not entry.name:
        raise NotTranslatable("it has no name")
    try:
        fields = dict(RedBeatSchedulerEntry.decode_definition(entry.definition))
    except Exception as error:  # its decoder builds objects of what it reads
        raise NotTranslatable(f"RedBeat cannot decode it: {error}") from error
    return spec_from(job, translate("RedBeat", entry.name, fields, app, datetime.now(UTC)))


def spec_from(job: str, item: Item) -> JobSpec:
    """Raises NotTranslatable, also for a job that lacks something of its entry."""
    if isinstance(item, LeftOut):
        raise NotTranslatable(item.why)
    if item.lost:
        raise NotTranslatable("; ".join(item.lost))
    values = without_defaults(item.values)
    values |= {key: escaped(values[key]) for key in ("args", "kwargs") if key in values}
    spec, faults = check_job(job, values, {}, None)
    if faults:
        raise NotTranslatable("; ".join(fault.what for fault in faults))
    return spec
