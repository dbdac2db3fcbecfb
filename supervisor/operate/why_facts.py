"""The facts behind an answer of `why`: a tick, its run and its job, as the ledger has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from supervisor.errors import UnknownRun
from supervisor.job.policies import AfterMatch
from supervisor.job.run import Run, RunState, StepId, StepRecord, tick_id
from supervisor.job.spec import JobSpec
from supervisor.job.topology import Needs
from supervisor.ledger.followers import LATEST
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import admitted_at, server_since, silences
from supervisor.ledger.records import BeatRecord, Histogram, JobRecord
from supervisor.ledger.replies import instant, ms_of
from supervisor.schedule import Schedule, missed_before, schedule_of, ticks_between
from supervisor.ticks.clock_changes import Surprise, surprises
from supervisor.ticks.plan import excluded
from supervisor.times import DAY, INSTANT, clock_time

#: States of ticks that never became a run; one record stands for a range of them.
PASSED_OVER = (RunState.MISSED, RunState.EXCLUDED)


@dataclass(frozen=True, slots=True)
class Usual:
    """How long attempts of a job take: seconds that 95 of 100 do not exceed."""

    p95: float
    attempts: int


@dataclass(frozen=True, slots=True)
class NoBeat:
    """A time in which no beat led."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Workers:
    """How many running workers consume a queue, and how many processes they have together.

    unknown_task: the task of the run, when none of them knows it. unmet: what the job needs and
    none of their pools has.
    """

    count: int
    processes: int
    unknown_task: str | None = None
    unmet: str | None = None


@dataclass(frozen=True, slots=True)
class Upstream:
    """A job that another follows, or the one run that a run does.

    state: how its run ended, as far as the follower has recorded that; None before. run: the open
    one, if there is one.
    """

    name: str
    state: RunState | None
    run: RunFacts | None = None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run and, one level deep, the run that blocked it.

    upstreams: what it waits for, of a run that follows others and waits.

    admitted_at: when the ledger recorded it; None once the job's history has dropped that.
    lease_ttl: of its job, if that is loaded.
    blocker: None when nothing blocked the run, or the record is gone. no_beat: at the run's time.
    workers: of a run that is queued or expired; of all queues where the job names none.
    drained_at: of such a run, since when its queue is drained.
    """

    run: Run
    admitted_at: datetime | None = None
    queue: str | None = None
    usual: Usual | None = None
    lease_ttl: timedelta | None = None
    steps: Sequence[StepRecord] = ()
    blocker: RunFacts | None = None
    no_beat: NoBeat | None = None
    workers: Workers | None = None
    drained_at: datetime | None = None
    upstreams: Sequence[Upstream] = ()


@dataclass(frozen=True, slots=True)
class Calendar:
    """What the job's schedule says, as it is loaded now, of one instant.

    excluded: it would be a tick without `exclude`. surprise: what a clock change did to it.
    """

    is_tick: bool
    before: datetime | None
    after: datetime | None
    excluded: bool = False
    surprise: Surprise | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of one question. at: the nominal time in question; None without one.

    others: further runs for the same nominal time. open_runs: those of the job, where the question
    names no time. oldest_at: the first nominal time that the job's history still has. grace_until:
    no run starts before, because the server is new. paused_at: None unless the job is paused.
    upstreams: of a job without a schedule that follows others, how far those are, for the nominal
    time `upstreams_for` if there is one.
    """

    now: datetime
    job: JobRecord
    beat: BeatRecord
    watermark: datetime | None = None
    at: datetime | None = None
    calendar: Calendar | None = None
    run: RunFacts | None = None
    others: Sequence[Run] = ()
    open_runs: Sequence[RunFacts] = ()
    oldest_at: datetime | None = None
    grace_until: datetime | None = None
    beat_leads: bool = True
    paused_at: datetime | None = None
    upstreams: Sequence[Upstream] = ()
    upstreams_for: datetime | None = None


# Which nominal time a question means.


MINUTE = timedelta(minutes=1)


def nominal_time(text: str, spec: JobSpec, now: datetime) -> datetime:
    """The tick that `text` names; where there is none, that instant. Raises ValueError.

    A time of day is today's, or yesterday's if that is still to come. A time without seconds also
    stands for the one tick within its minute, which `phase` or `jitter` may have moved.
    """
    at = clock_time(text, spec.zone, now, ahead=False)
    if at.second or at.microsecond or not spec.has_schedule:
        return at
    ticks = ticks_between(schedule_of(spec), at - INSTANT, at + MINUTE - INSTANT, 2)
    return ticks[0] if len(ticks) == 1 else at


# What the job's schedule says about one instant.


#: How far back the previous tick is searched for, step by step.
LOOKS_BACK = (timedelta(hours=1), DAY, 40 * DAY, 800 * DAY)


