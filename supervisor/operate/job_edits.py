"""What a person saves or removes at run time, and what saving it would do: for the page, the API
and the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from redis.exceptions import NoPermissionError

from supervisor.errors import (
    InvalidJob,
    JobConflict,
    JobElsewhere,
    NotConfigured,
    UnknownJob,
    UnreadableJob,
)
from supervisor.job.changes import Changes
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import Action, Actor
from supervisor.ledger.connection import explained
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.records import AT_RUN_TIME, IN_CODE, Origin
from supervisor.ledger.scoped import EVERYTHING, Scope, ScopedLedger
from supervisor.operate.job_documents import Document, mask_faults, revealed, shown_document
from supervisor.operate.shapes import instant
from supervisor.operate.tables import durations_text, foresight_shape, overlaps_text, surprise_shape
from supervisor.ticks.plan import JobPlan, job_plan

if TYPE_CHECKING:
    from celery import Celery

    from supervisor.beat.adopted import Unguarded

MOST_UNGUARDED = 1_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What saving a job would do. plan: None where there are problems, and nothing is saved."""

    problems: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    plan: JobPlan | None = None

    @property
    def change(self) -> Literal["added", "changed", "unchanged"] | None:
        if self.plan is None:
            return None
        if self.plan.before is None:
            return "added"
        return "changed" if self.plan.edits else "unchanged"

    @property
    def overlaps(self) -> str:
        """In a sentence; empty where none are foreseen."""
        plan = self.plan
        if plan is None or plan.durations is None or plan.foresight is None:
            return ""
        return overlaps_text(plan.spec, plan.durations, plan.foresight)

    @property
    def durations(self) -> str:
        plan = self.plan
        return durations_text(plan.durations) if plan and plan.durations else ""


def verdict_shape(verdict: Verdict) -> dict[str, Any]:
    """As JSON; every instant in UTC."""
    plan = verdict.plan
    return {
        "problems": list(verdict.problems),
        "warnings": list(verdict.warnings),
        "change": verdict.change,
        "next_ticks": [instant(tick) for tick in plan.ticks_after] if plan else [],
        "clock_changes": [surprise_shape(surprise) for surprise in plan.surprises] if plan else [],
        "overlaps": foresight_shape(plan.foresight) if plan and plan.foresight else None,
        "overlaps_text": verdict.overlaps or None,
    }


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """A loaded job and where it is from."""

    spec: JobSpec
    origin: Origin

    @property
    def is_editable(self) -> bool:
        return self.origin.source == AT_RUN_TIME


def check_version(name: str, found: LoadedJob | None, wanted: int | None) -> None:
    """Before all else: what is wrong with an old edit says little about the job of now.

    Raises JobElsewhere and JobConflict.
    """
    if found and not found.is_editable:
        raise JobElsewhere(name, found.origin.place)
    version = found.origin.version if found else 0
    if wanted not in (None, version):
        raise JobConflict(name, version)


