"""Jobs that are saved or removed at run time, and what saving one would do: for the page, the API
and the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from redis.exceptions import NoPermissionError

from supervisor.catalog.faults import JobFault
from supervisor.catalog.import_text import ORDER, entry_text
from supervisor.catalog.job_checks import call_faults
from supervisor.catalog.schedule_files import with_forms
from supervisor.catalog.yaml_source import KeyPath
from supervisor.errors import (
    InvalidJob,
    JobConflict,
    JobElsewhere,
    NotConfigured,
    UnknownJob,
)
from supervisor.job.changes import ARGUMENTS, Changes
from supervisor.job.secrets import MASK, masked, texts_in
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import Action, Actor
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.records import AT_RUN_TIME, IN_CODE, Origin
from supervisor.lists.keys import ADDRESSES
from supervisor.operate.planning import JobPlan, job_plan
from supervisor.operate.plans import (
    clock_change_shape,
    durations_text,
    forecast_shape,
    overlaps_text,
)
from supervisor.operate.shapes import iso_utc
from supervisor.operate.words import json_text
from supervisor.settings import DEFAULT_PREFIX
from supervisor.store.connection import explained

if TYPE_CHECKING:
    from celery import Celery

    from supervisor.features.adoption.adopted import Unguarded


MOST_UNGUARDED = 1_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What saving a job would do. plan: None where there are problems, and nothing is saved.

    places: for each problem, the keys that lead to what it is about, as far as that is known.
    """

    problems: tuple[str, ...]
    places: tuple[KeyPath, ...] = ()
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
        """The foreseen overlaps in a sentence; empty if there are none."""
        plan = self.plan
        if plan is None or plan.durations is None or plan.forecast is None:
            return ""
        return overlaps_text(plan.spec, plan.durations, plan.forecast)

    @property
    def durations(self) -> str:
        plan = self.plan
        return durations_text(plan.durations) if plan and plan.durations else ""


