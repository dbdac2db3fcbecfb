"""Cron expressions: checked field by field, then their nominal times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime

from cronsim import CronSim, CronSimError
from cronsim.cronsim import Field

from supervisor.errors import InvalidSchedule
from supervisor.job.fields import zone_names
from supervisor.schedule.clock_times import HORIZON
from supervisor.times import DAY

NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

#: Name, what it may hold, how many values that is.
FIELDS = (
    ("minute", "0-59", 60),
    ("hour", "0-23", 24),
    ("day-of-month", "1-31, L (last day) or LW (last working day)", 31),
    ("month", "1-12 or JAN-DEC", 12),
    ("day-of-week", "0-7 or SUN-SAT, 5L (last Friday) or 1#2 (second Monday)", 8),
)

#: What other programs read as a schedule, and what to write in its place.
FOREIGN = (
    (re.compile(r"(CRON_)?TZ="), "the zone is a key of its own (timezone: Europe/Berlin)"),
    (re.compile(r"@EVERY\b"), "use 'every' (every: 5m)"),
    (re.compile(r"@REBOOT$"), "use 'run_at_start: true'"),
    (re.compile(r"@(MINUTELY|EVERY_MINUTE)$"), "write * * * * *"),
    (re.compile(r"RATE\("), "use 'every' (every: 5m)"),
    (
        re.compile(r"CRON\(|.*\?"),
        "write five fields, minute first and no year, * in place of ?, and the names of weekdays:"
        " in Quartz and AWS 1 is Sunday",
    ),
    (re.compile(r"H(\s|/|\()|.*\s?H(\s|/|\()"), "there is no H of Jenkins; 'jitter' spreads jobs"),
)

LONGEST = 400

#: Only to take an expression apart and to see that it fires at all; any instant would do.
SOME_TIME = datetime(2024, 1, 1)


def parse(text: str) -> CronSim:
    """The five fields of `text`, taken apart. Raises InvalidSchedule."""
    fields = _split(text)
    fields = [_checked(number, one, text) for number, one in enumerate(fields)]
    try:
        simulation = CronSim(" ".join(fields), SOME_TIME)
        next(CronSim(" ".join(fields), SOME_TIME))
    except (CronSimError, StopIteration):
        raise InvalidSchedule(f"{text!r} never fires: no such day in these months") from None
    return simulation


def _split(text: str) -> list[str]:
    if len(text) > LONGEST:
        raise InvalidSchedule(f"a cron expression of {len(text)} characters; {LONGEST} are allowed")
    fields = text.upper().split()
    for pattern, hint in FOREIGN:
        if pattern.match(" ".join(fields)):
            raise InvalidSchedule(f"{text!r}: {hint}")
    if text.startswith("@"):
        if (nickname := text.strip().lower()) not in NICKNAMES:
            nicknames = ", ".join(NICKNAMES)
            what = f"{text!r} is not a known nickname"
            raise InvalidSchedule(f"{what}; known are {nicknames}")
        return NICKNAMES[nickname].split()
    if len(fields) > 1 and text.split()[-1] in zone_names():
        raise InvalidSchedule(
            f"{text!r}: the zone is a key of its own (timezone: {text.split()[-1]})"
        )
    if len(fields) == 6:
        raise InvalidSchedule(
            f"{text!r} has six fields; cron has five, without seconds or a year; for less than a"
            " minute use 'every' (every: 30s)"
        )
    if len(fields) != 5:
        raise InvalidSchedule(
            f"{text!r} has {len(fields)} field{'s' * (len(fields) != 1)}; cron has five: "
            "minute hour day-of-month month day-of-week"
        )
    return fields


def _checked(number: int, field: str, text: str) -> str:
    """The field, checked with stars for the others, so that an error is that of this field."""
    name, range_text, size = FIELDS[number]
    for step in re.findall(r"/([0-9]+)", field):
        if len(step) > 3 or int(step) >= size:
            raise InvalidSchedule(
                f"{text!r}: step /{step} is larger than the {name} field, it would fire once "
                "and start over; use 'every' for such intervals"
            )
    alone = ["*"] * len(FIELDS)
    try:
        alone[number] = field = ",".join(_term(number, term, text) for term in field.split(","))
        CronSim(" ".join(alone), SOME_TIME)
    except InvalidSchedule:
        raise
    except (CronSimError, ValueError, AssertionError):
        raise InvalidSchedule(
            f"{text!r}: {field!r} is not valid in the {name} field; it may hold {range_text}"
        ) from None
    return field


def _term(number: int, term: str, text: str) -> str:
    """A value, a range or a step, without the step of a range of one value, which has no next.

    cronsim would go on to the end of the field, and ignore a step after L.
    """
    if number == 2 and re.match(r"LW?/", term):
        raise InvalidSchedule(f"{text!r}: {term!r}: the last day has no step")
    if not (match := re.fullmatch(r"(\w+)-(\w+)(?:/\w+)?", term)):
        return term
    first, last = (Field(number + 1).int(word) for word in match.group(1, 2))
    if first == last:
        return match[1]
    if last < first:
        two = "write two, such as 22-23,0-2 or FRI-SAT,SUN-MON"
        raise InvalidSchedule(f"{text!r}: the range {term!r} runs backwards; {two}")
    return term


# `cron` as a pattern of days and times.


@dataclass(frozen=True, slots=True)
class CronPattern:
    """An expression taken apart."""

    fields: CronSim
    times: Sequence[int] = field(init=False)

    def __post_init__(self) -> None:
        hours, minutes = sorted(self.fields.hours), sorted(self.fields.minutes)
        times = tuple(hour * 3600 + minute * 60 for hour in hours for minute in minutes)
        object.__setattr__(self, "times", times)

    @property
    def is_frequent(self) -> bool:
        return len(self.fields.hours) == 24

    def days_from(self, day: date) -> Iterator[date]:
        limit = day.toordinal() + HORIZON.days
        while day.toordinal() <= limit:
            if day.month not in self.fields.months:
                day = _next_month(day)
                continue
            if self.fields.match_day(day):
                yield day
                limit = day.toordinal() + HORIZON.days
            day += DAY

    def times_on(self, day: date) -> Sequence[int]:
        matches = day.month in self.fields.months and self.fields.match_day(day)
        return self.times if matches else ()


def _next_month(day: date) -> date:
    return (day.replace(day=28) + 4 * DAY).replace(day=1)
