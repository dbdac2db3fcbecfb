"""The plan: what loading the schedule files would change, and what each change leads to."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from random import Random
from typing import Literal

from supervisor.errors import Problem
from supervisor.files.schedule_files import ScheduleSet
from supervisor.job.changes import Changes, Edit, difference, edits
from supervisor.job.policies import OverlapPolicy
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.reads import Loaded
from supervisor.ledger.records import FILES, Histogram
from supervisor.logs import get_logger
from supervisor.schedule import (
    Deadline,
    last_between,
    missed_before,
    next_deadline,
    schedule_of,
    ticks_between,
)
from supervisor.ticks.clock_changes import Surprise, surprises
from supervisor.ticks.expectations import interval_of, next_ticks
from supervisor.ticks.simulation import JobTally, SimulatedJob, Tally, simulate
from supervisor.times import INSTANT

# Overlaps foreseen: a job's next ticks, simulated with durations as they have been so far.
#
# The durations are drawn from the ledger's histogram, evenly spread over its quantiles and in an
# order that is shuffled but always the same; the decisions are the real ones. Only the job itself
# is simulated: sharing a lock or a worker with other jobs makes it wait longer than foreseen.


#: How many ticks are simulated, within a year.
TICKS = 1_000
YEAR = timedelta(days=365)
DAY = timedelta(days=1)

#: The time over which the ticks of a day are averaged.
WEEKS = timedelta(days=28)

#: Worth reporting is what happens to one tick in this many, or to one a day.
RARE = 100

#: Intervals are rounded up to such steps: the step for intervals from this length on.
STEPS = (
    (timedelta(hours=6), timedelta(hours=1)),
    (timedelta(hours=1), timedelta(minutes=15)),
    (timedelta(minutes=1), timedelta(minutes=1)),
    (timedelta(), timedelta(seconds=5)),
)


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds, estimated from the histogram; `over`: a share of them is beyond its last bound."""

    observations: int
    p50: float
    p95: float
    p99: float
    over: bool


@dataclass(frozen=True, slots=True)
class Foresight:
    """What happens when ticks come sooner than runs end; counts are per day.

    distance: the shortest between two ticks. longest_wait: seconds. growth: runs that the waiting
    list gains, because runs take longer on average than the time between ticks.
    safe_interval: None when p99 is beyond the last bound of the histogram.
    """

    distance: timedelta
    skips: float
    waits: float
    longest_wait: float
    requeues: float
    replacements: float
    growth: float
    most_running: int
    safe_interval: timedelta | None


def durations_of(histogram: Histogram) -> Durations | None:
    p50, p95, p99 = (histogram.quantile(q) for q in (0.5, 0.95, 0.99))
    if p50 is None or p95 is None or p99 is None:
        return None
    over = histogram.counts[-1] * 100 > histogram.observations
    return Durations(histogram.observations, p50, p95, p99, over)


def foresee(spec: JobSpec, histogram: Histogram, now: datetime) -> Foresight | None:
    """What is foreseen; None if runs are shorter than the interval, or were never observed."""
    if histogram.longest is None:
        return None
    ticks = ticks_between(schedule_of(spec), now, now + YEAR, TICKS)
    distance = interval_of(ticks)
    if distance is None or histogram.longest <= distance.total_seconds():
        return None
    job, a_day = simulated(spec, ticks, histogram), ticks_a_day(spec, ticks, now)
    if not is_worth_saying(spec, job, a_day):
        return None
    days = job.ticks / a_day
    return Foresight(
        distance=distance,
        skips=job.skipped.total() / days,
        waits=sum(wait > 0 for wait in job.waits) / days,
        longest_wait=max(job.waits, default=0.0),
        requeues=job.requeued / days,
        replacements=job.finished[RunState.REPLACED] / days,
        growth=growth(spec, histogram, a_day),
        most_running=job.most_running,
        safe_interval=safe_interval(spec, histogram),
    )


def ticks_a_day(spec: JobSpec, ticks: Sequence[datetime], now: datetime) -> float:
    """The average number of ticks a day; a frequent job's simulated ticks may all be of one day."""
    if len(ticks) < TICKS:
        return len(ticks) / YEAR.days
    return missed_before(schedule_of(spec), now, now + WEEKS, keep=0)[0] / WEEKS.days


def simulated(spec: JobSpec, ticks: Sequence[datetime], histogram: Histogram) -> JobTally:
    end = ticks[-1] + INSTANT
    unpaused = spec.model_copy(update={"paused": False})
    job = SimulatedJob(unpaused, iter(ticks), drawn_from(histogram, len(ticks)), "any")
    return Tally.of(simulate([job], end), ticks[0], end).jobs[spec.name]


def drawn_from(histogram: Histogram, number: int) -> Callable[[], timedelta]:
    """Durations as they were observed: `number` quantiles in an order that looks random."""
    shares = [(position + 0.5) / number for position in range(number)]
    Random(number).shuffle(shares)
    durations = (timedelta(seconds=histogram.quantile(share) or 0) for share in shares)
    return lambda: next(durations)


