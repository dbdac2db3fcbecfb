"""The types of a job's keys that are neither durations nor policies."""

from __future__ import annotations

import re
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
    WithJsonSchema,
    model_validator,
)

from supervisor.errors import closest, did_you_mean
from supervisor.job.exclusions import normal as normal_exclusions
from supervisor.job.faults import ItemFault, inside
from supervisor.job.secrets import TOKEN, malformed
from supervisor.times import Moment, parse_moment

#: Names end up in Redis keys, metric labels, queue names and run ids ("name@time").
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"

#: Beat reads them all at every tick of the job.
MOST_INSTANTS = 1000

Name = Annotated[str, Field(pattern=NAME_PATTERN)]

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

_FILE = {"type": "string", "minLength": 1}
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
                "properties": {kind: _FILE},
            }
            for kind in ("file", "ical")
        ),
    ]
}

Exclude = Annotated[
    tuple[str, ...],
    BeforeValidator(normal_exclusions),
    WithJsonSchema({"type": "array", "items": _ITEM}),
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
