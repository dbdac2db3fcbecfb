"""A job's mapping from a schedule file -> JobSpec, and all that is wrong with it in words."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from supervisor.errors import InvalidKey, InvalidSchedule, did_you_mean
from supervisor.spec import JobSpec
from supervisor.timing import schedule_of
from supervisor.yaml_source import UNREADABLE, shown

KEYS = tuple(key for key in JobSpec.model_fields if key != "name")

#: What a job is, as against how it is treated: never shared by all jobs of a file.
NOT_IN_DEFAULTS = ("task", "cron", "every", "args", "kwargs", "description")

LARGEST_ARGUMENTS = 16 * 1024

#: Take the place of what is wrong, so that the rest of the job is checked too.
STAND_INS: Mapping[str, Any] = {"name": "job", "task": "task", "every": 60}


@dataclass(frozen=True, slots=True)
class JobFault:
    """One thing wrong with a job; `keys` are those it is about, the most telling first."""

    keys: tuple[str, ...]
    what: str
    hint: str | None = None


def check_job(
    name: str,
    own: Mapping[str, Any],
    defaults: Mapping[str, Any],
    known_tasks: Collection[str] | None,
) -> tuple[JobSpec, list[JobFault]]:
    """The job and its faults; with any of these the spec holds stand-ins and is not to be used."""
    given = {key: value for key, value in own.items() if key in KEYS}
    values = {**defaults, **given, "name": name}
    spec, _, faults = _settle(values, from_defaults=set(defaults) - set(own))
    faults += _unknown_keys(own)
    faults += _cron_faults(spec)
    faults += _argument_faults(spec)
    faults += _key_faults(spec)
    if known_tasks is not None and spec.task == own.get("task"):
        faults += _task_faults(spec.task, known_tasks)
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
            return JobSpec.model_validate({**_stand_ins(wrong, left), **left}), left, faults
        except ValidationError as error:
            for detail in _first_of_each_key(error):
                if detail["type"] == "conflict":
                    faults += _conflict(detail["ctx"], left, wrong, from_defaults)
                else:
                    key = str(detail["loc"][0])
                    faults += [_fault(key, detail)] if key not in wrong else []
                    wrong.add(key)
            left = {key: value for key, value in left.items() if key not in wrong}


def _stand_ins(wrong: set[str], left: Mapping[str, Any]) -> dict[str, Any]:
    without = {"every"} if left.get("cron") is not None else set()
    return {key: STAND_INS[key] for key in wrong - without if key in STAND_INS}


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
        yield JobFault(keys, context["text"], None if present else "it has neither")
    wrong.add(present[-1] if present else keys[-1])


def _first_of_each_key(error: ValidationError) -> Iterable[ErrorDetails]:
    """A union reports each of its branches; one of them is enough."""
    first: dict[str, ErrorDetails] = {}
    for detail in error.errors(include_url=False):
        first.setdefault(str(detail["loc"][0]) if detail["loc"] else "", detail)
    return first.values()


def _fault(key: str, detail: ErrorDetails) -> JobFault:
    value, kind, context = detail["input"], detail["type"], detail.get("ctx", {})
    if kind == "missing":
        return JobFault((key,), f"{key!r} is missing", "the name of the Celery task")
    if key == "name":
        return JobFault((), f"{shown(value)} is not a name for a job", NAME_HINT)
    if kind == "value_error":
        what, hint = _apart(str(context["error"]))
        return JobFault((key,), f"{key!r}: {what}", hint or _clock_hint(value))
    if kind == "enum":
        return _enum_fault(key, value)
    if key == "serial":
        return JobFault((key,), f"'serial': {shown(value)} is not true, false or a name", NAME_HINT)
    what = EXPECTED.get(kind, detail["msg"]).format(**context)
    hint = NAME_HINT if kind == "string_pattern_mismatch" else HINTS.get(kind)
    return JobFault((key,), f"{key!r}: {shown(value)} {what}", hint)


NAME_HINT = "letters, digits and _ . - only, at most 100, a letter or digit first"

#: What pydantic calls it -> what a person would say after the value.
EXPECTED = {
    "string_type": "is not text",
    "string_too_short": "is empty",
    "string_too_long": "is longer than {max_length} characters",
    "string_pattern_mismatch": "is not a name",
    "int_type": "is not a whole number",
    "greater_than_equal": "is less than {ge}, the smallest allowed",
    "less_than_equal": "is more than {le}, the largest allowed",
    "bool_type": "is not true or false",
    "tuple_type": "is not a list",
    "dict_type": "is not a mapping of names to values",
}

HINTS = {
    "string_type": "put it in quotes",
    "int_type": "digits only, without quotes",
    "bool_type": "unquoted, and not yes, no, on or off",
    "tuple_type": "such as [1, two]",
    "dict_type": "such as {day: monday}",
}


def _enum_fault(key: str, value: Any) -> JobFault:
    words = JobSpec.model_fields[key].annotation
    assert isinstance(words, type) and issubclass(words, StrEnum)
    choices = [word.value for word in words]
    what = f"{key!r}: {shown(value)} is not one of {', '.join(choices)}"
    return JobFault((key,), what, closest(value, choices))


def _clock_hint(value: Any) -> str | None:
    if isinstance(value, str) and re.fullmatch(r"\d+:\d\d(:\d\d)?", value):
        return "write 1:30 as 1h30m or as 1m30s"
    return None


def _unknown_keys(values: Mapping[str, Any]) -> Iterator[JobFault]:
    for key in values:
        if key == "name":
            yield JobFault((key,), "unknown key 'name'", "a job's name is its key under 'jobs'")
        elif key not in KEYS:
            yield JobFault((key,), f"unknown key {shown(key)}", closest(key, KEYS))


def _cron_faults(spec: JobSpec) -> Iterator[JobFault]:
    try:
        schedule_of(spec)
    except InvalidSchedule as error:
        what, hint = _apart(str(error))
        yield JobFault(("cron",), f"'cron': {what}", hint)


def _key_faults(spec: JobSpec) -> Iterator[JobFault]:
    try:
        _ = spec.lock
    except InvalidKey as error:
        what, hint = _apart(str(error))
        yield JobFault(("key",), f"'key': {what}", hint)


def _task_faults(task: str, known_tasks: Collection[str]) -> Iterator[JobFault]:
    if task not in known_tasks:
        hint = closest(task, known_tasks) or "is its module among the app's imports?"
        yield JobFault(("task",), f"unknown task {shown(task, 255)}", hint)


def _argument_faults(spec: JobSpec) -> Iterator[JobFault]:
    if not spec.args and not spec.kwargs:
        return
    size = 0
    for key, value in (("args", spec.args), ("kwargs", spec.kwargs)):
        try:
            size += len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
        except ValueError:
            yield JobFault((key,), f"{key!r}: not JSON", "no .nan, no .inf, no half characters")
    if size > LARGEST_ARGUMENTS:
        what = f"'args' and 'kwargs' are {size:,} bytes of JSON; {LARGEST_ARGUMENTS:,} are allowed"
        yield JobFault(("args", "kwargs"), what, "store the data and pass where it is")


def _is_readable(value: Any) -> bool:
    """Whether nothing in the value has a fault that is reported already."""
    if isinstance(value, dict):
        return all(map(_is_readable, value.values()))
    if isinstance(value, list):
        return all(map(_is_readable, value))
    return value is not UNREADABLE


def closest(word: Any, known: Iterable[str]) -> str | None:
    """The hint of `did_you_mean`, for a problem that prints its own brackets."""
    return _apart(did_you_mean(word, known))[1] if isinstance(word, str) else None


def _apart(text: str) -> tuple[str, str | None]:
    what, mark, known = text.partition(" (did you mean ")
    return what, f"did you mean {known.removesuffix(')')}" if mark else None
