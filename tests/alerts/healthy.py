"""Twenty minutes of healthy jobs, minute by minute as a Prometheus would have them.

What the jobs do is made up, from a seed; what is exposed of it is computed by the product's own
code at the times of the scrapes. Only the counting in Redis is imitated.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from supervisor.job.durations import Durations
from supervisor.job.spec import JobSpec
from supervisor.ledger.job_record import HISTOGRAM_FIELDS, OpenRuns
from supervisor.ledger.limits import BOUNDS
from supervisor.web.metrics import of_jobs
from supervisor.web.metrics_scrape import Intervals, ScrapedJob, job_of

MINUTES = 20

#: As deployed: scrapes and evaluations, each every 15 seconds. A sample is used when it is ten
#: seconds old, as it may be.
INTERVAL = 15
STEP = 5
SCRAPED_AT = 5
SCRAPE_TAKES = 0.4

#: `serve` is restarted, and two scrapes find nothing. Beats change the lead: what was due meanwhile
#: is emitted just before a scrape.
SERVE_AWAY = (900.0, 930.0)
NO_LEADER = (593.0, 605.2)

#: When the jobs were loaded, and the clock of everything begins.
LOADED = 1.0


@dataclass(frozen=True, slots=True)
class Work:
    """A run: seconds at which it was due, began and ended."""

    nominal: float
    started: float
    ended: float


@dataclass
class Simulated:
    spec: JobSpec
    every: float

    seconds: Callable[[random.Random], float]
    """Draws how long a run takes."""

    hangs_from: float = float("inf")
    """The run that is due then does not end."""

    fails_from: float = float("inf")
    """The runs that end then or later fail."""

    runs: list[Work] = field(default_factory=list)
    skips: list[float] = field(default_factory=list)

    def simulate(self, rng: random.Random) -> None:
        """A run that is due while another is at work waits for it, if none does, or is skipped."""
        waits = self.spec.overlap == "queue_one"
        at = self.every
        while at < MINUTES * 60:
            free_at = self.runs[-1].ended if self.runs else 0.0
            is_one_waiting = bool(self.runs) and self.runs[-1].started > at + 1
            emitted = NO_LEADER[1] if NO_LEADER[0] <= at < NO_LEADER[1] else at
            if free_at > emitted and (not waits or is_one_waiting):
                self.skips.append(emitted)
            else:
                begins = max(emitted, free_at) + rng.uniform(0.02, 0.4)
                is_hung = at >= self.hangs_from
                self.runs.append(
                    Work(at, begins, float("inf") if is_hung else begins + self.seconds(rng))
                )
            at += self.every

    def exposed(self, now: float, intervals: Intervals) -> ScrapedJob:
        begun = [run for run in self.runs if run.started <= now]
        ended = [run for run in self.runs if run.ended <= now]
        succeeded = [run for run in ended if run.ended < self.fails_from]
        failed = ended[len(succeeded) :]
        looked = now if is_led(now) else NO_LEADER[0]
        last_start = begun[-1].started if begun else 0.0
        numbers: Counter[str] = Counter(
            {
                "created": ms(LOADED),
                "loaded": ms(LOADED),
                "last_success": ms(max((run.ended for run in succeeded), default=0)),
                "last_success_start": ms(max((run.started for run in succeeded), default=0)),
                "last_failure": ms(max((run.ended for run in failed), default=0)),
                "next": ms((looked // self.every + 1) * self.every),
                "consecutive_skips": sum(last_start < at <= now for at in self.skips),
                "n:started": len(begun),
                "n:finished:succeeded": len(succeeded),
                "n:finished:failed": len(failed),
                "n:skipped:overlap": sum(at <= now for at in self.skips),
            }
        )
        took = [run.ended - run.started for run in ended]
        numbers |= observed("duration", took)
        numbers |= observed("start_delay", [run.started - run.nominal for run in begun])
        interval = intervals.of(self.spec, instant(now))
        fields = {field: str(number) for field, number in numbers.items() if number}
        durations = Durations(tuple(sorted(took[-self.spec.history :])))
        return job_of(self.spec, fields, self._open_runs(now), durations, interval)

    def _open_runs(self, now: float) -> OpenRuns:
        running = [run.started for run in self.runs if run.started <= now < run.ended]
        queued = [run.nominal for run in self.runs if run.nominal <= now < run.started]
        queued = queued if is_led(now) else []
        return OpenRuns(
            running=len(running),
            queued=len(queued),
            oldest_queued_at=instant(min(queued)) if queued else None,
            oldest_running_at=instant(min(running)) if running else None,
        )


def job(
    name: str, every: float, seconds: Callable[[random.Random], float], **keys: Any
) -> Simulated:
    """`keys`: of a schedule file, `hangs_from` and `fails_from`."""
    hangs_from = keys.pop("hangs_from", float("inf"))
    fails_from = keys.pop("fails_from", float("inf"))
    spec = JobSpec(**{"name": name, "task": "team.work", "every": f"{every}s", **keys})
    return Simulated(spec, every, seconds, hangs_from, fails_from)


def healthy_jobs() -> Sequence[Simulated]:
    return (
        job("subsecond", 1, lambda rng: rng.uniform(0.25, 0.35)),
        job("quick", 5, lambda rng: rng.uniform(0.15, 0.25)),
        # Now and then ten times as long as it mostly is.
        job("jittery", 30, lambda rng: min(20.0, rng.lognormvariate(0, 1.2))),
        job("slow", 300, lambda rng: rng.uniform(90, 200)),
        job(
            "named",
            60,
            lambda rng: rng.uniform(5, 20),
            due_by="40s",
            max_duration="25s",
            min_duration="2s",
        ),
        job("waiting", 2, lambda rng: rng.uniform(0.3, 1.2), overlap="queue_one"),
        job("serial", 10, lambda rng: rng.uniform(1.0, 4.0), overlap="queue_one", serial=True),
    )


def hung_job() -> Simulated:
    return job("hung", 30, lambda rng: rng.uniform(0.5, 1.5), hangs_from=480.0)


def hung_named_job() -> Simulated:
    """It names by when it has to succeed, and how long it may take."""
    keys = {"due_by": "40s", "max_duration": "25s", "hangs_from": 480.0}
    return job("hung-named", 30, lambda rng: rng.uniform(0.5, 1.5), **keys)


#: Intervals of jobs that fail from the sixth minute on; two of each.
FAILING = (1, 2, 5, 10, 30, 60, 120, 300, 600)


def failing_jobs() -> Sequence[Simulated]:
    """Eighteen; half of them have never succeeded."""
    return [
        job(
            f"failing-{every}-{since}",
            every,
            lambda rng: rng.uniform(0.2, 0.4),
            fails_from=float(since),
        )
        for every in FAILING
        for since in (0, 300)
    ]


def hanging_jobs() -> Sequence[Simulated]:
    """Their runs do not end from the eighth minute on."""
    return [
        job(f"hanging-{every}", every, lambda rng: rng.uniform(0.2, 0.4), hangs_from=480.0)
        for every in (1, 10, 30)
    ]


def series(jobs: Sequence[Simulated], seed: int = 1) -> list[dict[str, str]]:
    """The input of ``promtool test rules``: one sample a scrape, every INTERVAL seconds."""
    rng = random.Random(seed)
    for each in jobs:
        each.simulate(rng)
    intervals = Intervals()
    values: dict[str, dict[int, float]] = defaultdict(dict)
    for number in range(MINUTES * 60 // INTERVAL):
        at = number * INTERVAL + SCRAPED_AT
        if not SERVE_AWAY[0] <= at < SERVE_AWAY[1]:
            for name, value in samples(jobs, intervals, at + SCRAPE_TAKES):
                values[name][number] = value
        values['up{job="supervisor", instance="s"}'][number] = float(
            not SERVE_AWAY[0] <= at < SERVE_AWAY[1]
        )
    return [{"series": name, "values": notation(found)} for name, found in values.items()]


def samples(
    jobs: Sequence[Simulated], intervals: Intervals, now: float
) -> Iterator[tuple[str, float]]:
    for family in of_jobs([each.exposed(now, intervals) for each in jobs]):
        for sample in family.samples:
            yield selector(sample.name, {**sample.labels, "instance": "s"}), sample.value
    yield selector("supervisor_up", {"instance": "s"}), 1.0
    ticked = selector("supervisor_beat_last_tick_timestamp_seconds", {"instance": "s"})
    yield ticked, float(int(now if is_led(now) else NO_LEADER[0]))


def selector(name: str, labels: Mapping[str, str]) -> str:
    inside = ", ".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{inside}}}"


def notation(found: Mapping[int, float]) -> str:
    """A series that a scrape does not find ends there, as it does in Prometheus."""
    words = ["_"] * (SCRAPED_AT // STEP)
    gap = ["_"] * (INTERVAL // STEP - 1)
    for number in range(MINUTES * 60 // INTERVAL):
        is_there = number in found
        was_there = number - 1 in found
        words += [repr(found[number]) if is_there else "stale" if was_there else "_", *gap]
    return " ".join(words)


def is_led(now: float) -> bool:
    return not NO_LEADER[0] <= now < NO_LEADER[1]


def observed(name: str, seconds: Sequence[float]) -> Counter[str]:
    """The fields of a histogram in a job's hash."""
    *buckets, total = HISTOGRAM_FIELDS[name]
    counts = Counter(buckets[sum(value > bound for bound in BOUNDS)] for value in seconds)
    return counts + Counter({total: ms(sum(seconds))})


def instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(seconds=seconds)


def ms(seconds: float) -> int:
    return int(1000 * seconds)
