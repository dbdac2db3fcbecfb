"""What is wrong with a job, in words: pydantic's findings as a person would put them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from supervisor.files.yaml_source import shown
from supervisor.hints import closest
from supervisor.job.faults import ItemFault
from supervisor.job.spec import JobSpec
from supervisor.job.step_spec import StepSpec


@dataclass(frozen=True, slots=True)
class JobFault:
    """One thing wrong with a job; `keys` are those it is about, the most telling first.

    `path` leads from the first of them to what is wrong inside its value.
    """

    keys: tuple[str, ...]
    what: str
    hint: str | None = None
    path: tuple[str | int, ...] = ()


def item_faults(key: str, faults: Sequence[ItemFault]) -> Iterator[JobFault]:
    """Of a list or a mapping: each of its faults at its own place."""
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
    if key == "serial":
        return JobFault((key,), f"'serial': {shown(value)} is not true, false or a name", NAME_HINT)
    if key == "mask":
        what = f"'mask': {shown(value)} is neither true nor a list of names"
        return JobFault((key,), what, "such as [password]")
    what = EXPECTED.get(kind, detail["msg"]).format(**context)
    hint = NAME_HINT if kind == "string_pattern_mismatch" else HINTS.get(kind)
    return JobFault((key,), f"{key!r}: {shown(value)} {what}", hint)


def step_fault(detail: ErrorDetails) -> JobFault:
    """Of one step of a job; counted from 1, as people do."""
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


def _enum_fault(key: str, value: Any, fields: Mapping[str, FieldInfo]) -> JobFault:
    words = fields[key].annotation
    assert isinstance(words, type) and issubclass(words, StrEnum)
    choices = [word.value for word in words]
    what = f"{key!r}: {shown(value)} is not one of {', '.join(choices)}"
    return JobFault((key,), what, closest(value, choices))


def _clock_hint(value: Any) -> str | None:
    if isinstance(value, str) and re.fullmatch(r"\d+:\d\d(:\d\d)?", value):
        return "write 1:30 as 1h30m or as 1m30s"
    return None


def apart(text: str) -> tuple[str, str | None]:
    """A text that ends with the hint of `did_you_mean`, without it, and the hint."""
    what, mark, known = text.partition(" (did you mean ")
    return what, f"did you mean {known.removesuffix(')')}" if mark else None
