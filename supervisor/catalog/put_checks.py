"""The checks of a job that is put at run time: those of a schedule file, and of its times."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from supervisor.catalog.faults import JobFault
from supervisor.catalog.job_checks import Tasks, check_job
from supervisor.catalog.schedule_files import reference_faults, without_forms
from supervisor.errors import InvalidJob
from supervisor.job.secrets import directory_of
from supervisor.job.spec import JobSpec
from supervisor.job.when import When
from supervisor.ledger.ledger import Ledger
from supervisor.schedule import schedule_of
from supervisor.times import render_duration, render_moment

KeyValues = Mapping[str, Any]
"""The keys of a job, as code or a form has them."""

#: Their values belong to the task, and are not interpreted.
ARGUMENTS = ("args", "kwargs", "params", "steps")


def checked(ledger: Ledger, name: str, keys: KeyValues) -> JobSpec:
    """Raises InvalidJob with all that is wrong."""
    if not isinstance(keys, Mapping) or not all(isinstance(key, str) for key in keys):
        raise InvalidJob(str(name), ["the keys of a job are a mapping with texts as its keys"])
    spec, faults = judged(name, keys)
    if faults:
        raise InvalidJob(name, [f.text for f in faults], [f.place_in(keys) for f in faults])
    return spec.kept_apart(ledger.keys.prefix)


def judged(
    name: str, keys: KeyValues, app_tasks: Tasks | None = None
) -> tuple[JobSpec, list[JobFault]]:
    """The job, and all that is wrong with it: with faults, the spec is not to be used.

    app_tasks: any other is a fault, and so are arguments that they do not take.
    """
    own, faults = {}, list[JobFault]()
    for key, value in keys.items():
        try:
            own[key] = plain(value, is_argument=key in ARGUMENTS)
        except (TypeError, ValueError, RecursionError) as error:
            faults.append(JobFault((key,), f"{key!r}: not JSON: {error}"))
    own, form_faults = without_forms(own, datetime.now(UTC).year)
    spec, more = check_job(name, own, {}, app_tasks)
    faults += [*form_faults, *more, *reference_faults(spec, None, directory_of(os.environ))]
    return spec, faults


def problems_of_times(ledger: Ledger, specs: Mapping[str, JobSpec]) -> dict[str, str]:
    """The problems of jobs whose times are all past, by name. A job that is loaded with the same
    times may be put again.
    """
    ending = {
        name: spec for name, spec in specs.items() if spec.has_schedule and (spec.at or spec.end_at)
    }
    if not ending:
        return {}
    now = ledger.now()
    over = [name for name, spec in ending.items() if schedule_of(spec).next_after(now) is None]
    loaded = ledger.some_specs(over, remembered=False)
    return {
        name: "its times are all past: it would never run"
        for name in over
        if name not in loaded
        or any(getattr(loaded[name], k) != getattr(specs[name], k) for k in When.model_fields)
    }


def check_times(ledger: Ledger, name: str, spec: JobSpec) -> None:
    """Raises InvalidJob."""
    if problems := problems_of_times(ledger, {name: spec}):
        raise InvalidJob(name, list(problems.values()))


def plain(value: Any, *, is_argument: bool) -> Any:
    """The value as a schedule file would have it: lists, mappings, and durations and times as text.

    Raises TypeError, ValueError and RecursionError for what is not JSON.
    """
    return json.loads(json.dumps(value, default=None if is_argument else in_words))


def in_words(value: Any) -> str:
    """Raises TypeError."""
    if isinstance(value, timedelta):
        return render_duration(value)
    if isinstance(value, datetime):
        return render_moment(value.replace(microsecond=0))
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, time):
        return value.strftime("%H:%M:%S" if value.second else "%H:%M")
    raise TypeError(f"an object of type {type(value).__name__}")