def is_worth_saying(spec: JobSpec, job: JobTally, a_day: float) -> bool:
    if spec.most_running is None and job.most_running > 1:
        return True
    delayed = job.skipped.total() + len(job.waits) + job.finished[RunState.REPLACED]
    return delayed * max(RARE, a_day) >= job.ticks


def growth(spec: JobSpec, histogram: Histogram, a_day: float) -> float:
    """By how many runs a day the waiting list grows, if the policy has one."""
    if spec.overlap not in (OverlapPolicy.QUEUE_ALL, OverlapPolicy.REQUEUE):
        return 0.0
    mean = histogram.sum_seconds / histogram.observations
    possible = DAY.total_seconds() * (spec.most_running or 1) / mean if mean else math.inf
    return max(0.0, a_day - possible)


def safe_interval(spec: JobSpec, histogram: Histogram) -> timedelta | None:
    """The next round interval from which on p99 of the runs are done before the next tick."""
    durations = durations_of(histogram)
    if durations is None or durations.over:
        return None
    return round_up(timedelta(seconds=durations.p99) / (spec.most_running or 1))


def round_up(duration: timedelta) -> timedelta:
    step = next(step for least, step in STEPS if duration >= least)
    return step * math.ceil(duration / step)


# Deadlines foreseen: the usual duration against those that the job names.


#: For this many days the last tick before `due_by` is looked at.
DAYS_AHEAD = 7


@dataclass(frozen=True, slots=True)
class Misfit:
    """A duration, in seconds, that does not fit a key: p95, and for `min_duration` the median.

    deadline: of `due_by`, one that such a run misses.
    """

    key: Literal["due_by", "max_duration", "min_duration"]
    seconds: float
    deadline: Deadline | None = None


def misfits(spec: JobSpec, durations: Durations, now: datetime) -> Iterator[Misfit]:
    usual, most, least = durations.p95, spec.max_duration, spec.min_duration
    if most is not None and usual > most.total_seconds():
        yield Misfit("max_duration", usual)
    if least is not None and durations.p50 < least.total_seconds():
        yield Misfit("min_duration", durations.p50)
    tightest = min(deadlines_ahead(spec, now), key=lambda due: due.at - due.tick, default=None)
    if tightest and tightest.tick + timedelta(seconds=usual) > tightest.at:
        yield Misfit("due_by", usual, tightest)


def deadlines_ahead(spec: JobSpec, now: datetime) -> Iterator[Deadline]:
    """The deadlines of the next days, each with its last tick: the one with the least time."""
    schedule, after = schedule_of(spec), now
    for _ in range(DAYS_AHEAD):
        deadline = next_deadline(spec, after)
        if deadline is None:
            return
        latest = deadline.tick
        if isinstance(spec.due_by, time):
            [latest] = last_between(schedule, latest - INSTANT, deadline.at - INSTANT, keep=1)
        yield Deadline(latest, deadline.at)
        after = deadline.at - INSTANT


# What is refused, whatever the files say of their jobs: names that other sources have, and the
# removal of most jobs at once, or of all by an empty directory, as by a wrong mount.


#: A removal of this many jobs or more is refused if they are more than half of a source's.
LEAST_REMOVED = 5


def clashes(loaded: Loaded, wanted: ScheduleSet) -> list[Problem]:
    """The jobs of the files whose names other sources have, both places named; and those that are
    gone from the files while jobs of other sources follow them."""
    found = left_behind(loaded, wanted)
    for name, place in wanted.sources.items():
        origin = loaded.origins.get(name)
        if origin and origin.source != FILES:
            file, _, line = place.rpartition(":")
            what = f"a job of this name is loaded from elsewhere: {origin.place}"
            found.append(Problem(file, int(line), name, what, "rename one, or remove that one"))
    return found


def left_behind(loaded: Loaded, wanted: ScheduleSet) -> list[Problem]:
    found = []
    for name, spec in loaded.specs.items():
        for followed in spec.after if loaded.origins[name].source != FILES else ():
            origin = loaded.origins.get(followed)
            if origin and origin.source == FILES and followed not in wanted.specs:
                file, _, line = origin.place.rpartition(":")
                what = (
                    f"job {name!r} ({loaded.origins[name].place}) follows this job, which is gone"
                )
                hint = "take it out of that job's 'after' first"
                found.append(Problem(file, int(line or 0), followed, what, hint))
    return found


def mass_removal(loaded: Loaded, wanted: Collection[str], source: str = FILES) -> str | None:
    """A sentence if a source would remove more than half of its loaded jobs; else None."""
    own = loaded.of(source).origins
    removed = len(own.keys() - set(wanted))
    whose = "schedule files" if source == FILES else source
    if removed < LEAST_REMOVED or 2 * removed <= len(own):
        return None
    return f"{removed:,} of the {len(own):,} jobs of {whose} would be removed"


def removal_by_files(loaded: Loaded, wanted: ScheduleSet) -> str | None:
    """As `mass_removal`, and of any number of jobs by a directory without files: its mount may be
    gone."""
    own = loaded.of(FILES).origins
    if own and not wanted.listing.files:
        return f"there are no schedule files, and the jobs of earlier ones ({len(own):,}) would go"
    return mass_removal(loaded, wanted.specs)


