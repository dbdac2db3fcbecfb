"""The types of a job's keys that are neither durations nor policies."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
    ModelWrapValidatorHandler,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from supervisor.errors import InvalidDuration, closest, did_you_mean
from supervisor.job.exclusions import normal as normal_exclusions
from supervisor.job.faults import ItemFault, inside
from supervisor.job.log_url import LONGEST as LONGEST_TEMPLATE
from supervisor.job.log_url import checked_template
from supervisor.job.secrets import TOKEN, malformed
from supervisor.times import (
    DURATION_PATTERN,
    Moment,
    parse_duration,
    parse_moment,
    render_duration,
)

#: Names end up in Redis keys, metric labels, queue names and run ids ("name@time").
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"

#: Beat reads them all at every tick of the job.
MOST_INSTANTS = 1000

Name = Annotated[str, Field(pattern=NAME_PATTERN)]

#: Of messages, as kombu's transport for Redis has them.
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
    """The zones this machine knows; read once, because it is a walk through the file system."""
    return frozenset(available_timezones())


def _known(name: str) -> str:
    if name not in zone_names():
        hint = did_you_mean(name, zone_names()) if len(name) < LONGEST_ZONE else ""
        raise ValueError(f"unknown time zone {name[:LONGEST_ZONE]!r}{hint}")
    return name


Timezone = Annotated[str, AfterValidator(_known)]


def _moments(items: Any) -> Any:
    if not isinstance(items, list | tuple):
        raise inside([ItemFault((), f"{items!r} is not a list", "such as [2026-12-24T18:00:00]")])
    if not 0 < len(items) <= MOST_INSTANTS:
        what = f"{len(items):,} times; from 1 to {MOST_INSTANTS:,} are allowed"
        raise inside([ItemFault((), what)])
    moments, faults = [], []
    for number, item in enumerate(items):
        try:
            moments.append(parse_moment(item))
        except ValueError as error:
            faults.append(ItemFault((number,), str(error)))
    if faults:
        raise inside(faults)
    return moments


Moments = Annotated[tuple[Moment, ...], BeforeValidator(_moments)]

#: A job with more is better served by several, or by a rule.
MOST_CRON_LINES = 50


def _cron_lines(value: Any) -> Any:
    """One expression as it is; of a list, whose order is of no meaning, each in one form."""
    if not isinstance(value, list | tuple):
        return value
    if not 0 < len(value) <= MOST_CRON_LINES:
        what = f"{len(value):,} expressions; from 1 to {MOST_CRON_LINES} are allowed"
        raise inside([ItemFault((), what)])
    faults = []
    for number, line in enumerate(value):
        if not isinstance(line, str):
            faults.append(ItemFault((number,), f"{line!r} is not text", "put it in quotes"))
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


def _ping_url(value: Any) -> str:
    """Whatever is wrong with it, the address is a secret and not repeated."""
    if not isinstance(value, str) or not _may_be_address(value):
        raise ValueError("not an address such as https://hc-ping.com/<uuid>")
    return value


def _may_be_address(written: str) -> bool:
    """Of what a reference stands for nothing is known; it may be the whole address."""
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


PingUrl = Annotated[
    str,
    BeforeValidator(_ping_url),
    WithJsonSchema({"type": "string", "pattern": r"^(https?://|\$\{)", "maxLength": LONGEST_URL}),
]

#: As Sentry has names of monitors; one of digits alone it takes for an id.
MonitorSlug = (
    Annotated[bool, Field(strict=True)]
    | Annotated[str, Field(pattern=r"^[0-9]*[a-z_-][a-z0-9_-]*$", max_length=50)]
)

LogUrl = Annotated[
    str,
    AfterValidator(checked_template),
    WithJsonSchema({"type": "string", "pattern": "^https?://", "maxLength": LONGEST_TEMPLATE}),
]

_NAME = {"type": "string", "minLength": 1}
_ITEM = {
    "anyOf": [
        {
            "type": "string",
            "description": "a date, a range of dates, a weekday or a range of them",
            "examples": ["2026-12-24", "2026-12-24..2027-01-02", "SAT", "MON-FRI"],
        },
        *(
            {
                "type": "object",
                "required": [kind],
                "additionalProperties": False,
                "properties": {kind: _NAME},
            }
            for kind in ("holidays", "file", "ical")
        ),
    ]
}

Exclude = Annotated[
    tuple[str, ...],
    BeforeValidator(normal_exclusions),
    WithJsonSchema({"type": "array", "items": _ITEM}),
]


# Labels: what people sort jobs by.

#: As Prometheus has names of labels.
LABEL_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]{0,62}$"
MOST_LABELS = 10
LONGEST_LABEL = 100


def _labels(given: Any) -> dict[str, str]:
    """In the order of their names, so that the order in the file makes no difference."""
    if not isinstance(given, dict):
        raise inside([ItemFault((), f"{given!r} is not a mapping", "such as {tenant: acme}")])
    if len(given) > MOST_LABELS:
        what = f"{len(given)} labels; {MOST_LABELS} are allowed"
        raise inside([ItemFault((), what)])
    faults = [ItemFault((name,), *fault) for name in given if (fault := _label_fault(name, given))]
    if faults:
        raise inside(faults)
    return dict(sorted(given.items()))


def _label_fault(name: Any, given: Mapping[Any, Any]) -> tuple[str, str | None] | None:
    value = given[name]
    if not isinstance(name, str) or not re.fullmatch(LABEL_PATTERN, name):
        return f"{name!r} is not a name for a label", "letters, digits and _ only, at most 63"
    if not isinstance(value, str):
        return f"{name}: {value!r} is not text", "put it in quotes"
    if not 0 < len(value) <= LONGEST_LABEL or not value.isprintable():
        return f"{name}: not 1 to {LONGEST_LABEL} printable characters", None
    return None


Labels = Annotated[
    dict[str, str],
    BeforeValidator(_labels),
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": MOST_LABELS,
            "propertyNames": {"pattern": LABEL_PATTERN},
            "additionalProperties": {"type": "string", "minLength": 1, "maxLength": LONGEST_LABEL},
        }
    ),
]


TIME_OF_DAY = r"([01]?[0-9]|2[0-3]):([0-5][0-9])"


def _due_by(value: Any) -> time | timedelta:
    if isinstance(value, time):
        value = value.isoformat().removesuffix(":00")
    if isinstance(value, str) and ":" in value:
        if found := re.fullmatch(TIME_OF_DAY, value):
            return time(int(found[1]), int(found[2]))
        hint = "midnight is 00:00" if value == "24:00" else "hours and minutes, such as 06:00"
        raise inside([ItemFault((), f"{value!r:.40} is no time from 00:00 to 23:59", hint)])
    try:
        duration = parse_duration(value)
    except InvalidDuration as error:
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

    @model_validator(mode="wrap")
    @classmethod
    def _in_words(cls, value: Any, handler: ModelWrapValidatorHandler[ClockChanges]) -> Any:
        """All that is wrong, each at its own line, where pydantic would name its own types."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            hint = "such as {gap: skip, fold: both}"
            raise inside([ItemFault((), f"{value!r} is not a mapping", hint)])
        words: dict[str, type[StrEnum]] = {"gap": Gap, "fold": Fold}
        faults = []
        for key, word in value.items():
            choices = [choice.value for choice in words[key]] if key in words else []
            if key not in words:
                hint = closest(key, words) or "known are gap and fold"
                faults.append(ItemFault((key,), f"unknown key {key!r}", hint))
            elif word not in choices:
                what = f"{key}: {word!r} is not one of {', '.join(choices)}"
                faults.append(ItemFault((key,), what, closest(word, choices)))
        if faults:
            raise inside(faults)
        return handler(value)
