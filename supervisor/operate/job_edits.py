"""Jobs that are saved or removed at run time, and what saving one would do: for the page, the API
and the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from redis.exceptions import NoPermissionError

from supervisor.catalog.job_checks import call_faults
from supervisor.catalog.put_checks import check_times, checked
from supervisor.catalog.yaml_source import KeyPath
from supervisor.errors import (
    InvalidJob,
    JobConflict,
    JobElsewhere,
    NotConfigured,
    UnknownJob,
)
from supervisor.job.changes import Changes
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import Action, Actor
from supervisor.ledger.job_record import AT_RUN_TIME, IN_CODE, Origin
from supervisor.ledger.ledger import Ledger
from supervisor.operate.job_documents import Document, mask_faults, revealed, shown_document
from supervisor.operate.planning import JobPlan, job_plan
from supervisor.operate.plans import (
    clock_change_shape,
    durations_text,
    forecast_shape,
    overlaps_text,
)
from supervisor.operate.shapes import iso_utc
from supervisor.store.failures import explained

if TYPE_CHECKING:
    from celery import Celery

    from supervisor.operate.unguarded import Unguarded


MOST_UNGUARDED = 1_000


@dataclass(frozen=True, slots=True)
class JobCheck:
    """What saving a job would do."""

    problems: tuple[str, ...]

    places: tuple[KeyPath, ...] = ()
    """For each problem, the keys that lead to what it is about, as far as that is known."""

    warnings: tuple[str, ...] = ()

    plan: JobPlan | None = None
    """None where there are problems, and nothing is saved."""

    @property
    def change(self) -> Literal["added", "changed", "unchanged"] | None:
        if self.plan is None:
            return None
        if self.plan.before is None:
            return "added"
        return "changed" if self.plan.edits else "unchanged"

    @property
    def overlaps(self) -> str:
        """The foreseen overlaps in a sentence; empty if there are none."""
        plan = self.plan
        if plan is None or plan.durations is None or plan.forecast is None:
            return ""
        return overlaps_text(plan.spec, plan.durations, plan.forecast)

    @property
    def durations(self) -> str:
        plan = self.plan
        return durations_text(plan.durations) if plan and plan.durations else ""


def check_shape(check: JobCheck) -> dict[str, Any]:
    """The check as JSON; every instant in UTC."""
    plan = check.plan
    return {
        "problems": list(check.problems),
        "warnings": list(check.warnings),
        "change": check.change,
        "next_ticks": [iso_utc(tick) for tick in plan.ticks_after] if plan else [],
        "clock_changes": [clock_change_shape(change) for change in plan.clock_changes]
        if plan
        else [],
        "overlaps": forecast_shape(plan.forecast) if plan and plan.forecast else None,
        "overlaps_text": check.overlaps or None,
    }


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """A loaded job and where it is from."""

    spec: JobSpec
    origin: Origin

    @property
    def is_editable(self) -> bool:
        return self.origin.source == AT_RUN_TIME


def check_version(name: str, loaded: LoadedJob | None, version: int | None) -> None:
    """Called before all other checks: faults of an outdated edit say little about the present job.

    Raises JobElsewhere and JobConflict.
    """
    if loaded and not loaded.is_editable:
        raise JobElsewhere(name, loaded.origin.place)
    present = loaded.origin.version if loaded else 0
    if version not in (None, present):
        raise JobConflict(name, present)


class JobEdits:
    """app: owns the jobs; without one, nothing can be saved."""

    def __init__(self, ledger: Ledger, app: Celery | None = None) -> None:
        self._ledger = ledger
        self._app = app

    @property
    def are_saved(self) -> bool:
        """Whether there is an app to save them for."""
        return self._app is not None

    def unguarded(self) -> list[Unguarded]:
        """The first of RedBeat's entries that are not jobs; none without an app.

        Raises NotConfigured where this user of Redis may not read RedBeat's schedule.
        """
        if self._app is None:
            return []
        from supervisor.operate.unguarded import unguarded

        try:
            return unguarded(self._app, self._ledger)[:MOST_UNGUARDED]
        except NoPermissionError as error:
            raise NotConfigured(explained(error)) from error

    def job(self, name: str) -> LoadedJob:
        """A job that is loaded, or a task that its own code guards. Raises UnknownJob."""
        return self._before(name) or LoadedJob(self._ledger.spec(name), IN_CODE)

    def version(self, name: str) -> int:
        """0 for a job that is not loaded."""
        before = self._before(name)
        return before.origin.version if before else 0

    def shown(self, job: LoadedJob) -> Document:
        return shown_document(job.spec, self._ledger.keys.prefix)

    def check(self, name: str, document: Mapping[str, Any]) -> JobCheck:
        """The check of a job that would be saved under this name, in place of the loaded one."""
        before = self._before(name)
        try:
            spec = self._checked(name, document, before)
            self._check_following(spec)
            check_times(self._ledger, name, spec)
            if before and not before.is_editable:
                raise JobElsewhere(name, before.origin.place)
            if before is None:
                self._check_entry(name)
        except InvalidJob as error:
            return JobCheck(error.problems, error.places)
        except JobElsewhere as error:
            return JobCheck((str(error),), ((),))
        loaded = before.spec if before else None
        durations = self._ledger.durations_of([spec])[spec.name]
        plan = job_plan(loaded, spec, durations, self._ledger.now())
        return JobCheck((), (), tuple(self._warnings(spec)), plan)

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
        NotConfigured, or Conflict: of the version, the source, or the number of jobs. Then nothing
        was changed.
        """
        with self._ledger.actions.trying(Action(by, "put", name, reason, (name,))) as action:
            before = self._before(name)
            check_version(name, before, version)
            spec = self._checked(name, document, before)
            check_times(self._ledger, name, spec)
            changes, origins = self._load({name: spec}, action, {name: version})
            return LoadedJob(spec, origins[name]), bool(changes.added)

    def remove(self, name: str, version: int | None, by: Actor, reason: str = "") -> None:
        """Raises UnknownJob, JobConflict, JobElsewhere and NotConfigured, and InvalidJob for one
        that others follow.
        """
        with self._ledger.actions.trying(Action(by, "remove", name, reason, (name,))) as action:
            changes, _ = self._load({name: None}, action, {name: version})
            if not changes:
                raise UnknownJob(name)

    def app_tasks(self) -> frozenset[str]:
        """The names of the tasks of the running workers."""
        presences = self._ledger.presences
        return presences.tasks(presences.processes().workers)

    def _before(self, name: str) -> LoadedJob | None:
        """The job as it is loaded."""
        loaded = self._ledger.loaded([name])
        spec = loaded.specs.get(name)
        return LoadedJob(spec, loaded.origins[name]) if spec else None

    def _checked(self, name: str, document: Mapping[str, Any], before: LoadedJob | None) -> JobSpec:
        """Raises InvalidJob."""
        prefix, spec = self._ledger.keys.prefix, before.spec if before else None
        given = revealed(document, spec, prefix) if spec else dict(document)
        faults = list(mask_faults(given, spec))
        masks, places = (
            [fault.text for fault in faults],
            [fault.place_in(given) for fault in faults],
        )
        try:
            checked_spec = checked(self._ledger, name, given)
        except InvalidJob as error:
            raise InvalidJob(name, [*error.problems, *masks], [*error.places, *places]) from None
        if masks:
            raise InvalidJob(name, masks, places)
        return checked_spec

    def _check_following(self, spec: JobSpec) -> None:
        """Raises InvalidJob for a job that follows a missing one, or itself in a circle."""
        from supervisor.catalog.load import check_by_features

        check_by_features(self._ledger, {spec.name: spec})

    def _check_entry(self, name: str) -> None:
        """Raises JobElsewhere for the name of an entry that the app's own code has saved."""
        if self._app is None:
            return
        from supervisor.catalog.entries import Entries
        from supervisor.catalog.load import refuse_entries

        entries = Entries(self._app, self._ledger)
        with suppress(NoPermissionError):  # saving needs the same permission
            refuse_entries(entries, [name], "")

    def _warnings(self, spec: JobSpec) -> list[str]:
        tasks = self.app_tasks()
        if not tasks:
            return [
                "no worker is running, so it is not checked whether one has the task",
                *self._violations(spec),
            ]
        unknown = [f"no running worker knows the task {t!r}" for t in spec.tasks if t not in tasks]
        return unknown + self._violations(spec)

    def _violations(self, spec: JobSpec) -> list[str]:
        """Arguments that the tasks refuse, only a warning: workers may have newer code."""
        if self._app is None:
            return []
        from supervisor.catalog.fitness import arguments_of

        of_app = self._app.tasks
        tasks = {name: arguments_of(of_app[name]) for name in spec.tasks if name in of_app}
        return [fault.text for fault in call_faults(spec, tasks)]

    def _load(
        self,
        jobs: Mapping[str, JobSpec | None],
        action: Action,
        versions: Mapping[str, int | None],
    ) -> tuple[Changes, dict[str, Origin]]:
        if self._app is None:
            raise NotConfigured("start the server with the Celery app: supervisor -A proj serve")
        from supervisor.catalog.entries import Entries
        from supervisor.catalog.load import put_jobs
        from supervisor.jobs import place_of

        entries = Entries(self._app, self._ledger)
        try:
            place = place_of(action.by) if any(jobs.values()) else ""
            return put_jobs(
                self._ledger, entries, jobs, AT_RUN_TIME, place, versions, action=action
            )
        except NoPermissionError as error:
            raise NotConfigured(explained(error)) from error
