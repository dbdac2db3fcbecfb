"""A job's mapping from a schedule file -> JobSpec, and all that is wrong with it in words."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from inspect import Parameter, Signature
from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from supervisor.catalog.yaml_source import UNREADABLE, KeyPath
from supervisor.errors import (
    InvalidGuard,
    InvalidKey,
    InvalidSchedule,
    closest,
    did_you_mean,
    shown,
)
from supervisor.job.fields import ClockChanges, ItemFault
from supervisor.job.policies import OverlapPolicy
from supervisor.job.spec import GuardedTaskSpec, JobSpec, StepSpec
from supervisor.job.when import KINDS, When
from supervisor.schedule import is_fixed, schedule_of
from supervisor.schedule.cron import parse as parse_cron
from supervisor.times import EPOCH, Duration

# What is wrong with a job: pydantic's errors in plain words.


@dataclass(frozen=True, slots=True)
class JobFault:
    """One thing wrong with a job; `keys` are those it is about, the likeliest first.

    `path` leads from the first of them to what is wrong inside its value.
    """

    keys: tuple[str, ...]
    what: str
    hint: str | None = None
    path: KeyPath = ()

    @property
    def text(self) -> str:
        return self.what + (f" ({self.hint})" if self.hint else "")

    def place_in(self, values: Mapping[str, Any]) -> KeyPath:
        """The path of the first of its keys that the job has; empty if it has none of them."""
        return next(((key, *self.path) for key in self.keys if key in values), ())


def item_faults(key: str, faults: Sequence[ItemFault]) -> Iterator[JobFault]:
    """The faults of a list or a mapping, each at its own place."""
    for fault in faults:
        yield JobFault((key,), f"{key!r}: {fault.what}", fault.hint, fault.path)


def fault_of(
    key: str, detail: ErrorDetails, fields: Mapping[str, FieldInfo] = JobSpec.model_fields
) -> JobFault:
    value, kind, context = detail["input"], detail["type"], detail.get("ctx", {})
    if key == "name" and fields is JobSpec.model_fields:
        return JobFault((), f"{shown(value)} is not a name for a job", NAME_HINT)
    if kind == "value_error":
        what, hint = apart(str(context["error"]))
        return JobFault((key,), f"{key!r}: {what}", hint or _clock_hint(value))
    if kind == "enum":
        return _enum_fault(key, value, fields)
    if key in EXPECTED_OF_KEYS:
        what, hint = EXPECTED_OF_KEYS[key]
        return JobFault((key,), f"{key!r}: {shown(value)} {what}", hint)
    what = EXPECTED.get(kind, detail["msg"]).format(**context)
    is_whole = kind in ("tuple_type", "dict_type", "model_type")
    hint = EXAMPLES.get(key, HINTS.get(kind)) if is_whole else HINTS.get(kind)
    return JobFault((key,), f"{key!r}: {shown(value)} {what}", hint)


def part_fault(detail: ErrorDetails) -> JobFault:
    """The fault of one of the times of `at`, of a label, or of a key of `dst`."""
    key, part = str(detail["loc"][0]), detail["loc"][1]
    if detail["loc"][-1] == "[key]":
        what, hint = f"{shown(part)} is not a name for a label", "letters, digits and _ only"
        return JobFault((key,), f"{key!r}: {what}", f"{hint}, at most 63", (part,))
    if key != "dst":
        fault = replace(fault_of(key, detail), path=(part,))
        named = f"{key!r}: {shown(part)}: " if key == "labels" else f"{key!r}: "
        return replace(fault, what=fault.what.replace(f"{key!r}: ", named, 1))
    if detail["type"] == "extra_forbidden":
        hint = closest(part, ClockChanges.model_fields) or "known are gap and fold"
        return JobFault((key,), f"{key!r}: unknown key {shown(part)}", hint, (part,))
    fault = fault_of(str(part), detail, ClockChanges.model_fields)
    return JobFault((key,), f"{key!r}: {fault.what}", fault.hint, (part,))


def step_fault(detail: ErrorDetails) -> JobFault:
    """The fault of one step of a job; steps are counted from 1, as people do."""
    number, *rest = detail["loc"][1:]
    where, key = f"step {int(number) + 1}", str(rest[0]) if rest else None
    if detail["type"] == "conflict":
        keys = detail["ctx"]["keys"]
        return JobFault(("steps",), f"{where}: {detail['ctx']['text']}", None, (number, keys[0]))
    if detail["type"] == "missing":
        return JobFault(("steps",), f"{where}: {key!r} is missing", STEP_HINT, (number,))
    if detail["type"] == "extra_forbidden":
        hint = closest(key, StepSpec.model_fields)
        return JobFault(("steps",), f"{where}: unknown key {shown(key)}", hint, (number, *rest))
    if key is None:
        return JobFault(("steps",), f"{where} is not a mapping", STEP_HINT, (number,))
    fault = fault_of(key, detail, StepSpec.model_fields)
    return JobFault(("steps",), f"{where}: {fault.what}", fault.hint, (number, *rest))


STEP_HINT = "such as {task: proj.extract, priority: 3}"

NAME_HINT = "letters, digits and _ . - only, at most 100, a letter or digit first"

#: pydantic's name for an error -> what a person would say after the value.
EXPECTED = {
    "string_type": "is not text",
    "string_too_short": "is empty",
    "string_too_long": "is longer than {max_length} characters",
    "string_pattern_mismatch": "is not a name",
    "string_unicode": "has half a character",
    "int_type": "is not a whole number",
    "greater_than_equal": "is less than {ge}, the smallest allowed",
    "less_than_equal": "is more than {le}, the largest allowed",
    "bool_type": "is not true or false",
    "tuple_type": "is not a list",
    "dict_type": "is not a mapping of names to values",
    "model_type": "is not a mapping",
    "too_long": "has more items than {max_length}, the most allowed",
}

#: Keys whose values are of several types.
EXPECTED_OF_KEYS = {
    "serial": ("is not true, false or a name", NAME_HINT),
    "sentry_monitor": (
        "is not true, false or a monitor's slug",
        "small letters, digits, _ and -, at most 50",
    ),
    "mask": ("is neither true nor a list of names", "such as [password]"),
}

#: Examples for keys that are lists or mappings.
EXAMPLES = {
    "after": "such as [extract, load]",
    "steps": "such as [{task: proj.extract, priority: 3}]",
    "at": "such as [2026-12-24T18:00:00]",
    "labels": "such as {tenant: acme}",
    "dst": "such as {gap: skip, fold: both}",
}

HINTS = {
    "string_type": "put it in quotes",
    "string_pattern_mismatch": NAME_HINT,
    "int_type": "digits only, without quotes",
    "bool_type": "unquoted, and not yes, no, on or off",
    "tuple_type": "such as [1, two]",
    "dict_type": "such as {day: monday}",
}


def _enum_fault(key: str, value: Any, fields: Mapping[str, FieldInfo]) -> JobFault:
    annotation = fields[key].annotation
    kinds = (kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type))
    choices = [word.value for kind in kinds if issubclass(kind, StrEnum) for word in kind]
    what = f"{key!r}: {shown(value)} is not one of {', '.join(choices)}"
    return JobFault((key,), what, closest(value, choices))


def _clock_hint(value: Any) -> str | None:
    if isinstance(value, str) and re.fullmatch(r"\d+:\d\d(:\d\d)?", value):
        return "write 1:30 as 1h30m or as 1m30s"
    return None


def apart(text: str) -> tuple[str, str | None]:
    """Splits off the hint of `did_you_mean` that the text ends with."""
    what, mark, known = text.partition(" (did you mean ")
    return what, f"did you mean {known.removesuffix(')')}" if mark else None


KEYS = tuple(key for key in JobSpec.model_fields if key != "name")

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
    known_tasks: Tasks | None,
) -> tuple[JobSpec, list[JobFault]]:
    """The job and its faults; with any of these the spec holds stand-ins and is not to be used."""
    given = {key: value for key, value in own.items() if key in KEYS}
    values = {**defaults, **given, "name": name}
    spec, _, faults = _settle(values, from_defaults=set(defaults) - set(own))
    faults += _unknown_keys(own)
    faults += _schedule_faults(spec, own)
    faults += _argument_faults(spec)
    faults += _key_faults(spec)
    if known_tasks is not None:
        faults += _task_faults(spec, own, known_tasks)
        faults += known_tasks.faults(spec)
        refused = {key for fault in faults for key in fault.keys}
        if all(_is_readable(own.get(key)) and key not in refused for key in CALLED_WITH):
            faults += call_faults(spec, known_tasks)
    return spec, faults


def check_defaults(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[JobFault]]:
    """The defaults that hold, and the faults of the others."""
    allowed = {k: v for k, v in values.items() if k in KEYS and k not in NOT_IN_DEFAULTS}
    _, left, faults = _settle({**STAND_INS, **allowed})
    faults += _unknown_keys(values)
    faults += [
        JobFault((key,), f"{key!r} cannot be a default", "give it in each job")
        for key in NOT_IN_DEFAULTS
        if key in values
    ]
    return {key: value for key, value in left.items() if key in allowed}, faults


def _settle(
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


def _task_faults(spec: JobSpec, own: Mapping[str, Any], known_tasks: Tasks) -> Iterator[JobFault]:
    named: list[tuple[str, KeyPath, str]] = [
        ("steps", (number, "task"), step.task) for number, step in enumerate(spec.steps)
    ]
    if spec.task is not None and spec.task == own.get("task"):
        named.append(("task", (), spec.task))
    for key, path, task in named:
        if task not in known_tasks:
            hint = closest(task, known_tasks) or "not imported by this app, or another Celery()'s"
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
    spec: JobSpec, known_tasks: Mapping[str, Signature | None], *, is_run: bool = False
) -> Iterator[JobFault]:
    """Arguments that the tasks certainly refuse.

    A step may get what it lacks from params. A job that runs only when it is triggered may get
    other arguments then, so nothing is missing from it. is_run: they are those of a run.
    """
    if takes := known_tasks.get(spec.task or ""):
        for key, path, what in _violations(takes, spec.args, spec.kwargs):
            yield JobFault((key,), f"{key!r}: {what}", _taken(takes), path)
        is_whole = is_run or runs_by_itself(spec)
        for name in _missing(takes, spec.args, spec.kwargs) if is_whole else ():
            what = f"the task needs an argument {shown(name)}"
            yield JobFault(("kwargs", "args", "task"), what, _taken(takes))
    for number, step in enumerate(spec.steps):
        if takes := known_tasks.get(step.task):
            before = 0 if step.foreach is None else 1  # the item
            for key, path, what in _violations(takes, (*[None] * before, *step.args), step.kwargs):
                inside = (path[0] - before,) if isinstance(path[0], int) else path
                place = ("foreach",) if inside == (-1,) else (key, *inside)
                what = f"step {number + 1}: {place[0]!r}: {what}"
                yield JobFault(("steps",), what, _taken(takes), (number, *place))


def runs_by_itself(spec: JobSpec) -> bool:
    """Whether its own arguments are those of its runs."""
    return (spec.has_schedule or bool(spec.after)) and not spec.paused


def _violations(
    takes: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[str | int, ...], str]]:
    """The key, the place in it, and what is wrong there."""
    kinds = {parameter.kind for parameter in takes.parameters.values()}
    by_position = _by_position(takes)
    if len(args) > len(by_position) and Parameter.VAR_POSITIONAL not in kinds:
        what = f"the task takes {len(by_position)} by position, and gets {len(args)}"
        yield "args", (len(by_position),), what
    for name in kwargs:
        if name in by_position[: len(args)]:
            yield "kwargs", (name,), f"the task gets {shown(name)} by position as well"
        elif name not in takes.parameters and Parameter.VAR_KEYWORD not in kinds:
            yield "kwargs", (name,), f"the task takes no argument {shown(name)}"


def _missing(takes: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    given = {*_by_position(takes)[: len(args)], *kwargs}
    return [
        name
        for name, parameter in takes.parameters.items()
        if name not in given and parameter.default is Parameter.empty and not _is_open(parameter)
    ]


def _by_position(takes: Signature) -> list[str]:
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, parameter in takes.parameters.items() if parameter.kind in kinds]


def _is_open(parameter: Parameter) -> bool:
    return parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def _taken(takes: Signature) -> str:
    names = [name for name, each in takes.parameters.items() if not _is_open(each)]
    return f"it takes: {', '.join(names) or 'nothing'}"


def _is_readable(value: Any) -> bool:
    """Whether nothing in the value has a fault that is reported already."""
    if isinstance(value, dict):
        return all(map(_is_readable, value.values()))
    if isinstance(value, list):
        return all(map(_is_readable, value))
    return value is not UNREADABLE


# The `guard` of a task and of a call: all that is wrong with it is reported at once.


#: Keys of a job that mean nothing without a schedule, or that the task itself says.
NOT_IN_A_GUARD = (
    *When.model_fields,
    "task",
    "steps",
    "params",
    "args",
    "kwargs",
    "after",
    "after_match",
    "after_policy",
    "run_at_start",
    "catchup",
    "catchup_window",
    "paused",
    "due_by",
)


def guarded_task_spec(task: str, guard: Any) -> GuardedTaskSpec:
    """The job that a guarded task is. Raises InvalidGuard."""
    where = f"task {task!r}"
    if not isinstance(guard, Mapping):
        raise InvalidGuard(where, [f"{guard!r} is neither True nor a mapping of a job's keys"])
    return spec_without_schedule(where, task, {"task": task}, guard)


def spec_without_schedule(
    where: str, name: str, work: Mapping[str, Any], policies: Mapping[str, Any]
) -> GuardedTaskSpec:
    """The job that code makes of a task or of steps. work: these, as keys of a job.

    Raises InvalidGuard with all that is wrong.
    """
    refused = [f"{key!r} is not for a guarded task" for key in NOT_IN_A_GUARD if key in policies]
    own = {key: value for key, value in policies.items() if key not in NOT_IN_A_GUARD}
    # What a template needs is known when the task is called.
    checked = {key: value for key, value in own.items() if key != "key"}
    _, faults = check_job(name, {**checked, **work, "every": 60}, {}, None)
    problems = refused + [
        fault.what + (f" ({fault.hint})" if fault.hint else "") for fault in faults
    ]
    if problems:
        raise InvalidGuard(where, problems)
    try:
        return GuardedTaskSpec(**{**own, **work, "name": name})
    except ValidationError as error:
        raise InvalidGuard(where, [str(e["msg"]) for e in error.errors()]) from error


class GuardedCall(BaseModel):
    """The guard of one call; None for what the task's own guard has."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str | None = None
    overlap: OverlapPolicy | None = None
    max_wait: Duration | None = None

    @classmethod
    def of(cls, header: Any, task: str) -> Self:
        """Raises InvalidGuard."""
        where = f"a call of {task!r}"
        if header is None or header is True:
            return cls()
        if not isinstance(header, Mapping):
            raise InvalidGuard(where, [f"{header!r} is neither True nor a mapping"])
        try:
            return cls.model_validate(dict(header))
        except ValidationError as error:
            raise InvalidGuard(where, [words(detail) for detail in error.errors()]) from error


def words(detail: Any) -> str:
    key = str(detail["loc"][0])
    if detail["type"] == "extra_forbidden":
        return f"unknown key {key!r}{did_you_mean(key, GuardedCall.model_fields)}"
    return f"{key!r}: {detail['msg']}"