def verdict_shape(verdict: Verdict) -> dict[str, Any]:
    """The verdict as JSON; every instant in UTC."""
    plan = verdict.plan
    return {
        "problems": list(verdict.problems),
        "warnings": list(verdict.warnings),
        "change": verdict.change,
        "next_ticks": [iso_utc(tick) for tick in plan.ticks_after] if plan else [],
        "clock_changes": [clock_change_shape(change) for change in plan.clock_changes]
        if plan
        else [],
        "overlaps": forecast_shape(plan.forecast) if plan and plan.forecast else None,
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
    """Called before all other checks: faults of an outdated edit say little about the present job.

    Raises JobElsewhere and JobConflict.
    """
    if found and not found.is_editable:
        raise JobElsewhere(name, found.origin.place)
    version = found.origin.version if found else 0
    if wanted not in (None, version):
        raise JobConflict(name, version)


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
        from supervisor.features.adoption.adopted import unguarded

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

    def verdict(self, name: str, document: Mapping[str, Any]) -> Verdict:
        """The verdict on a job that would be saved under this name, in place of the loaded one."""
        from supervisor.jobs import check_times

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
            return Verdict(error.problems, error.places)
        except JobElsewhere as error:
            return Verdict((str(error),), ((),))
        loaded = before.spec if before else None
        durations = self._ledger.durations_of([spec])[spec.name]
        plan = job_plan(loaded, spec, durations, self._ledger.now())
        return Verdict((), (), tuple(self._warnings(spec)), plan)

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
        from supervisor.jobs import check_times

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

    def known_tasks(self) -> frozenset[str]:
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
        from supervisor.jobs import checked

        prefix, spec = self._ledger.keys.prefix, before.spec if before else None
        given = revealed(document, spec, prefix) if spec else dict(document)
        faults = list(mask_faults(given, spec))
        masks, places = (
            [fault.text for fault in faults],
            [fault.place_in(given) for fault in faults],
        )
        try:
            found = checked(self._ledger, name, given)
        except InvalidJob as error:
            raise InvalidJob(name, [*error.problems, *masks], [*error.places, *places]) from None
        if masks:
            raise InvalidJob(name, masks, places)
        return found

    def _check_following(self, spec: JobSpec) -> None:
        """Raises InvalidJob for a job that follows a missing one, or itself in a circle."""
        from supervisor.catalog.load import check_wanted

        check_wanted(self._ledger, {spec.name: spec})

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
        known = self.known_tasks()
        if not known:
            return [
                "no worker is running that could say whether it knows the task",
                *self._violations(spec),
            ]
        unknown = [f"no running worker knows the task {t!r}" for t in spec.tasks if t not in known]
        return unknown + self._violations(spec)

    def _violations(self, spec: JobSpec) -> list[str]:
        """Arguments that the tasks refuse, only a warning: workers may have newer code."""
        if self._app is None:
            return []
        from supervisor.catalog.fitness import arguments_of

        known = self._app.tasks
        tasks = {name: arguments_of(known[name]) for name in spec.tasks if name in known}
        return [fault.text for fault in call_faults(spec, tasks)]

    def _load(
        self,
        wanted: Mapping[str, JobSpec | None],
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
            place = place_of(action.by)
            return put_jobs(
                self._ledger, entries, wanted, AT_RUN_TIME, place, versions, action=action
            )
        except NoPermissionError as error:
            raise NotConfigured(explained(error)) from error


# Jobs as people write them: the keys of a loaded job, and the text of a schedule file of them.
#
# What a page or the API shows of a job hides its secrets. What comes back from there with `***` in
# it keeps what the job has (`revealed`), as long as its tasks and its `mask` stay the same: else an
# edit would show what `mask` hides, or hand it to another task.


Document = dict[str, Any]
"""The keys of a job as a schedule file has them, defaults left out; values as JSON has them."""

#: Keys in which a mask may stand for a value; addresses are masked whatever `mask` says.
HIDING = (*ARGUMENTS, "steps")


def document_of(spec: JobSpec, prefix: str = DEFAULT_PREFIX) -> Document:
    """The keys of a job, with the secrets that are written out in it. prefix: of its ledger."""
    dumped = spec.model_dump(mode="json", exclude_defaults=True)
    if spec.serial:
        dumped["serial"] = own_serial(spec, prefix)
    dumped = with_forms(dumped, datetime.now(UTC).year)
    return {key: dumped[key] for key in ORDER if key in dumped}


def own_serial(spec: JobSpec, prefix: str) -> bool | str:
    """`serial` as it was before `JobSpec.kept_apart`."""
    plain = spec.model_copy(update={"serial": "-"}).kept_apart(prefix).serial
    name = str(spec.serial).removeprefix(str(plain).removesuffix("-"))
    return True if spec.serial is True or name == spec.name else name


def shown_document(spec: JobSpec, prefix: str = DEFAULT_PREFIX) -> Document:
    """The same with `***` for what `mask` hides, and for the secret part of addresses."""
    document = document_of(spec, prefix)
    for key in ARGUMENTS:
        if key in document:
            document[key] = masked(spec.mask, document[key])
    for key in ADDRESSES.keys() & document.keys():
        document[key] = ADDRESSES[key].mask(document[key])
    if "steps" in document:
        document["steps"] = [
            {
                key: masked(spec.mask, value) if key in ARGUMENTS else value
                for key, value in step.items()
            }
            for step in document["steps"]
        ]
    return document


def revealed(given: Mapping[str, Any], loaded: JobSpec, prefix: str = DEFAULT_PREFIX) -> Document:
    """The document with the loaded job's values where `shown_document` had `***` for them."""
    real, shown = document_of(loaded, prefix), shown_document(loaded, prefix)
    hides_the_same = given.get("mask", False) == shown.get("mask", False)
    is_same_work = given.get("task") == shown.get("task") and tasks(given) == tasks(shown)
    kept = HIDING if hides_the_same and is_same_work else ()
    found = {
        key: filled(value, shown.get(key), real.get(key)) if key in kept else value
        for key, value in given.items()
    }
    for key in ADDRESSES.keys() & given.keys():
        found[key] = ADDRESSES[key].reveal(given[key], shown.get(key), real.get(key))
    return found


def tasks(document: Mapping[str, Any]) -> list[Any]:
    steps = document.get("steps")
    found = steps if isinstance(steps, list) else []
    return [step.get("task") if isinstance(step, dict) else step for step in found]


def filled(given: Any, shown: Any, real: Any) -> Any:
    if given == shown:
        return real
    if isinstance(given, dict) and isinstance(shown, dict):
        return {key: filled(given[key], shown.get(key), (real or {}).get(key)) for key in given}
    if isinstance(given, list) and isinstance(shown, list) and len(given) == len(shown):
        return [filled(*items) for items in zip(given, shown, real, strict=True)]
    return given


def mask_faults(document: Mapping[str, Any], loaded: JobSpec | None) -> Iterable[JobFault]:
    """A fault for each `***` without a value behind it: it would be loaded as three stars."""
    real = document_of(loaded) if loaded else {}
    for key in (*HIDING, *ADDRESSES):
        known = dict(texts_in(real.get(key)))
        for path, text in texts_in(document.get(key)):
            is_address = key in ADDRESSES and text.endswith(f"/{MASK}")
            is_hidden = text == MASK or is_address
            if is_hidden and known.get(path) != text:
                what = f"{key!r}: {MASK} stands for a value that is hidden here"
                yield JobFault(
                    (key,), what, "write it out, or leave task and mask as they are", path
                )


# The text of a schedule file.


def schedule_text(
    specs: Iterable[JobSpec], prefix: str = DEFAULT_PREFIX, header: Iterable[str] = ()
) -> str:
    """A file that `supervisor check` accepts, and that loads these jobs as they are."""
    head = "".join(f"# {line}\n" for line in header)
    entries = [entry_text(spec.name, document_of(spec, prefix)) for spec in specs]
    return head + ("jobs:\n" + "\n".join(entries) if entries else "jobs: {}\n")


def schedule_json(specs: Iterable[JobSpec], prefix: str = DEFAULT_PREFIX) -> str:
    """The same as JSON, which YAML includes."""
    jobs = {spec.name: document_of(spec, prefix) for spec in specs}
    return json_text({"jobs": jobs}) + "\n"


def job_text(name: str, document: Document) -> str:
    """A schedule file of this job alone."""
    return "jobs:\n" + entry_text(name, document)


def document_text(document: Document) -> str:
    """The keys alone, as they stand below a job's name; empty without any."""
    if not document:
        return ""
    lines = entry_text("job", document).splitlines()[1:]
    return "".join(re.sub(r"^ {4}", "", line) + "\n" for line in lines)
