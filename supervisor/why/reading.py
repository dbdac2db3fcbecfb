"""Reads from the ledger what a question is about: the one place that does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from supervisor.errors import UnknownRun
from supervisor.job.spec import JobSpec
from supervisor.ledger.circumstances import admitted_at, server_since, silences
from supervisor.ledger.histograms import Histogram
from supervisor.ledger.runs import Ledger
from supervisor.runs.run import Run, RunState, StepId, tick_id
from supervisor.why.calendar import calendar_of
from supervisor.why.facts import Away, Crew, Facts, RunFacts, Usual
from supervisor.why.names import is_tick

#: Fewer attempts than these say nothing about what is usual.
ENOUGH_ATTEMPTS = 5

#: Of a job's open runs, so many are explained.
MOST_OPEN = 5

PASSED_OVER = (RunState.MISSED, RunState.EXCLUDED)


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
    )


def facts_of_run_id(ledger: Ledger, run_id: str) -> Facts:
    """Raises UnknownRun and, of a run whose job is gone, UnknownJob."""
    place = StepId.of(run_id)
    run = ledger.run(place.run if place else run_id)
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
        beat_away=not beat.leads(now),
        paused_at=mark.pause.start if job.paused and mark.pause else None,
    )


def facts_of_run(ledger: Ledger, run: Run, *, looks_deeper: bool = True) -> RunFacts:
    spec = ledger.some_specs([run.job]).get(run.job)
    queue = spec.routed_queue if spec else None
    waits_for_worker = run.state in (RunState.QUEUED, RunState.EXPIRED) and not run.has_steps
    return RunFacts(
        run=run,
        admitted_at=admitted_at(ledger, [run]).get(run.id),
        queue=queue,
        usual=usual_of(ledger.durations(run.job)) if spec else None,
        steps=ledger.steps.records(run.id) if run.has_steps else (),
        blocker=blocker_of(ledger, run) if looks_deeper else None,
        away=away_at(ledger, run),
        crew=crew_of(ledger, queue, spec) if waits_for_worker else None,
        drained_at=ledger.drains.since().get(run.queue or "") if waits_for_worker else None,
    )


def crew_of(ledger: Ledger, queue: str | None, spec: JobSpec | None) -> Crew:
    workers = ledger.presences.roll().workers
    there = [worker for worker in workers if queue is None or queue in worker.queues]
    task = spec.task if spec else None
    is_unknown = there and task and task not in ledger.presences.tasks(there)
    return Crew(len(there), sum(worker.pool_size for worker in there), task if is_unknown else None)


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
    """The tick's own record, or that of the range of ticks it was passed over with."""
    try:
        return ledger.run(run_id)
    except UnknownRun:
        spans = (run for run in history if run.state in PASSED_OVER)
        return next((run for run in spans if first_of(run) <= at <= run.nominal_at), None)


def others(history: Sequence[Run], at: datetime, known: str | None) -> tuple[Run, ...]:
    """Runs of the same nominal time: backfills, and what people triggered for it."""
    return tuple(
        run
        for run in history
        if run.nominal_at == at and run.id != known and run.state not in PASSED_OVER
    )


def oldest(history: Sequence[Run]) -> datetime | None:
    """Backfills are for times long past and say nothing about how far the records go back."""
    return min((first_of(run) for run in history if is_tick(run)), default=None)


def first_of(run: Run) -> datetime:
    return run.first_nominal_at or run.nominal_at


def away_at(ledger: Ledger, run: Run) -> Away | None:
    """The time without beat that these ticks fell into, or that made the run late."""
    for start, end in silences(ledger):
        if start <= run.nominal_at and first_of(run) <= end:
            return Away(start, end)
    return None
