"""The types of a job's keys that are neither durations nor policies, and what is wrong with a key.

Faults are raised in a form in which pydantic passes on their place and their hint.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import time, timedelta
from enum import StrEnum
from functools import cache
from typing import Annotated, Any
from urllib.parse import urlsplit
from zoneinfo import available_timezones

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from supervisor.errors import did_you_mean, shown
from supervisor.job.exclusions import HolidayDates, InvalidExclusion, normal_texts, parse_all
from supervisor.job.secrets import TOKEN, malformed
from supervisor.job.templates import LONGEST_LOG_URL, checked_log_url
from supervisor.times import (
    DURATION_PATTERN,
    Moment,
    parse_duration,
    render_duration,
)


@dataclass(frozen=True, slots=True)
class ItemFault:
    """One thing wrong inside a list or a mapping; `path` leads from its key to the item."""

    path: tuple[str | int, ...]
    what: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """How a feature writes the value of a key in a form of its own; each function gets the year."""

    key: str

    read: Callable[[Any, int], tuple[Any, list[ItemFault]]]
    """As the core reads it, and what is wrong with it."""

    write: Callable[[Any, int], Any]
    """Of a loaded job, where loading that gives the same again."""


def conflict(text: str, *keys: str) -> PydanticCustomError:
    """An error about keys that are valid alone but not together."""
    return PydanticCustomError("conflict", "{text}", {"text": text, "keys": keys})


def check_needed(model: BaseModel, needed: str, *keys: str) -> None:
    """Raises a conflict for the first of these keys that is set, because `needed` is not."""
    for key in keys:
        if getattr(model, key) != type(model).model_fields[key].default:
            raise conflict(f"{key!r} needs {needed!r}", key)


def inside(faults: Sequence[ItemFault]) -> PydanticCustomError:
    """An error about wrong items: each is reported at its own line."""
    text = "; ".join(fault.what for fault in faults)
    return PydanticCustomError("inside", "{text}", {"text": text, "faults": tuple(faults)})


def repeated(items: Sequence[str]) -> list[int]:
    """The places of items that are the same as an earlier one."""
    first = {item: place for place, item in reversed(list(enumerate(items)))}
    return [place for place, item in enumerate(items) if first[item] != place]


#: Names end up in Redis keys, metric labels, queue names and run ids ("name@time").
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"

#: Beat reads them all at every tick of the job.
MOST_INSTANTS = 1000

Name = Annotated[str, Field(pattern=NAME_PATTERN)]

#: The priorities of messages that kombu's transport for Redis has.
PRIORITIES = range(10)
MessagePriority = Annotated[int, Field(ge=PRIORITIES[0], le=PRIORITIES[-1], strict=True)]

#: With the prefix of a ledger before it.
QueueName = Annotated[str, Field(pattern=NAME_PATTERN.replace("99", "200"))]

LARGEST_COUNT = 1_000_000
Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT, strict=True)]


#: The longest name there is has 32 characters.
LONGEST_ZONE = 64


@cache
def zone_names() -> frozenset[str]:
    """The zones this machine knows; read once, because it is a walk through the file system.

    Without two files beside them: the machine's own zone, which the next one may not have, and what
    a machine without a zone has.
    """
    return frozenset(available_timezones()) - {"localtime", "Factory"}


def _zone_name(name: str) -> str:
    if name not in zone_names():
        raise ValueError(f"unknown time zone {name[:LONGEST_ZONE]!r}{_zone_hint(name)}")
    return name


def _zone_hint(name: str) -> str:
    """Only a slip of the pen is corrected: a name that merely looks alike has another hour."""
    offset = re.fullmatch(r"(?:UTC|GMT)?[+-]0?(\d\d?)(?::?00)?", name)
    if offset and f"Etc/GMT+{(hours := offset[1])}" in zone_names():
        return f" ({hours} hours ahead of UTC is Etc/GMT-{hours}, behind it Etc/GMT+{hours})"
    near = ""
    if len(name) < LONGEST_ZONE and not name[-1:].isdigit():
        written = name.title() if name.islower() else name
        near = did_you_mean(written, zone_names(), ratio=0.9)
    return near or " (name it by a city: Europe/Berlin; or UTC)"


Timezone = Annotated[str, AfterValidator(_zone_name)]


Moments = Annotated[
    tuple[Moment, ...], Field(max_length=MOST_INSTANTS, json_schema_extra={"minItems": 1})
]

#: More are better written as several jobs, or as a rule.
MOST_CRON_LINES = 50


def _cron_lines(value: Any) -> Any:
    """A single expression as it is, and a list sorted, because its order means nothing."""
    if not isinstance(value, list | tuple):
        return value
    if not 0 < len(value) <= MOST_CRON_LINES:
        what = f"{len(value):,} expressions; from 1 to {MOST_CRON_LINES} are allowed"
        raise inside([ItemFault((), what)])
    faults = []
    for number, line in enumerate(value):
        if not isinstance(line, str):
            faults.append(ItemFault((number,), f"{shown(line)} is not text", "put it in quotes"))
        elif line in value[:number]:
            faults.append(ItemFault((number,), f"{line!r} is the same as one before it"))
    if faults:
        raise inside(faults)
    return value[0] if len(value) == 1 else tuple(sorted(value))


_CRON_LINES = {
    "type": "array",
    "items": {"type": "string"},
    "minItems": 1,
    "maxItems": MOST_CRON_LINES,
    "uniqueItems": True,
}

Cron = Annotated[
    str | tuple[str, ...],
    BeforeValidator(_cron_lines),
    WithJsonSchema({"anyOf": [{"type": "string"}, _CRON_LINES]}),
]

LONGEST_URL = 1000


def may_be_address(written: str) -> bool:
    """Whether it is an address, or begins with a reference, which may stand for a whole one."""
    if malformed(written) or len(written) > LONGEST_URL:
        return False
    return bool(TOKEN.match(written)) or is_address(TOKEN.sub("1", written))


def is_address(text: str) -> bool:
    if not re.fullmatch(r"https?://[!-~]+", text) or len(text) > LONGEST_URL:
        return False
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and parts.port != 0 and not parts.fragment
    except ValueError:
        return False


LogUrl = Annotated[
    str,
    AfterValidator(checked_log_url),
    WithJsonSchema({"type": "string", "pattern": "^https?://", "maxLength": LONGEST_LOG_URL}),
]

_NAME = {"type": "string", "minLength": 1}
_ITEM = {
    "anyOf": [
        {
            "type": "string",
            "description": "a date, a range of dates, a weekday or a range of them",
            "examples": ["2026-12-24", "2026-12-24..2027-01-02", "SAT", "MON-FRI"],
        },
        {
            "type": "object",
            "required": ["holidays"],
            "additionalProperties": False,
            "properties": {"holidays": _NAME},
        },
    ]
}


def _exclusions(items: Any) -> tuple[str, ...]:
    """The items of `exclude` in normal form."""
    if not isinstance(items, list | tuple):
        raise inside([ItemFault((), f"{shown(items)} is not a list", "such as [SAT, 2026-12-24]")])
    texts, faults = list[str](), list[ItemFault]()
    try:
        return normal_texts(tuple(items))
    except (InvalidExclusion, TypeError):
        pass  # reported below, item by item
    for number, item in enumerate(items):
        try:
            texts += item if isinstance(item, HolidayDates) else parse_all((item,)).texts
        except InvalidExclusion as error:
            faults.append(ItemFault((number,), str(error), error.hint))
    if not faults:
        try:
            return normal_texts(tuple(texts))
        except InvalidExclusion as error:
            faults.append(ItemFault((), str(error), error.hint))
    raise inside(faults)


Exclude = Annotated[
    tuple[str, ...],
    BeforeValidator(_exclusions),
    WithJsonSchema({"type": "array", "items": _ITEM}),
]


# Labels, by which people group jobs.

#: As Prometheus allows for names of labels.
LABEL_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]{0,62}$"
MOST_LABELS = 10
LONGEST_LABEL = 100


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError(f"{value!r} has characters that cannot be printed")
    return value


def _in_order(labels: dict[str, str]) -> dict[str, str]:
    """Sorted by name, so that the order in the file makes no difference."""
    return dict(sorted(labels.items()))


_LabelName = Annotated[str, Field(pattern=LABEL_PATTERN)]
_LabelValue = Annotated[
    str, Field(min_length=1, max_length=LONGEST_LABEL), AfterValidator(_printable)
]

Labels = Annotated[
    dict[_LabelName, _LabelValue], Field(max_length=MOST_LABELS), AfterValidator(_in_order)
]


TIME_OF_DAY = r"([01]?[0-9]|2[0-3]):([0-5][0-9])"


def _due_by(value: Any) -> time | timedelta:
    if isinstance(value, time):
        value = value.isoformat().removesuffix(":00")
    if isinstance(value, str) and ":" in value:
        if match := re.fullmatch(TIME_OF_DAY, value):
            return time(int(match[1]), int(match[2]))
        hint = "midnight is 00:00" if value == "24:00" else "hours and minutes, such as 06:00"
        raise inside([ItemFault((), f"{value!r:.40} is no time from 00:00 to 23:59", hint)])
    try:
        duration = parse_duration(value)
    except ValueError as error:
        hint = 'such as "06:00", or 45m after the tick'
        what = f"{value!r:.40} is neither a time of day nor a duration"
        raise inside([ItemFault((), what, hint)]) from error
    if duration < timedelta(seconds=1):
        raise inside([ItemFault((), "must be at least 1s")])
    return duration


def _due_by_text(due_by: time | timedelta) -> str:
    return f"{due_by:%H:%M}" if isinstance(due_by, time) else render_duration(due_by)


#: A time of day, or how long after a tick.
DueBy = Annotated[
    time | timedelta,
    BeforeValidator(_due_by),
    PlainSerializer(_due_by_text, return_type=str),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": f"^{TIME_OF_DAY}$"},
                {"type": "string", "pattern": DURATION_PATTERN},
                {"type": "number", "minimum": 1},
            ],
            "description": "a time of day such as 06:00, or a duration after the tick such as 45m",
        }
    ),
]


class Gap(StrEnum):
    """What is done with a time that the clock jumps over."""

    RUN = "run"
    SKIP = "skip"


class Fold(StrEnum):
    """Which copies of a repeated hour count."""

    FIRST = "first"
    SECOND = "second"
    BOTH = "both"


class ClockChanges(BaseModel):
    """What a job at fixed hours does when clocks change."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    gap: Gap = Gap.RUN
    """run: times that the clock jumps over run once at the end of the gap; skip: not at all."""
    fold: Fold = Fold.FIRST
    """Which copies of a repeated hour count: first, second or both."""
