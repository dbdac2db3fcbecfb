"""A job's mapping from a schedule file -> JobSpec, and all that is wrong with it in words."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from inspect import Signature
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from supervisor.catalog.faults import (
    JobFault,
    apart,
    fault_of,
    item_faults,
    part_fault,
    step_fault,
)
from supervisor.catalog.yaml_source import UNREADABLE, KeyPath
from supervisor.errors import (
    InvalidKey,
    InvalidSchedule,
    closest,
    shown,
)
from supervisor.job.spec import OF_FEATURES, JobSpec
from supervisor.job.when import KINDS
from supervisor.lists.keys import OFFERED
from supervisor.schedule import is_fixed, schedule_of
from supervisor.schedule.cron import parse as parse_cron
from supervisor.times import EPOCH

#: Without those whose feature was deleted.
KEYS = tuple(
    key
    for key in JobSpec.model_fields
    if key != "name" and (key not in OF_FEATURES or any(key in keys for keys in OFFERED))
)

#: Keys that say times of their own, which may be beyond the calendar.
EDGES = ("end_at", "start_at", "exclude")

#: Keys that make a job itself, as against how it is treated: never shared by all jobs of a file.
NOT_IN_DEFAULTS = (
    "task",
    "steps",
    "params",
    *KINDS,
    "phase",
    "after",
    "after_match",
    "after_policy",
    "args",
    "kwargs",
    "ping_url",
    "description",
    "entry",
)

#: They limit or shift the times of a schedule, or say what is done with those that passed.
ONLY_WITH_A_SCHEDULE = (
    *("start_at", "end_at", "jitter", "exclude", "dst"),
    *("catchup", "catchup_window"),
)

MOST_HINTS = 50

LARGEST_ARGUMENTS = 16 * 1024


class Tasks(dict[str, Signature | None]):
    """Tasks by name, each with what it takes; None where only a call of it can say."""

    def faults(self, spec: JobSpec) -> Iterable[JobFault]:
        """What else of a job cannot be done where these tasks are."""
        return ()


#: Signatures of several tasks, which every app has under these names: they fail if called by them.
CANVAS = ("celery.chain", "celery.group")
CANVAS_HINT = "make one that sends it, or a job with 'steps'"

#: Take the place of what is wrong, so that the rest of the job is checked too.
STAND_INS: Mapping[str, Any] = {"name": "job", "task": "task", "every": 60}


def check_job(
    name: str,
    own: Mapping[str, Any],
    defaults: Mapping[str, Any],
    app_tasks: Tasks | None,
) -> tuple[JobSpec, list[JobFault]]:
    """The job and its faults; with any of these the spec holds stand-ins and is not to be used."""
    given = {key: value for key, value in own.items() if key in KEYS}
    values = {**defaults, **given, "name": name}
    spec, _, faults = _valid_part(values, from_defaults=set(defaults) - set(own))
    faults += _unknown_keys(own)
    faults += _schedule_faults(spec, own)
    faults += _argument_faults(spec)
    faults += _key_faults(spec)
    if app_tasks is not None:
        faults += _task_faults(spec, own, app_tasks)
        faults += app_tasks.faults(spec)
        refused = {key for fault in faults for key in fault.keys}
        if all(_is_readable(own.get(key)) and key not in refused for key in CALLED_WITH):
            faults += call_faults(spec, app_tasks)
    return spec, faults


def check_defaults(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[JobFault]]:
    """The defaults that hold, and the faults of the others."""
    allowed = {k: v for k, v in values.items() if k in KEYS and k not in NOT_IN_DEFAULTS}
    _, left, faults = _valid_part({**STAND_INS, **allowed})
    faults += _unknown_keys(values)
    faults += [
        JobFault((key,), f"{key!r} cannot be a default", "give it in each job")
        for key in NOT_IN_DEFAULTS
        if key in values
    ]
    return {key: value for key, value in left.items() if key in allowed}, faults


def _valid_part(
    values: Mapping[str, Any], from_defaults: Collection[str] = ()
) -> tuple[JobSpec, dict[str, Any], list[JobFault]]:
    """Takes out what is wrong, round by round, until what is left is a job.

    One round would not do: pydantic compares keys with each other only when each is right by
    itself, and it stops at the first comparison that fails.
    """
    wrong = {key for key, value in values.items() if not _is_readable(value)}
    left = {key: value for key, value in values.items() if key not in wrong}
    faults: list[JobFault] = []
    while True:
        try:
            return JobSpec.model_validate({**left, **_stand_ins(wrong, left)}), left, faults
        except ValidationError as error:
            reported, before = set(wrong), dict(left)
            for detail in _first_of_each_place(error):
                if detail["type"] == "conflict" and not detail["loc"]:
                    faults += _conflict(detail["ctx"], left, wrong, from_defaults)
                    continue
                key = str(detail["loc"][0]) if detail["loc"] else "steps"
                if key not in reported:
                    faults += _faults_of(key, detail)
                wrong.add(key)
            if "every" in wrong:
                wrong.add("phase")  # which cannot be judged without it
            left = {key: value for key, value in left.items() if key not in wrong}
            if left == before and reported == wrong:  # it would never end
                raise


def _faults_of(key: str, detail: ErrorDetails) -> Iterable[JobFault]:
    if detail["type"] == "inside":
        return item_faults(key, detail["ctx"]["faults"])
    if key == "steps" and len(detail["loc"]) > 1:
        return [step_fault(detail)]
    if key in ("at", "dst", "labels") and len(detail["loc"]) > 1:
        return [part_fault(detail)]
    return [fault_of(key, detail)]


def _stand_ins(wrong: set[str], left: Mapping[str, Any]) -> dict[str, Any]:
    """`every` stands for whichever schedule is wrong."""
    lacking = wrong - {"every"}
    if "steps" in wrong and left.get("task") is None:
        lacking |= {"task"}
    if wrong & set(KINDS) and all(left.get(kind) is None for kind in KINDS):
        lacking |= {"every"}
    return {key: STAND_INS[key] for key in lacking if key in STAND_INS}


def _conflict(
    context: Mapping[str, Any],
    left: Mapping[str, Any],
    wrong: set[str],
    from_defaults: Collection[str],
) -> Iterator[JobFault]:
    """Keys that do not go together: the last of those given is taken to be the wrong one."""
    keys: tuple[str, ...] = context["keys"]
    present = [key for key in keys if left.get(key) is not None]
    inherited = [key for key in present if key in from_defaults]
    if inherited:
        hint = f"{inherited[0]} is from 'defaults'; {inherited[0]}: null takes it back"
        yield JobFault(keys, context["text"], hint)
    elif present or not wrong & set(keys):
        yield JobFault(keys, context["text"], None if present else "it has none of them")
    wrong.add(present[-1] if present else keys[-1])


def _first_of_each_place(error: ValidationError) -> Iterable[ErrorDetails]:
    """A union reports each of its branches; one is enough. Parts of some keys have own places."""
    first: dict[tuple[int | str, ...], ErrorDetails] = {}
    for detail in error.errors(include_url=False):
        place = detail["loc"]
        depth = {"steps": 3, "at": 2, "dst": 2, "labels": 2}.get(str(place[0]), 1) if place else 0
        first.setdefault(place[:depth], detail)
    return first.values()


def _unknown_keys(values: Mapping[str, Any]) -> Iterator[JobFault]:
    unknown = len(values.keys() - set(KEYS))
    for key in values:
        if key == "name":
            yield JobFault((key,), "unknown key 'name'", "a job's name is its key under 'jobs'")
        elif key not in KEYS:
            # This many are no misspellings, and each hint takes its time.
            hint = closest(key, KEYS) if unknown <= MOST_HINTS else None
            yield JobFault((key,), f"unknown key {shown(key)}", hint)


def _schedule_faults(spec: JobSpec, values: Mapping[str, Any]) -> Iterator[JobFault]:
    """Faults of a schedule whose keys are right: its expression, and whether it has any times."""
    given = (kind for kind in KINDS if values.get(kind) is not None)
    kind = next((kind for kind in given if getattr(spec, kind) is not None), None)
    if kind is None:
        if not spec.has_schedule and not any(map(values.get, KINDS)):
            yield from _without_schedule(values)
        return
    if spec.start_at is None and values.get("start_at") is not None:
        spec = spec.model_copy(update={"start_at": EPOCH})  # its own fault is reported already
    if kind == "cron" and (faults := [*_line_faults(values["cron"])]):
        yield from faults
        return
    try:
        first = schedule_of(spec).next_after(EPOCH)
    except InvalidSchedule as error:
        what, hint = apart(str(error))
        yield JobFault((kind,), f"{kind!r}: {what}", hint)
        return
    except (ValueError, OverflowError) as error:
        keys = tuple(key for key in (*EDGES, kind) if values.get(key) is not None)
        yield JobFault(
            keys, f"{keys[0]!r}: {error}", "a time near the year 1 or 9999? write another"
        )
        return
    if first is None:
        what = f"{kind!r}: the job would never run"
        yield JobFault((kind,), what, "look at 'start_at', 'end_at' and 'exclude'")
    if values.get("dst") is not None and not is_fixed(spec):
        what = "'dst' says nothing here: the job runs every hour, or does not follow the clock"
        yield JobFault(("dst",), what, "leave it out")


def _line_faults(cron: str | Sequence[str]) -> Iterator[JobFault]:
    """The faults of several expressions, each at its own place."""
    lines = {(): cron} if isinstance(cron, str) else {(n,): line for n, line in enumerate(cron)}
    for path, line in lines.items():
        try:
            parse_cron(line)
        except InvalidSchedule as error:
            what, hint = apart(str(error))
            yield JobFault(("cron",), f"'cron': {what}", hint, path)


def _without_schedule(values: Mapping[str, Any]) -> Iterator[JobFault]:
    for key in ONLY_WITH_A_SCHEDULE:
        if values.get(key) is not None:
            hint = "give one of 'cron', 'every', 'rrule' and 'at', or leave it out"
            yield JobFault((key,), f"{key!r} says nothing here: the job has no schedule", hint)


def _key_faults(spec: JobSpec) -> Iterator[JobFault]:
    try:
        _ = spec.lock
    except InvalidKey as error:
        what, hint = apart(str(error))
        yield JobFault(("key",), f"'key': {what}", hint)


def _task_faults(spec: JobSpec, own: Mapping[str, Any], app_tasks: Tasks) -> Iterator[JobFault]:
    named: list[tuple[str, KeyPath, str]] = [
        ("steps", (number, "task"), step.task) for number, step in enumerate(spec.steps)
    ]
    if spec.task is not None and spec.task == own.get("task"):
        named.append(("task", (), spec.task))
    for key, path, task in named:
        if task not in app_tasks:
            hint = closest(task, app_tasks) or "not imported by this app, or another Celery()'s"
            yield JobFault((key,), f"unknown task {shown(task, 255)}", hint, path)
        elif task in CANVAS:
            yield JobFault((key,), f"{task} is no task of a worker", CANVAS_HINT, path)


def _argument_faults(spec: JobSpec) -> Iterator[JobFault]:
    size = 0
    given: dict[str, Any] = {"args": spec.args, "kwargs": spec.kwargs}
    if spec.steps:
        steps = [[step.args, step.kwargs] for step in spec.steps]
        given = {"params": spec.params, "steps": steps}
    for key, value in given.items():
        try:
            size += len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
        except ValueError:
            yield JobFault((key,), f"{key!r}: not JSON", "no .nan, no .inf, no half characters")
    if size > LARGEST_ARGUMENTS:
        what = f"the arguments are {size:,} bytes of JSON; {LARGEST_ARGUMENTS:,} are allowed"
        keys = ("args", "kwargs", "params", "steps")
        yield JobFault(keys, what, "store the data and pass where it is")


#: What the call of a task is made of.
CALLED_WITH = ("task", "args", "kwargs", "steps")


def call_faults(
    spec: JobSpec, app_tasks: Mapping[str, Signature | None], *, is_run: bool = False
) -> Iterator[JobFault]:
    """Arguments that the tasks certainly refuse, in Python's own words.

    A step may get what it lacks from params. A job that runs only when it is triggered may get
    other arguments then, so nothing is missing from it. is_run: they are those of a run.
    """
    if takes := app_tasks.get(spec.task or ""):
        is_whole = is_run or runs_by_itself(spec)
        if refusal := _refusal(takes, spec.args, spec.kwargs, is_whole=is_whole):
            yield JobFault(("kwargs", "args", "task"), *refusal)
    for number, step in enumerate(spec.steps):
        if takes := app_tasks.get(step.task):
            item = () if step.foreach is None else (None,)
            if refusal := _refusal(takes, (*item, *step.args), step.kwargs, is_whole=False):
                what, hint = refusal
                yield JobFault(("steps",), f"step {number + 1}: {what}", hint, (number,))


def runs_by_itself(spec: JobSpec) -> bool:
    """Whether its own arguments are those of its runs."""
    return (spec.has_schedule or bool(spec.after)) and not spec.paused


def _refusal(
    takes: Signature, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_whole: bool
) -> tuple[str, str] | None:
    """Why the task refuses these arguments, and what it takes; None if it takes them."""
    try:
        takes.bind_partial(*args, **kwargs)
        if is_whole:
            takes.bind(*args, **kwargs)
    except TypeError as error:
        return f"the task cannot be called like this: {error}", f"its arguments: {takes}"
    return None


def _is_readable(value: Any) -> bool:
    """Whether nothing in the value has a fault that is reported already."""
    if isinstance(value, dict):
        return all(map(_is_readable, value.values()))
    if isinstance(value, list):
        return all(map(_is_readable, value))
    return value is not UNREADABLE
