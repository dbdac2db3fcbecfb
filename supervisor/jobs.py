"""Create, read, edit and remove jobs from code, while beats and workers are running.

``jobs.put("report-acme", task="proj.report", cron="0 6 * * *", kwargs={"tenant": "acme"})``

Such a job has the same keys as a job in a schedule file, is checked in the same way, and behaves
like any other job. It is stored in Redis, takes effect within about a second, and survives restarts
of beat. Jobs of schedule files can be read with these functions, but not changed.

All functions take a supervised Celery app as `app`; the default is the current app. When the ledger
is unavailable, they raise the exceptions of redis-py.

Changes are entered in the record of actions, with the name in `by` and the `reason`. Without `by`,
the name is SUPERVISOR_ACTOR or the system user.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

from celery import Celery, current_app

from supervisor.catalog.entries import Entries
from supervisor.catalog.load import put_jobs
from supervisor.catalog.put_checks import KeyValues, check_times, checked, problems_of_times
from supervisor.errors import InvalidJob, InvalidRequest, UnknownJob, did_you_mean
from supervisor.job.changes import Changes
from supervisor.job.fields import PRIORITIES
from supervisor.job.policies import AfterPolicy, OverlapPolicy
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import Action, Actor
from supervisor.ledger.job_record import AT_RUN_TIME, Origin
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.run_request import RunRequest
from supervisor.operate import control
from supervisor.schedule.expectations import next_ticks as ticks_of
from supervisor.sending.content import as_json
from supervisor.sending.publisher import publisher_of
from supervisor.sending.starting import options_of_caller
from supervisor.times import parse_duration

#: Characters of the name of a person who puts a job.
LONGEST_NAME = 100

#: Nominal times that are asked for at once.
MOST_TICKS = 10_000


@dataclass(frozen=True, slots=True)
class Job:
    """A loaded job."""

    name: str

    spec: JobSpec = field(repr=False)
    """Its keys."""

    source: str
    """`files`, `runtime`, or the source that it was put with."""

    version: int
    """It grows with each change, even if the job was removed in between."""

    place: str
    """Where the job is from, for people, such as `schedules/a.yaml:12`."""

    paused: bool
    """Whether it is paused now."""


def put(
    name: str,
    *,
    if_version: int | None = None,
    app: Celery | None = None,
    by: str | Actor = "",
    reason: str = "",
    source: str = AT_RUN_TIME,
    **keys: Any,
) -> Job:
    """Creates or edits a job. If the job is already the same, nothing changes.

    - `keys`: the keys of the job, as in a schedule file. Durations may be timedelta objects, times
      datetime objects (without fractions of a second), and times of day time objects.
    - `if_version`: the version that the caller has read; 0 means that the job must not exist.
    - `by`: the name of the person who makes the change.

    Raises InvalidJob with all problems (a job whose times have all passed is one), JobConflict if
    the version is another, JobElsewhere for a job of another source, and Conflict for too many
    jobs. If it raises, nothing has changed.
    """
    ledger, entries = ledger_of(app)
    with ledger.actions.trying(Action(actor_of(by), "put", name, reason, (name,))) as action:
        spec = checked(ledger, name, keys)
        check_times(ledger, name, spec)
        specs, versions, place = {name: spec}, {name: if_version}, place_of(by)
        _, origins = put_jobs(ledger, entries, specs, source, place, versions, action=action)
    return job_of(spec, origins[name], ledger.paused([name]))


def put_many(
    jobs: Mapping[str, KeyValues],
    *,
    app: Celery | None = None,
    by: str | Actor = "",
    reason: str = "",
    source: str = AT_RUN_TIME,
) -> Changes:
    """Creates or edits all of these jobs, or none of them. Other jobs are not changed.

    `jobs` maps names to keys. Raises InvalidJob with the problems of all jobs, InvalidRequest if
    `jobs` is not a mapping, and the other exceptions of `put`.
    """
    ledger, entries = ledger_of(app)
    check_type("jobs", jobs, Mapping, "a mapping of names to keys")
    names = tuple(map(str, jobs))
    with ledger.actions.trying(Action(actor_of(by), "put", ", ".join(names), reason, names)) as put:
        specs = checked_all(ledger, jobs)
        return put_jobs(ledger, entries, specs, source, place_of(by), action=put)[0]


def checked_all(ledger: Ledger, jobs: Mapping[str, KeyValues]) -> dict[str, JobSpec]:
    """Raises InvalidJob with the problems of all jobs."""
    specs, problems = {}, []
    for name, keys in jobs.items():
        try:
            specs[name] = checked(ledger, name, keys)
        except InvalidJob as error:
            problems += [f"{name}: {problem}" for problem in error.problems]
    problems += [f"{name}: {text}" for name, text in problems_of_times(ledger, specs).items()]
    if problems:
        raise InvalidJob("", problems)
    return specs


def get(name: str, *, app: Celery | None = None) -> Job:
    """Returns a job of any source.

    Raises UnknownJob, and UnreadableJob if only another version of this package can read it.
    """
    ledger, _ = ledger_of(app)
    jobs = jobs_of(ledger, [name])
    if not jobs:
        ledger.spec(name)  # raises, unless code guards it
        raise UnknownJob(name)
    return jobs[0]


def list(
    *,
    label: str | None = None,
    source: str | None = None,
    app: Celery | None = None,
) -> builtins.list[Job]:
    """Returns the loaded jobs, sorted by name.

    - `label`: only jobs with this label, as `tenant=acme`, or `tenant` for any value.
    - `source`: only jobs of this source.
    """
    ledger, _ = ledger_of(app)
    return [
        job
        for job in jobs_of(ledger, None)
        if source in (None, job.source) and (label is None or job.spec.has_label(label))
    ]


def remove(
    name: str,
    *,
    if_version: int | None = None,
    app: Celery | None = None,
    by: str | Actor = "",
    reason: str = "",
    source: str = AT_RUN_TIME,
) -> bool:
    """Removes a job, and returns whether it existed. Running runs of the job continue.

    Raises JobConflict if the version is not `if_version`, and JobElsewhere for a job of another
    source.
    """
    ledger, entries = ledger_of(app)
    versions = {name: if_version}
    with ledger.actions.trying(Action(actor_of(by), "remove", name, reason, (name,))) as action:
        removals = {name: None}
        done, _ = put_jobs(ledger, entries, removals, source, "", versions, action=action)
    return bool(done)


def pause(
    name: str,
    *,
    until: datetime | None = None,
    app: Celery | None = None,
    by: str | Actor = "",
    reason: str = "",
) -> None:
    """Pauses a job of any source until a time, or until it is resumed. The reason is shown with it.

    Raises UnknownJob, and InvalidRequest if `until` is in the past or is not a datetime.
    """
    check_type("until", until, datetime | None, "a datetime")
    control.pause(ledger_of(app)[0], name, until, by=actor_of(by), reason=reason)


def resume(name: str, *, app: Celery | None = None, by: str | Actor = "", reason: str = "") -> None:
    """Ends a pause. Raises UnknownJob."""
    control.resume(ledger_of(app)[0], name, by=actor_of(by), reason=reason)


def trigger(
    name: str,
    *,
    args: builtins.list[Any] | tuple[Any, ...] | None = None,
    kwargs: KeyValues | None = None,
    params: KeyValues | None = None,
    key: str | None = None,
    overlap: str | None = None,
    max_wait: str | float | timedelta | None = None,
    priority: int | None = None,
    at: datetime | None = None,
    after: str | None = None,
    after_policy: str = AfterPolicy.SUCCESS.value,
    run_id: str | None = None,
    app: Celery | None = None,
    by: str | Actor = "",
    reason: str = "",
) -> str:
    """Runs a job of any source now, even if it is paused, and returns the id of the run.

    - `args`, `kwargs`, `params`: replace those of the job. `key`, `overlap` and `max_wait`
      replace the job's lock key, its overlap policy, and the longest wait.
    - `priority`: the priority of the message, from 0 to 9.
    - `at`: the run waits until this time, which is in the job's time zone if it has no offset.
    - `after`: the id of a run. The new run waits until that one has ended. It is skipped if that
      run does not end as `after_policy` says: `success`, or `done` for any outcome.
    - `run_id`: the id of the new run.

    Raises UnknownJob, UnknownRun, InvalidKey, and InvalidRequest for arguments that the job cannot
    take or a time in the past.
    """
    check_type("args", args, builtins.list | tuple | None, "a list")
    check_type("kwargs", kwargs, Mapping | None, "a mapping")
    check_type("params", params, Mapping | None, "a mapping")
    check_type("at", at, datetime | None, "a datetime")
    for text, value in {"key": key, "after": after, "run_id": run_id}.items():
        check_type(text, value, str | None, "a text")
    publisher = publisher_of(app_or_current(app))
    ledger = publisher.ledger
    options = options_of(priority)
    request = RunRequest(
        run_id=run_id,
        args=None if args is None else in_json("args", builtins.list(args)),
        kwargs=None if kwargs is None else in_json("kwargs", dict(kwargs)),
        params=None if params is None else in_json("params", dict(params)),
        key=key,
        overlap=None if overlap is None else word_of(OverlapPolicy, "overlap", overlap),
        max_wait=None if max_wait is None else wait_of(max_wait),
        options={**options, **options_of_caller(publisher, ledger.spec(name))},
        after=after,
        after_policy=word_of(AfterPolicy, "after_policy", after_policy),
    )
    return control.trigger(ledger, name, request, at, by=actor_of(by), reason=reason).id


def options_of(priority: int | None) -> KeyValues:
    """The options of the message. Raises InvalidRequest."""
    if priority not in (None, *PRIORITIES):
        raise InvalidRequest(f"priority: {priority!r} is not a number from 0 to {PRIORITIES[-1]}")
    return {} if priority is None else {"priority": priority}


def in_json(name: str, value: Any) -> Any:
    """Raises InvalidRequest."""
    try:
        return as_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name}: not JSON: {error}") from error


def check_type(name: str, value: object, kind: Any, words: str) -> None:
    """Raises InvalidRequest."""
    if not isinstance(value, kind):
        raise InvalidRequest(f"{name}: {value!r:.100} is not {words}")


W = TypeVar("W", bound=StrEnum)


def word_of(kind: type[W], name: str, word: str) -> W:
    try:
        return kind(word)
    except ValueError:
        words = [each.value for each in kind]
        hint = did_you_mean(str(word), words) or f" (there are {', '.join(words)})"
        raise InvalidRequest(f"{name}: {word!r:.100} is no such word{hint}") from None


def wait_of(duration: str | float | timedelta) -> timedelta:
    """Raises InvalidRequest."""
    try:
        return parse_duration(duration)
    except ValueError as error:
        raise InvalidRequest(f"max_wait: {error}") from None


def next_ticks(name: str, count: int = 5, *, app: Celery | None = None) -> builtins.list[datetime]:
    """Returns the next scheduled times of a job, in UTC, even if the job is paused.

    `count` is at most 10,000. Raises UnknownJob and InvalidRequest.
    """
    if not isinstance(count, int) or not 0 < count <= MOST_TICKS:
        raise InvalidRequest(f"count: {count!r:.100} is not a number from 1 to {MOST_TICKS:,}")
    ledger, _ = ledger_of(app)
    return builtins.list(ticks_of(ledger.spec(name), ledger.now(), count))


# What the ledger has.


def ledger_of(app: Celery | None) -> tuple[Ledger, Entries]:
    """Raises NotConfigured for an app that is not supervised."""
    app = app_or_current(app)
    ledger = publisher_of(app).ledger
    return ledger, Entries(app, ledger)


def app_or_current(app: Celery | None) -> Celery:
    return app or current_app._get_current_object()  # type: ignore[attr-defined]


def jobs_of(ledger: Ledger, names: builtins.list[str] | None) -> builtins.list[Job]:
    loaded = ledger.loaded(names)
    paused = ledger.paused(builtins.list(loaded.specs))
    return [job_of(spec, loaded.origins[name], paused) for name, spec in loaded.specs.items()]


def job_of(spec: JobSpec, origin: Origin, paused: Collection[str]) -> Job:
    is_paused = spec.name in paused
    return Job(spec.name, spec, origin.source, origin.version, origin.place, is_paused)


def place_of(by: str | Actor) -> str:
    """Raises InvalidRequest."""
    name = by if isinstance(by, str) else by.words
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise InvalidRequest(f"by: up to {LONGEST_NAME} printable characters")
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"put at {at}" + (f" by {name}" if name else "")


def actor_of(by: str | Actor) -> Actor:
    """Raises InvalidRequest."""
    check_type("by", by, str | Actor, "a text")
    return Actor.of_process("python", by) if isinstance(by, str) else by


__all__ = [
    "Job",
    "get",
    "list",
    "next_ticks",
    "pause",
    "put",
    "put_many",
    "remove",
    "resume",
    "trigger",
]