def calendar_of(spec: JobSpec, at: datetime) -> Calendar:
    schedule = schedule_of(spec)
    following = schedule.next_after(at - INSTANT)
    is_tick = following == at
    return Calendar(
        is_tick=is_tick,
        before=tick_before(schedule, at),
        after=schedule.next_after(at) if is_tick else following,
        excluded=not is_tick and at in excluded(spec, at - INSTANT, at),
        surprise=surprise_at(spec, at),
    )


def tick_before(schedule: Schedule, at: datetime) -> datetime | None:
    """The last tick before `at`; None when there is none in two years."""
    for distance in LOOKS_BACK:
        _, last = missed_before(schedule, at - distance, at - INSTANT, keep=1)
        if last:
            return last[0]
    return None


def surprise_at(spec: JobSpec, at: datetime) -> Surprise | None:
    """What a clock change near `at` did to a tick of that local time."""
    local = at.astimezone(spec.zone).replace(tzinfo=None, fold=0)
    return next(
        (
            surprise
            for surprise in surprises(spec, at - DAY, at + DAY)
            if local in (*surprise.times, *surprise.runs_at)
        ),
        None,
    )


def is_tick(run: Run) -> bool:
    """Whether the run is that of a nominal time, and not of a trigger or a backfill."""
    return run.id == tick_id(run.job, run.nominal_at) or run.state in PASSED_OVER


# Reading the facts from the ledger.


#: Fewer attempts than this say nothing about what is usual.
ENOUGH_ATTEMPTS = 5

#: Up to this many of a job's open runs are explained.
MOST_OPEN = 5


def facts_of_job(ledger: Ledger, name: str) -> Facts:
    """How the job is now, and its newest run. Raises UnknownJob."""
    facts = about(ledger, name)
    spec = facts.job.spec
    newest = ledger.history(name, 1)
    found = ledger.first_open(name, MOST_OPEN)
    return replace(
        facts,
        run=facts_of_run(ledger, newest[0]) if newest else None,
        open_runs=tuple(facts_of_run(ledger, run) for run in found),
        calendar=calendar_of(spec, facts.now) if spec.has_schedule else None,
        **next_time(ledger, spec),
    )


def next_time(ledger: Ledger, spec: JobSpec) -> dict[str, Any]:
    """For a job that only runs after others: its next nominal time, and how far the others are."""
    if spec.has_schedule or not spec.after:
        return {}
    if spec.matches is AfterMatch.LATEST:
        return {"upstreams": upstreams_of(ledger, spec, None)}
    memory = ledger.followers.memories([spec.name])[spec.name]
    known = [int(time) for time, said in memory.times.items() if not said.get("decided")]
    ahead = [run for name in spec.after for run in ledger.first_open(name, 1)]
    known += [ms_of(run.nominal_at) for run in ahead]
    if not known:
        return {}
    at = instant(max(known))
    return {"upstreams": upstreams_of(ledger, spec, at), "upstreams_for": at}


def upstreams_of(ledger: Ledger, spec: JobSpec, at: datetime | None) -> tuple[Upstream, ...]:
    """The jobs that it follows; at: with `same_time` the nominal time in question."""
    memory = ledger.followers.memories([spec.name])[spec.name]
    time = LATEST if at is None or spec.matches is AfterMatch.LATEST else str(ms_of(at))
    ended = memory.times.get(time, {}).get("ended", {})
    return tuple(
        Upstream(name, RunState(ended[name][0]))
        if name in ended
        else upstream_of(ledger, name, None if time == LATEST else at)
        for name in spec.after
    )


def upstream_of(ledger: Ledger, name: str, at: datetime | None) -> Upstream:
    """A job whose run has not ended as far as its follower knows."""
    if at is not None:
        return upstream_run(ledger, name, tick_id(name, at))
    found = ledger.first_open(name, 1)
    return Upstream(
        name, None, facts_of_run(ledger, found[0], looks_deeper=False) if found else None
    )


def upstream_run(ledger: Ledger, name: str, run_id: str) -> Upstream:
    try:
        run = ledger.run(run_id)
    except UnknownRun:
        return Upstream(name, None)
    if not run.state.is_open:
        return Upstream(name, run.state)
    return Upstream(name, None, facts_of_run(ledger, run, looks_deeper=False))


def facts_of_run_id(ledger: Ledger, run_id: str) -> Facts:
    """Raises UnknownRun and, of a run whose job is gone, UnknownJob."""
    step_id = StepId.of(run_id)
    run = ledger.run(step_id.run if step_id else run_id)
    facts = about(ledger, run.job)
    return replace(
        facts,
        at=run.nominal_at,
        run=facts_of_run(ledger, run),
        others=others(ledger.history(run.job, facts.job.spec.history), run.nominal_at, run.id),
    )


