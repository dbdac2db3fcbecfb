"""`cron` as a pattern of days and times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date

from cronsim import CronSim

from supervisor.times.clock import DAY
from supervisor.timing.protocol import HORIZON


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
