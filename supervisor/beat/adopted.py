"""RedBeat's entries that an app's own code saves, as jobs: `supervise(app, adopt_entries=True)`.

After it has emitted, the leading beat compares RedBeat's schedule with the jobs of this source:

1. An entry that is no job becomes one, as `supervisor import redbeat` would translate it. What is
   due at that very moment has been emitted by RedBeat's own code, for the last time.
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

from supervisor.beat.entries import Entries, SavedEntry
from supervisor.beat.import_celery import OF_BEAT, translate
from supervisor.beat.put import put_jobs
from supervisor.errors import InvalidJob, JobElsewhere, NotTranslatable, TooManyJobs
from supervisor.files.import_text import LeftOut, job_name, without_defaults
from supervisor.files.job_checks import check_job
from supervisor.job.secrets import escaped
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.records import REDBEAT, Origin
from supervisor.logs import get_logger
from supervisor.ticks.emission import Emission

log = get_logger("supervisor.beat")

#: Up to this many entries become jobs in one turn of beat.
ENTRIES_PER_TURN = 200

#: Where such a job stands, for people.
PLACE = "RedBeat's schedule"

#: For each second that a comparison took, so many pass before the next.
REST = 20


class Adopted:
    """is_wanted: entries are taken over; otherwise those that once were are given back."""

    def __init__(self, app: Celery, ledger: Ledger, entries: Entries, *, is_wanted: bool) -> None:
        self._app = app
        self._ledger = ledger
        self._entries = entries
        self._is_wanted = is_wanted
        self._own: frozenset[str] = frozenset()
        self._refused: dict[str, str] = {}
        self._next = 0.0

    def begin(self) -> None:
        """Before a beat that has begun to lead emits anything."""
        own = self._jobs(self._ledger.origins())
        if own and not self._is_wanted:
            self._apply(dict.fromkeys(own), {})
            log.warning("entries given back to RedBeat", entries=len(own))
        self._own = own if self._is_wanted else frozenset()

    def follow(self) -> None:
        """Makes jobs, edits and removes them, as RedBeat's schedule says now."""
        if not self._is_wanted or time.monotonic() < self._next:
            return
        began = time.monotonic()
        origins = self._ledger.origins()
        own = self._jobs(origins)
        found = self._entries.saved_by_app(own, but=origins)
        self._own = self._jobs(self._ledger.origins()) if self._follow(own, found) else own
        self._next = time.monotonic() + REST * (time.monotonic() - began)

    def record(self, emissions: Iterable[Emission]) -> None:
        """Writes when these entries last ran, and how often, where RedBeat's users read it."""
        ran = {e.spec.name: e.ticks for e in emissions if e.ticks and e.spec.name in self._own}
        for name, meta in self._entries.metas(ran).items():
            known = json.loads(meta, cls=RedBeatJSONDecoder) if meta else {}
            count = int(known.get("total_run_count") or 0) + len(ran[name])
            last = {"last_run_at": ran[name][-1].nominal_at, "total_run_count": count}
            self._entries.write_meta(name, json.dumps(last, cls=RedBeatJSONEncoder))

    def _follow(self, own: frozenset[str], found: Mapping[str, SavedEntry]) -> bool:
        """Returns whether there was anything to do."""
        wanted: dict[str, JobSpec | None] = {}
        definitions: dict[str, str] = {}
        for name, entry in self._changed(own, found):
            if len(wanted) == ENTRIES_PER_TURN:
                break
            spec = self._translated(name, entry.definition) if entry.definition else None
            if spec is not None:
                wanted[name], definitions[name] = spec, entry.definition or ""
            elif name in own:
                wanted[name] = None
        self._apply(wanted, definitions)
        return bool(wanted)

    def _apply(self, wanted: Mapping[str, JobSpec | None], definitions: Mapping[str, str]) -> None:
        """All at once; each for itself where one of them is refused."""
        try:
            self._put(wanted, definitions)
        except (InvalidJob, JobElsewhere, TooManyJobs) as error:
            for name, spec in wanted.items() if len(wanted) > 1 else ():
                self._apply({name: spec}, {n: t for n, t in definitions.items() if n == name})
            if len(wanted) == 1:
                self._refuse({name: definitions.get(name, "") for name in wanted}, error)

    def _changed(
        self, own: frozenset[str], found: Mapping[str, SavedEntry]
    ) -> Iterator[tuple[str, SavedEntry]]:
        for name, entry in found.items():
            if name in own:
                is_new = entry.definition != entry.adopted
            else:
                is_new = entry.is_stock and entry.definition != self._refused.get(name)
            if is_new and name != OF_BEAT:
                yield name, entry
        yield from ((name, SavedEntry()) for name in own - found.keys())

    def _translated(self, name: str, definition: str) -> JobSpec | None:
        try:
            return spec_of(self._app, name, definition).kept_apart(self._ledger.keys.prefix)
        except NotTranslatable as error:
            self._refuse({name: definition}, error)
            return None

    def _refuse(self, definitions: Mapping[str, str], why: Exception) -> None:
        for name, definition in definitions.items():
            if self._refused.get(name) != definition:
                log.warning("entry stays unguarded", entry=name, reason=str(why))
        self._refused.update(definitions)

    def _put(self, wanted: Mapping[str, JobSpec | None], definitions: Mapping[str, str]) -> None:
        if not wanted:
            return
        changes = put_jobs(
            self._ledger, self._entries, wanted, REDBEAT, PLACE, definitions=definitions
        )
        for event, names in (
            ("entry adopted", changes.added),
            ("adopted entry edited", changes.changed),
            ("adopted entry removed", changes.removed),
        ):
            for name in names:
                log.info(event, job=name)
        written = {*changes.added, *changes.changed}
        self._entries.note_adopted({n: t for n, t in definitions.items() if n not in written})

    @staticmethod
    def _jobs(origins: Mapping[str, Origin]) -> frozenset[str]:
        return frozenset(name for name, at in origins.items() if at.source == REDBEAT)


def spec_of(app: Celery, name: str, definition: str) -> JobSpec:
    """The job that is made of an entry of this name. Raises NotTranslatable."""
    if job_name(name) != name:
        raise NotTranslatable(f"a job cannot have its name; {job_name(name)!r} is one that it can")
    try:
        fields = dict(RedBeatSchedulerEntry.decode_definition(definition))
    except Exception as error:  # its decoder builds objects out of what it finds
        raise NotTranslatable(f"RedBeat cannot decode it: {error}") from error
    found = translate("RedBeat", name, fields, app, datetime.now(UTC))
    if isinstance(found, LeftOut):
        raise NotTranslatable(found.why)
    if found.lost:
        raise NotTranslatable("; ".join(found.lost))
    values = without_defaults(found.values)
    values |= {key: escaped(values[key]) for key in ("args", "kwargs") if key in values}
    spec, faults = check_job(name, values, {}, None)
    if faults:
        raise NotTranslatable("; ".join(fault.what for fault in faults))
    return spec