def facts_of_tick(ledger: Ledger, name: str, at: datetime) -> Facts:
    """Raises UnknownJob."""
    facts = about(ledger, name)
    spec = facts.job.spec
    history = ledger.history(name, spec.history)
    run = run_of_tick(ledger, history, tick_id(name, at), at)
    return replace(
        facts,
        at=at,
        calendar=calendar_of(spec, at) if spec.has_schedule else None,
        run=facts_of_run(ledger, run) if run else None,
        others=others(history, at, run.id if run else None),
        oldest_at=oldest(history),
    )


def about(ledger: Ledger, name: str) -> Facts:
    """What every answer may need."""
    now, job, beat = ledger.now(), ledger.job(name), ledger.beat()
    since = server_since(ledger)
    mark = ledger.marks([name])[name]
    ready_at = since + job.spec.lease_ttl if since else None
    return Facts(
        now=now,
        job=job,
        beat=beat,
        watermark=mark.watermark,
        grace_until=ready_at if ready_at and ready_at > now else None,
        beat_leads=beat.leads(now),
        paused_at=mark.pause.start if job.paused and mark.pause else None,
    )


def facts_of_run(ledger: Ledger, run: Run, *, looks_deeper: bool = True) -> RunFacts:
    spec = ledger.some_specs([run.job]).get(run.job)
    queue = spec.routed_queue if spec else None
    waits_for_worker = run.state in (RunState.QUEUED, RunState.EXPIRED) and not run.has_steps
    waits_for_others = run.is_held and run.state is RunState.WAITING and spec and looks_deeper
    return RunFacts(
        run=run,
        admitted_at=admitted_at(ledger, [run]).get(run.id),
        queue=queue,
        usual=usual_of(ledger.durations(run.job)) if spec else None,
        lease_ttl=spec.lease_ttl if spec else None,
        steps=ledger.steps.records(run.id) if run.has_steps else (),
        blocker=blocker_of(ledger, run) if looks_deeper else None,
        no_beat=no_beat_at(ledger, run),
        workers=workers_of(ledger, queue, spec) if waits_for_worker else None,
        drained_at=ledger.drains.since().get(run.queue or "") if waits_for_worker else None,
        upstreams=upstreams_of_run(ledger, run, spec) if spec and waits_for_others else (),
    )


def upstreams_of_run(ledger: Ledger, run: Run, spec: JobSpec) -> tuple[Upstream, ...]:
    if run.after is not None:
        return (upstream_run(ledger, run.after, run.after),)
    return upstreams_of(ledger, spec, run.nominal_at)


def workers_of(ledger: Ledger, queue: str | None, spec: JobSpec | None) -> Workers:
    running = ledger.presences.roll().workers
    found = [worker for worker in running if queue is None or queue in worker.queues]
    processes = sum(worker.pool_size for worker in found)
    task = spec.task if spec else None
    is_unknown = found and task and task not in ledger.presences.tasks(found)
    unmet = [Needs.of(spec).unmet_by(worker.pool) for worker in found] if spec else []
    none_fits = unmet[0] if unmet and all(unmet) else None
    return Workers(len(found), processes, task if is_unknown else None, none_fits)


def blocker_of(ledger: Ledger, run: Run) -> RunFacts | None:
    if run.blocked_by is None:
        return None
    try:
        blocker = ledger.run(run.blocked_by)
    except UnknownRun:
        return None
    return facts_of_run(ledger, blocker, looks_deeper=False)


def usual_of(durations: Histogram) -> Usual | None:
    attempts, p95 = durations.observations, durations.quantile(0.95)
    return Usual(p95, attempts) if p95 is not None and attempts >= ENOUGH_ATTEMPTS else None


def run_of_tick(ledger: Ledger, history: Sequence[Run], run_id: str, at: datetime) -> Run | None:
    """The tick's own record, or that of the passed-over range it belongs to."""
    try:
        return ledger.run(run_id)
    except UnknownRun:
        spans = (run for run in history if run.state in PASSED_OVER)
        return next((run for run in spans if first_of(run) <= at <= run.nominal_at), None)


def others(history: Sequence[Run], at: datetime, known: str | None) -> tuple[Run, ...]:
    """Further runs for the same nominal time: backfills and triggers."""
    return tuple(
        run
        for run in history
        if run.nominal_at == at and run.id != known and run.state not in PASSED_OVER
    )


def oldest(history: Sequence[Run]) -> datetime | None:
    """The first tick on record. Backfills are for times long past, and say nothing about that."""
    return min((first_of(run) for run in history if is_tick(run)), default=None)


def first_of(run: Run) -> datetime:
    return run.first_nominal_at or run.nominal_at


def no_beat_at(ledger: Ledger, run: Run) -> NoBeat | None:
    """The time without a leading beat that these ticks fell into, or that made the run late."""
    for start, end in silences(ledger):
        if start <= run.nominal_at and first_of(run) <= end:
            return NoBeat(start, end)
    return None
