"""What `why` is asked about: a tick, its run and its job, as the ledger has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from redis.exceptions import NoPermissionError

from supervisor.errors import UnknownRun
from supervisor.job.run import Run, RunState, StepRecord
from supervisor.job.run_ids import StepId, tick_id
from supervisor.job.spec import JobSpec
from supervisor.job.step_spec import StepSpec
from supervisor.job.topology import Needs
from supervisor.ledger.beat_record import BeatRecord
from supervisor.ledger.job_record import JobRecord
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import absences, admitted_at, server_since
from supervisor.ledger.presence import Processes
from supervisor.ledger.queues import LedgerQueues
from supervisor.lists.why import UPSTREAMS
from supervisor.operate.words import LocalTime
from supervisor.schedule import schedule_of, ticks_between
from supervisor.times import INSTANT, clock_time

#: States of ticks that never became a run; one record stands for a range of them.
PASSED_OVER = (RunState.MISSED, RunState.EXCLUDED)

#: Up to this many of a job's open runs are explained.
MOST_OPEN = 5

#: Among so many open items of a batch one is looked for that is queued.
MOST_ITEMS = 100

MINUTE = timedelta(minutes=1)

#: By job, how the run that is followed ended; None as long as the follower has not seen it end.
Upstreams = Mapping[str, RunState | None]


@dataclass(frozen=True, slots=True)
class Workers:
    """How many running workers consume a queue, and how many processes they have together."""

    count: int
    processes: int

    unknown_task: str | None = None
    """The task of the run, when none of them knows it."""

    unmet: str | None = None
    """What the run needs and none of their pools has."""

    messages: int | None = None
    """How many wait in the queue, with that of the run; None when that is not known."""


@dataclass(frozen=True, slots=True)
class RunView:
    """A run and, one level deep, the run that blocked it."""

    run: Run

    admitted_at: datetime | None = None
    """When the ledger recorded it; None once the job's history has dropped that."""

    queue: str | None = None
    """Where its message was sent; before that, as its job says."""

    usual: float | None = None
    """The seconds that 95 of 100 runs in its job's history do not exceed."""

    steps: Sequence[StepRecord] = ()

    blocker: RunView | None = None
    """None when nothing blocked the run, or the record is gone."""

    no_beat: tuple[datetime, datetime] | None = None
    """The time at which no beat led, around the run's."""

    workers: Workers | None = None
    """Those of its queue, for a run that is queued or expired."""

    drained_at: datetime | None = None
    """Since when that queue is drained, for such a run."""

    upstreams: Upstreams = field(default_factory=dict)
    """How the runs that it waits for have ended, by job."""

    queued_steps: Mapping[str, RunView] = field(default_factory=dict)
    """Its steps that are queued, by name; of a batch, the first item that is."""


@dataclass(frozen=True, slots=True)
class Question:
    now: datetime
    job: JobRecord
    beat: BeatRecord
    watermark: datetime | None = None

    at: datetime | None = None
    """The nominal time in question; None without one."""

    run: RunView | None = None

    open_runs: Sequence[RunView] = ()
    """The first of the job's, where the question names no time."""

    open_count: int = 0
    """How many open runs there are."""

    grace_until: datetime | None = None
    """No run starts before, because the server is new."""

    paused_at: datetime | None = None
    """None unless the job is paused."""

    upstreams: Upstreams = field(default_factory=dict)
    """What a job without a schedule follows."""

    refusal: str | None = None
    """Why Redis refuses writes, if it does and no beat leads."""

    @property
    def local(self) -> LocalTime:
        return LocalTime(self.now, self.job.spec.zone)

    @property
    def beat_leads(self) -> bool:
        return self.beat.leads(self.now)


# What a question is about: a time, a run, or the job now.


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


def question_of_job(ledger: Ledger, name: str) -> Question:
    """How the job is now, and its newest run. Raises UnknownJob."""
    question = about(ledger, name)
    spec = question.job.spec
    newest = ledger.history(name, 1)
    return replace(
        question,
        run=view_of(ledger, newest[0]) if newest else None,
        open_runs=[view_of(ledger, run) for run in ledger.first_open(name, MOST_OPEN)],
        open_count=ledger.client.scard(ledger.keys.open(name)),
        upstreams={} if spec.has_schedule else upstreams_of(ledger, spec, None),
    )


def question_of_run(ledger: Ledger, run_id: str) -> Question:
    """Raises UnknownRun and, of a run whose job is gone, UnknownJob."""
    step_id = StepId.of(run_id)
    run = ledger.run(step_id.run if step_id else run_id)
    question = about(ledger, run.job)
    return replace(question, at=run.nominal_at, run=view_of(ledger, run))


def question_of_tick(ledger: Ledger, name: str, at: datetime) -> Question:
    """Raises UnknownJob."""
    question = about(ledger, name)
    spec = question.job.spec
    run = run_if_kept(ledger, tick_id(name, at)) or passed_over(ledger, spec, at)
    return replace(
        question,
        at=at,
        run=view_of(ledger, run) if run else None,
    )


