"""What is wrong with a job: pydantic's errors in plain words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from supervisor.catalog.yaml_source import KeyPath
from supervisor.errors import closest, did_you_mean, shown
from supervisor.job.fields import ClockChanges, ItemFault
from supervisor.job.spec import JobSpec
from supervisor.job.step_spec import StepSpec


@dataclass(frozen=True, slots=True)
class JobFault:
    """One thing wrong with a job."""

    keys: tuple[str, ...]
    """Those that it is about, the likeliest first."""

    what: str
    hint: str | None = None
    path: KeyPath = ()
    """From the first of the keys to what is wrong inside its value."""

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


def in_words(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """What is wrong with the guard of a call, or with the body of a request."""
    problems = []
    for detail in error.errors():
        key = str(detail["loc"][0]) if detail["loc"] else None
        if key is None:
            what = detail["msg"]
        elif detail["type"] == "extra_forbidden":
            what = f"unknown key {key!r}{did_you_mean(key, model.model_fields)}"
        else:
            what = fault_of(key, detail, model.model_fields).text
        problems.append(what)
    return problems


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
    "int_parsing": "is not a whole number",
    "bool_parsing": "is not true or false",
    "datetime_parsing": "is not a time such as 2026-03-01T02:00:00+00:00",
    "datetime_from_date_parsing": "is not a time such as 2026-03-01T02:00:00+00:00",
    "list_type": "is not a list",
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
    what, mark, hint = text.partition(" (did you mean ")
    return what, f"did you mean {hint.removesuffix(')')}" if mark else None