#: How many of the next ticks of a job are shown.
SHOWN = 5

#: How far ahead clock changes are looked at.
AHEAD = timedelta(days=2 * 365)


@dataclass(frozen=True, slots=True)
class JobPlan:
    """An added or changed job; `before` is None for one that is new, or of another version."""

    spec: JobSpec
    before: JobSpec | None
    edits: tuple[Edit, ...]
    ticks_before: tuple[datetime, ...]
    ticks_after: tuple[datetime, ...]
    surprises: tuple[Surprise, ...]
    durations: Durations | None
    foresight: Foresight | None
    misfits: tuple[Misfit, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """`jobs`: the added and the changed ones, by name."""

    changes: Changes
    jobs: tuple[JobPlan, ...]


def plan_of(
    loaded: Mapping[str, JobSpec],
    wanted: Mapping[str, JobSpec],
    durations: Mapping[str, Histogram],
    now: datetime,
    unread: Collection[str] = (),
) -> Plan:
    """`durations`: by job, how long attempts took so far. unread: as of `difference`."""
    changes = difference(loaded, wanted, unread)
    jobs = tuple(
        job_plan(loaded.get(name), wanted[name], durations.get(name), now)
        for name in sorted((*changes.added, *changes.changed))
    )
    return Plan(changes, jobs)


def job_plan(
    before: JobSpec | None, spec: JobSpec, observed: Histogram | None, now: datetime
) -> JobPlan:
    durations = durations_of(observed) if observed else None
    return JobPlan(
        spec=spec,
        before=before,
        edits=edits(before, spec) if before else (),
        ticks_before=next_ticks(before, now, SHOWN) if before else (),
        ticks_after=next_ticks(spec, now, SHOWN),
        surprises=tuple(surprises(spec, now, now + AHEAD)),
        durations=durations,
        foresight=foresee(spec, observed, now) if observed else None,
        misfits=tuple(misfits(spec, durations, now)) if durations else (),
    )


# What an edit will do, in the log of the beat that loads it: as `supervisor plan` shows it.


#: Each costs milliseconds; for larger edits there is `supervisor plan`.
MOST_JOBS = 20
MOST_SURPRISES = 2

log = get_logger("supervisor.reloading")


def log_forecast(ledger: Ledger, specs: Sequence[JobSpec], now: datetime) -> None:
    """Logs the next tick of each job, the clock changes that touch it, and overlaps foreseen."""
    for record in ledger.records_of(list(specs[:MOST_JOBS])):
        spec = record.spec
        log.info(
            "job loaded",
            job=spec.name,
            schedule=spec.schedule,
            next_run_at=[tick.isoformat() for tick in next_ticks(spec, now, 1)],
        )
        for surprise in surprises(spec, now, now + AHEAD)[:MOST_SURPRISES]:
            log.warning(
                "clock change foreseen",
                job=spec.name,
                kind="gap" if surprise.is_gap else "fold",
                times=[time.isoformat() for time in surprise.times[:1]],
                runs_at=[time.isoformat() for time in surprise.runs_at[:1]],
            )
        durations = durations_of(record.durations)
        for misfit in misfits(spec, durations, now) if durations else ():
            log.warning(
                "missed deadline foreseen",
                job=spec.name,
                key=misfit.key,
                usual_seconds=round(misfit.seconds, 1),
            )
        foresight = foresee(spec, record.durations, now)
        if foresight is not None:
            log.warning(
                "overlaps foreseen",
                job=spec.name,
                skips_a_day=round(foresight.skips, 1),
                waits_a_day=round(foresight.waits, 1),
                safe_interval=foresight.safe_interval and str(foresight.safe_interval),
            )


# The ticks to come: those that run, those that `exclude` removes, and what clock changes do.


#: A job may exclude almost all of its times; up to this many are listed.
MOST_EXCLUDED = 1_000


@dataclass(frozen=True, slots=True)
class Upcoming:
    """`excluded`: times the schedule would name without `exclude`, before `jitter`."""

    ticks: Sequence[datetime]
    excluded: Sequence[datetime]
    surprises: Sequence[Surprise]


def upcoming(spec: JobSpec, after: datetime, count: int) -> Upcoming:
    """The next `count` ticks after an instant, and what else the schedule says until the last."""
    ticks = next_ticks(spec, after, count)
    if not ticks:
        return Upcoming((), (), ())
    return Upcoming(ticks, excluded(spec, after, ticks[-1]), surprises(spec, after, ticks[-1]))


def excluded(spec: JobSpec, after: datetime, until: datetime) -> list[datetime]:
    if not spec.exclude:
        return []
    plain = spec.model_copy(update={"jitter": None})
    everything = schedule_of(plain.model_copy(update={"exclude": ()}))
    kept = set(ticks_between(schedule_of(plain), after, until, MOST_EXCLUDED))
    named = ticks_between(everything, after, until, MOST_EXCLUDED)
    return [tick for tick in named if tick not in kept]
