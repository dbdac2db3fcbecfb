"""The summary of a day: what it counts, and its words. Pure.

1. Failed and skipped runs, and missed ticks, are counted by the ledger as they happen, of all jobs
   together, by the quarter of an hour: a part of a day in each time zone.
2. What takes a comparison - late starts, jobs that were slower than usual, which jobs failed most -
   is judged from the history of each job, once the day is over. A job of which that keeps less than
   the day is judged by what there is, and counted in `partial`: the summary says so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from statistics import median
from typing import Self
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict

from supervisor.errors import NotConfigured
from supervisor.job.run import FAILURES, RunState
from supervisor.job.run_ids import tick_id
from supervisor.times import DAY, first_instant, midnight

#: A job is slower than usual if its median took this many times as long as before, and this much
#: longer; with so many runs before.
SLOWER = 1.5
SLOWER_BY = timedelta(seconds=1)
RUNS_BEFORE = 3

#: Jobs that a summary names.
JOBS_NAMED = 3

#: By the clock of the day's zone, since when the day before is looked at: runs of its last minute
#: have been admitted by then.
DELAY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Day:
    """A day of a zone, from `start` to before `end`: 23 to 25 hours."""

    date: date
    zone: ZoneInfo

    @classmethod
    def before(cls, now: datetime, zone: ZoneInfo) -> Self:
        """The last one that is over."""
        return cls((now - DELAY).astimezone(zone).date() - DAY, zone)

    @property
    def start(self) -> datetime:
        return midnight(self.date, self.zone)

    @property
    def end(self) -> datetime:
        return midnight(self.date + DAY, self.zone)

    def at(self, clock: time) -> datetime:
        """When the clock of the zone shows this time on the day after."""
        return first_instant(datetime.combine(self.date + DAY, clock), self.zone)

    @property
    def day_before(self) -> Day:
        return Day(self.date - DAY, self.zone)


#: ``07:00``, ``07:00 Europe/Berlin``
DAILY = re.compile(r"(\d\d?):(\d\d)(?: +(\S+))?")


@dataclass(frozen=True, slots=True)
class Daily:
    zone: ZoneInfo
    """The time zone whose days are summed up."""

    clock: time | None = None
    """When the notice is sent; None where it is not."""

    @classmethod
    def of(cls, name: str, text: str) -> Self:
        """text: of the variable `name`. Raises NotConfigured."""
        if not text:
            return cls(ZoneInfo("UTC"))
        match = DAILY.fullmatch(text.strip())
        try:
            if match is None:
                raise ValueError("not a time")
            return cls(ZoneInfo(match[3] or "UTC"), time(int(match[1]), int(match[2])))
        except (ValueError, KeyError, OSError):
            such_as = "a time and a zone, such as 07:00 Europe/Berlin"
            raise NotConfigured(f"{name}: {text!r} is not {such_as}") from None


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run of the history."""

    id: str

    at: datetime
    """When it was admitted."""

    state: RunState
    nominal_at: datetime

    began_at: datetime | None
    """When its first attempt did; None if it never began."""

    seconds: float | None


@dataclass(frozen=True, slots=True)
class JobDay:
    job: str
    failed: int
    late: int

    slower: float | None
    """How many times as long as usual its runs took; None if it was not slower."""

    is_whole: bool
    """Whether all of the day is known."""


def job_day(
    job: str, runs: Sequence[PastRun], day: Day, late_after: timedelta, *, is_whole: bool
) -> JobDay:
    """`runs`: of the job's history, up to the end of the day, oldest first.

    A late start is that of a tick; runs by hand and of a backfill are not late.
    """
    of_day = [run for run in runs if day.start <= run.at < day.end]
    before = [run for run in runs if run.at < day.start]
    return JobDay(
        job,
        sum(run.state in FAILURES for run in of_day),
        sum(is_late(job, run, late_after) for run in of_day),
        slower(durations(of_day), durations(before)),
        is_whole,
    )


def is_late(job: str, run: PastRun, late_after: timedelta) -> bool:
    if run.began_at is None or run.id != tick_id(job, run.nominal_at):
        return False
    return run.began_at - run.nominal_at > late_after


def durations(runs: Iterable[PastRun]) -> list[float]:
    lengths = (run.seconds for run in runs if run.state is RunState.SUCCEEDED)
    return [seconds for seconds in lengths if seconds is not None]


def slower(seconds: Sequence[float], before: Sequence[float]) -> float | None:
    if not seconds or len(before) < RUNS_BEFORE:
        return None
    took, usual = median(seconds), median(before)
    is_slower = took >= SLOWER * usual and took - usual >= SLOWER_BY.total_seconds()
    return took / usual if is_slower and usual else None


class Summary(BaseModel):
    model_config = ConfigDict(frozen=True)

    date: date
    zone: str
    failed: int
    late: int
    slower: int
    skipped: int
    missed: int

    failing: dict[str, int] = {}
    """The jobs with most failures, and how many each had."""

    slow: dict[str, float] = {}
    """The jobs that slowed down most, and how many times as long as usual they took."""

    jobs: int = 0
    """How many were loaded."""

    partial: int = 0
    """Of how many jobs less than the day is known."""

    @property
    def figures(self) -> Mapping[str, int]:
        """In the order of what matters."""
        return {
            "failed": self.failed,
            "missed": self.missed,
            "late": self.late,
            "slower than usual": self.slower,
            "skipped": self.skipped,
        }

    @property
    def words(self) -> str:
        """``3 failed, 1 late``, or ``nothing went wrong``."""
        counts = [f"{count:,} {word}" for word, count in self.figures.items() if count]
        return ", ".join(counts) or "nothing went wrong"


def summary_of(day: Day, counts: Mapping[str, int], jobs: Sequence[JobDay]) -> Summary:
    failing = Counter({each.job: each.failed for each in jobs if each.failed})
    slow = Counter({each.job: round(each.slower, 1) for each in jobs if each.slower})
    return Summary(
        date=day.date,
        zone=day.zone.key,
        failed=counts.get("failed", 0),
        late=sum(each.late for each in jobs),
        slower=len(slow),
        skipped=counts.get("skipped", 0),
        missed=counts.get("missed", 0),
        failing=dict(failing.most_common(JOBS_NAMED)),
        slow=dict(slow.most_common(JOBS_NAMED)),
        jobs=len(jobs),
        partial=sum(not each.is_whole for each in jobs),
    )


def lines(summary: Summary, before: Summary | None) -> Iterator[str]:
    """The text of the notice: a title, then a fact on each line."""
    yield f"{summary.date:%a %Y-%m-%d}: {summary.words}"
    yield f"The day before: {before.words}" if before else "The day before is not known"
    if summary.failing:
        yield "Most failures: " + ", ".join(f"{job} ({n})" for job, n in summary.failing.items())
    if summary.slow:
        yield "Slower than usual: " + ", ".join(
            f"{job} ({n:g} times)" for job, n in summary.slow.items()
        )
    if summary.partial:
        yield unknown_words(summary)
    yield f"Days of {summary.zone}"


def unknown_words(summary: Summary) -> str:
    kept = f"{summary.partial:,} of {summary.jobs:,} jobs ran more often than their history keeps"
    return f"Not known: late and slow runs at the beginning of the day ({kept})"