def about(ledger: Ledger, name: str) -> Question:
    """What every answer may need."""
    now, job, beat = ledger.now(), ledger.job(name), ledger.beat()
    since = server_since(ledger)
    mark = ledger.marks([name])[name]
    ready_at = since + job.spec.lease_ttl if since else None
    return Question(
        now=now,
        job=job,
        beat=beat,
        watermark=mark.watermark,
        grace_until=ready_at if ready_at and ready_at > now else None,
        paused_at=mark.pause.start if job.paused and mark.pause else None,
        refusal=None if beat.leads(now) else ledger.refusal(),
    )


def is_tick(run: Run) -> bool:
    """Whether the run is that of a nominal time, and not of a trigger or a backfill."""
    return run.id == tick_id(run.job, run.nominal_at) or run.state in PASSED_OVER


def first_of(run: Run) -> datetime:
    return run.first_nominal_at or run.nominal_at


def passed_over(ledger: Ledger, spec: JobSpec, at: datetime) -> Run | None:
    """The record of a range of ticks that were missed or excluded."""
    for run in ledger.history(spec.name, spec.history):
        if run.state in PASSED_OVER and first_of(run) <= at <= run.nominal_at:
            return run
    return None


# One run, what blocked it, and what it waits for.


def view_of(
    ledger: Ledger, run: Run, *, with_details: bool = True, step: StepRecord | None = None
) -> RunView:
    """step: if it is the run of one, or of an item of it."""
    spec = ledger.some_specs([run.job]).get(run.job)
    own = step_spec(spec, step)
    queue = run.queue or (own and own.queue) or (spec.routed_queue if spec else None)
    has_usual = run.state is RunState.RUNNING or not with_details
    waits_for_worker = run.state in (RunState.QUEUED, RunState.EXPIRED) and not run.has_steps
    waits_for_others = run.waits_for_others and run.state is RunState.WAITING and run.after is None
    blocker = run_if_kept(ledger, run.blocked_by) if with_details and run.blocked_by else None
    task = step.task if step else spec.task if spec else None
    steps = ledger.steps.records(run.id) if run.has_steps else ()
    return RunView(
        run=run,
        admitted_at=admitted_at(ledger, [run]).get(run.id),
        queue=queue,
        usual=ledger.durations_of([spec])[spec.name].usual if spec and has_usual else None,
        steps=steps,
        blocker=view_of(ledger, blocker, with_details=False) if blocker else None,
        no_beat=no_beat_at(ledger, run),
        workers=workers_of(ledger, queue, spec, task, own) if waits_for_worker else None,
        drained_at=ledger.drains.since().get(run.queue or "") if waits_for_worker else None,
        upstreams=upstreams_of(ledger, spec, run.nominal_at) if spec and waits_for_others else {},
        queued_steps=dict(queued_steps(ledger, steps)) if run.state.is_open else {},
    )


def step_spec(spec: JobSpec | None, step: StepRecord | None) -> StepSpec | None:
    steps = spec.steps if spec and step else ()
    return next((each for each in steps if step and each.label == step.name), None)


def queued_steps(ledger: Ledger, steps: Sequence[StepRecord]) -> Iterator[tuple[str, RunView]]:
    for step in steps:
        run = step.run
        if run and run.batch and run.state.is_open:
            items = ledger.runs(ledger.steps.below([run.id])[:MOST_ITEMS])
            run = next((item for item in items if item.state is RunState.QUEUED), None)
        if run and run.state is RunState.QUEUED:
            yield run.id.rpartition("~")[2], view_of(ledger, run, step=step)


def run_if_kept(ledger: Ledger, run_id: str) -> Run | None:
    try:
        return ledger.run(run_id)
    except UnknownRun:
        return None


def no_beat_at(ledger: Ledger, run: Run) -> tuple[datetime, datetime] | None:
    """The time without a leading beat that these ticks fell into, or that made the run late."""
    fits = (s for s in absences(ledger) if s[0] <= run.nominal_at and first_of(run) <= s[1])
    return next(fits, None)


def workers_of(
    ledger: Ledger,
    queue: str | None,
    spec: JobSpec | None,
    task: str | None,
    step: StepSpec | None,
) -> Workers:
    processes = ledger.presences.processes()
    consumers = [w for w in processes.workers if queue is None or queue in w.queues]
    is_unknown = consumers and task and task not in ledger.presences.tasks(consumers)
    needs = Needs.of(spec, [step] if step else ()) if spec else Needs()
    unmet = [needs.unmet_by(worker.pool) for worker in consumers] if spec else []
    return Workers(
        count=len(consumers),
        processes=sum(worker.pool_size for worker in consumers),
        unknown_task=task if is_unknown else None,
        unmet=unmet[0] if unmet and all(unmet) else None,
        messages=messages_in(ledger, queue, processes) if queue else None,
    )


def messages_in(ledger: Ledger, queue: str, processes: Processes) -> int | None:
    """None also where this user of Redis may not look into the queue."""
    with suppress(NoPermissionError):
        return LedgerQueues(ledger.client, processes).lengths([queue]).get(queue)
    return None


def upstreams_of(ledger: Ledger, spec: JobSpec, at: datetime | None) -> Upstreams:
    """The jobs that it follows. at: the nominal time in question; None for the newest."""
    ended = {
        name: state
        for upstreams in UPSTREAMS
        for name, state in upstreams(ledger, spec, at).items()
    }
    return {name: ended.get(name) for name in spec.after}
