"""A year of a job's days: a column for each week, the worst outcome of each day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from supervisor.features.days.store import HIGHEST, counts_of
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import YEAR
from supervisor.times import DAY
from supervisor.web.axis import Label
from supervisor.web.strip import counted

#: Pixels: of a day with the gap to the next, and above and beside all of them, for the labels.
PITCH, TOP, LEFT = 14, 16, 30

#: What a day is shown as, the worst first, with a sign: not by colour alone.
SIGNS = {"failed": "x", "missed": "?", "skipped": "-", "succeeded": ""}

#: From these shares of a day's outcomes on the worst is drawn more strongly.
STRONGER = (0.05, 0.5)


@dataclass(frozen=True, slots=True)
class DayOfYear:
    """word: the worst outcome. strength: 0 to 2, by its share. x, y: pixels."""

    date: date
    counts: Mapping[str, int]
    word: str
    strength: int
    x: int
    y: int

    @property
    def sign(self) -> str:
        return SIGNS[self.word]

    @property
    def words(self) -> str:
        return f"{self.date:%d %B %Y}: {counted(self.counts)}{or_more(self.counts)}"


@dataclass(frozen=True, slots=True)
class Year:
    """days: those with an outcome, oldest first. months: where each begins."""

    days: Sequence[DayOfYear]
    months: Sequence[Label]
    words: str
    width: int = LEFT + YEAR // 7 * PITCH
    height: int = TOP + 7 * PITCH
    left: int = LEFT
    top: int = TOP
    pitch: int = PITCH


def on_job_page(ledger: Ledger, spec: JobSpec, now: datetime) -> dict[str, Any]:
    today = now.astimezone(UTC).date()
    return {"year": year_of(counts_of(ledger, spec.name, today), today)}


def year_of(counts: Mapping[date, Mapping[str, int]], today: date) -> Year | None:
    """Of YEAR days, the last week of which has today. None where nothing has happened in it."""
    monday = today - today.weekday() * DAY - (YEAR - 7) * DAY
    days = [day_of(day, counts[day], monday) for day in counts if day >= monday]
    if not days:
        return None
    total = sum((Counter(day.counts) for day in days), Counter[str]())
    words = f"{counted(total)} since {days[0].date:%d %B %Y}"
    return Year(days, list(months(monday, today)), words)


def day_of(day: date, counts: Mapping[str, int], monday: date) -> DayOfYear:
    word = next(word for word in SIGNS if word in counts)
    share = counts[word] / sum(counts.values())
    week, weekday = divmod((day - monday).days, 7)
    x, y = LEFT + week * PITCH, TOP + weekday * PITCH
    return DayOfYear(day, counts, word, sum(share >= least for least in STRONGER), x, y)


def or_more(counts: Mapping[str, int]) -> str:
    return " or more" if HIGHEST in counts.values() else ""


def months(monday: date, today: date) -> Iterator[Label]:
    """At the week that has the first day of each."""
    for week in range(YEAR // 7):
        last = monday + (7 * week + 6) * DAY
        if last.day <= 7 and last.replace(day=1) <= today:
            yield Label(LEFT + week * PITCH, f"{last:%b}")