class JobEdits:
    """app: whose jobs they are; without one, nothing can be saved. seen: what the editor sees."""

    def __init__(
        self, ledger: Ledger, app: Celery | None = None, seen: ScopedLedger | None = None
    ) -> None:
        self._ledger = ledger
        self._app = app
        self._seen = seen

    @property
    def _scope(self) -> Scope:
        return self._seen.scope if self._seen else EVERYTHING

    @property
    def are_saved(self) -> bool:
        """Whether there is an app to save them for."""
        return self._app is not None

    def unguarded(self) -> list[Unguarded]:
        """The first of RedBeat's entries that are no job; none without an app.

        Raises NotConfigured where this user of Redis may not read RedBeat's schedule.
        """
        if self._app is None:
            return []
        from supervisor.beat.adopted import unguarded

        try:
            return unguarded(self._app, self._ledger)[:MOST_UNGUARDED]
        except NoPermissionError as error:
            raise NotConfigured(explained(error)) from error

    def job(self, name: str) -> LoadedJob:
        """One that is loaded, or guarded by its own code. Raises UnknownJob."""
        return self._before(name) or LoadedJob((self._seen or self._ledger).spec(name), IN_CODE)

    def version(self, name: str) -> int:
        """0 for a job that is not loaded."""
        before = self._before(name)
        return before.origin.version if before else 0

    def shown(self, job: LoadedJob) -> Document:
        return shown_document(job.spec, self._ledger.keys.prefix)

    def verdict(self, name: str, document: Mapping[str, Any]) -> Verdict:
        """Of a job that would be saved under the name, in place of what is loaded there."""
        from supervisor.jobs import check_times

        before = self._before(name)
        try:
            spec = self._checked(name, document, before)
            self._check_following(spec)
            check_times(self._ledger, name, spec)
            if not self._scope.is_everything:
                self._check_following(spec)  # of what the editor sees
            if before and not before.is_editable:
                raise JobElsewhere(name, before.origin.place)
            if before is None:
                self._check_entry(name)
        except InvalidJob as error:
            return Verdict(error.problems)
        except JobElsewhere as error:
            return Verdict((str(error),))
        [record] = self._ledger.records_of([spec])
        loaded = before.spec if before else None
        plan = job_plan(loaded, spec, record.durations, self._ledger.now())
        return Verdict((), tuple(self._warnings(spec)), plan)

    def save(
        self,
        name: str,
        document: Mapping[str, Any],
        version: int | None,
        by: Actor,
        reason: str = "",
    ) -> tuple[LoadedJob, bool]:
        """The job as it is loaded now, and whether it is new.

        version: the one that the editor has seen, 0 for none; None for any. Raises InvalidJob,
        JobConflict, JobElsewhere, TooManyJobs, and NotConfigured. Then nothing was changed.
        """
        from supervisor.jobs import check_times

        with self._ledger.actions.trying(Action(by, "put", name, reason, (name,))) as action:
            before = self._before(name)
            check_version(name, before, version)
            spec = self._checked(name, document, before)
            check_times(self._ledger, name, spec)
            if not self._scope.is_everything:
                self._check_following(spec)  # of what the editor sees
            changes, origins = self._load({name: spec}, action, {name: version})
            return LoadedJob(spec, origins[name]), bool(changes.added)

    def remove(self, name: str, version: int | None, by: Actor, reason: str = "") -> None:
        """Raises UnknownJob, JobConflict, JobElsewhere and NotConfigured, and InvalidJob for one
        that others follow.
        """
        with self._ledger.actions.trying(Action(by, "remove", name, reason, (name,))) as action:
            self._before(name)
            changes, _ = self._load({name: None}, action, {name: version})
            if not changes:
                raise UnknownJob(name)

    def known_tasks(self) -> frozenset[str]:
        """Those of the workers that run."""
        presences = self._ledger.presences
        return presences.tasks(presences.roll().workers)

    def _before(self, name: str) -> LoadedJob | None:
        """Raises UnknownJob for one that the editor does not see, or would not."""
        loaded = self._ledger.loaded([name])
        spec = loaded.specs.get(name)
        if not self._is_seen(name, spec):
            raise UnknownJob(name)
        return LoadedJob(spec, loaded.origins[name]) if spec else None

    def _is_seen(self, name: str, loaded: JobSpec | None) -> bool:
        """Whose name was that of a removed job has the runs of that one, which others may see."""
        if self._scope.is_everything or not self._scope.may_be(name):
            return self._scope.is_everything
        try:
            return self._scope.includes(loaded or self._ledger.spec_or_last(name))
        except UnreadableJob:
            return not self._scope.labels
        except UnknownJob:
            return True

    def _checked(self, name: str, document: Mapping[str, Any], before: LoadedJob | None) -> JobSpec:
        """Raises InvalidJob."""
        from supervisor.jobs import checked

        prefix, spec = self._ledger.keys.prefix, before.spec if before else None
        given = revealed(document, spec, prefix) if spec else dict(document)
        masks = [f"{fault.what} ({fault.hint})" for fault in mask_faults(given, spec)]
        try:
            found = checked(self._ledger, name, given)
        except InvalidJob as error:
            raise InvalidJob(name, [*error.problems, *masks]) from None
        missing = [label for label in self._scope.labels if not found.has_label(label)]
        masks += [
            f"labels: {label!r} is missing, without which you would not see it" for label in missing
        ]
        if masks:
            raise InvalidJob(name, masks)
        return found

    def _check_following(self, spec: JobSpec) -> None:
        """Raises InvalidJob for one that follows what is not there, or goes in a circle."""
        from supervisor.beat.put import check_following

        check_following(self._seen or self._ledger, {spec.name: spec})

    def _check_entry(self, name: str) -> None:
        """Raises JobElsewhere for the name of an entry that the app's own code has saved."""
        if self._app is None:
            return
        from supervisor.beat.entries import Entries
        from supervisor.beat.put import refuse_entries

        entries = Entries(self._app, self._ledger.client, self._ledger.keys)
        with suppress(NoPermissionError):  # who may not read RedBeat's schedule saves no job either
            refuse_entries(entries, [name], "")

    def _warnings(self, spec: JobSpec) -> list[str]:
        known = self.known_tasks()
        if not known:
            return ["no worker runs that could say whether it knows the task"]
        return [f"no worker that runs knows the task {t!r}" for t in spec.tasks if t not in known]

    def _load(
        self,
        wanted: Mapping[str, JobSpec | None],
        action: Action,
        versions: Mapping[str, int | None],
    ) -> tuple[Changes, dict[str, Origin]]:
        if self._app is None:
            raise NotConfigured("start the server with the Celery app: supervisor -A proj serve")
        from supervisor.beat.entries import Entries
        from supervisor.beat.put import put_in_place
        from supervisor.jobs import place_of

        entries = Entries(self._app, self._ledger.client, self._ledger.keys)
        try:
            place = place_of(action.by)
            return put_in_place(
                self._ledger, entries, wanted, AT_RUN_TIME, place, versions, action=action
            )
        except NoPermissionError as error:
            raise NotConfigured(explained(error)) from error
