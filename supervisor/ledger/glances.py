"""Readings for pages: of many jobs at once, a few facts each, in a fixed number of round trips."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from supervisor.ledger.readings import chunks
from supervisor.ledger.replies import to_instant
from supervisor.ledger.runs import Ledger
from supervisor.ledger.searching import Wanted, search
from supervisor.runs.run import FAILURES, OPEN_STATES, Run, RunState, StepId

#: Of all runs that have not ended, so many are looked at; the page shows fewer.
MOST_OPEN = 500

#: Among so many of them jobs are chosen by state.
MOST_CHOSEN_FROM = 20_000

STANDING_FIELDS = (
    *("paused", "last_outcome", "consecutive_skips", "next", "last_start", "last_failure"),
    *(f"n:finished:{outcome.value}" for outcome in FAILURES),
)

TRACE_FIELDS = ("state", "nominal", "started", "finished", "blocked_by", "reason")


@dataclass(frozen=True, slots=True)
class Standing:
    """How a job stands, as far as one can choose or sort jobs by it. failures: of all its runs."""

    paused: bool
    last_outcome: str | None
    consecutive_skips: int
    next_at: datetime | None
    last_start_at: datetime | None
    last_failure_at: datetime | None
    failures: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A run as a mark in a strip. started_at: of its last attempt."""

    id: str
    state: RunState
    nominal_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    blocked_by: str | None
    reason: str | None

    @property
    def duration_seconds(self) -> float | None:
        if self.started_at is None or self.finished_at is None:
            return None
        return (self.finished_at - self.started_at).total_seconds()


def standings(ledger: Ledger, names: Sequence[str]) -> dict[str, Standing]:
    found: dict[str, Standing] = {}
    for chunk in chunks(names):
        with ledger.client.pipeline(transaction=False) as pipe:
            for name in chunk:
                pipe.hmget(ledger.keys.job(name), STANDING_FIELDS)
            found |= {
                name: standing_from(values)
                for name, values in zip(chunk, pipe.execute(), strict=True)
            }
    return found


def standing_from(values: Sequence[str | None]) -> Standing:
    paused, outcome, skips, following, started, failed, *failures = values
    return Standing(
        *(paused == "1", outcome, int(skips or 0)),
        *(to_instant(following), to_instant(started), to_instant(failed)),
        sum(int(count or 0) for count in failures),
    )


def traces(ledger: Ledger, names: Sequence[str], limit: int) -> dict[str, list[Trace]]:
    """Of each job its last runs, oldest first."""
    if not names:
        return {}
    with ledger.client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.zrevrange(ledger.keys.history(name), 0, limit - 1)
        ids: dict[str, list[str]] = dict(zip(names, pipe.execute(), strict=True))
    wanted = [run_id for run_ids in ids.values() for run_id in run_ids]
    known = traces_of(ledger, wanted)
    return {name: [known[i] for i in reversed(found) if i in known] for name, found in ids.items()}


def traces_of(ledger: Ledger, run_ids: Sequence[str]) -> dict[str, Trace]:
    found: dict[str, Trace] = {}
    for chunk in chunks(run_ids):
        with ledger.client.pipeline(transaction=False) as pipe:
            for run_id in chunk:
                pipe.hmget(ledger.keys.run(run_id), TRACE_FIELDS)
            replies = zip(chunk, pipe.execute(), strict=True)
        found |= {i: trace_from(i, values) for i, values in replies if values[0]}
    return found


def trace_from(run_id: str, values: Sequence[str | None]) -> Trace:
    state, nominal, started, finished, blocked_by, reason = values
    return Trace(
        run_id,
        RunState(state or ""),
        *(to_instant(nominal), to_instant(started), to_instant(finished)),
        *(blocked_by or None, reason or None),
    )


def open_ids(ledger: Ledger, limit: int) -> list[str]:
    """Ids of runs that have not ended: with a lease, sent, to be sent, due later, waiting."""
    keys = ledger.keys
    with ledger.client.pipeline(transaction=False) as pipe:
        for index in (keys.leases, keys.sent, keys.outbox, keys.delayed):
            pipe.zrange(index, 0, limit - 1)
        pipe.smembers(keys.contended)
        *indexed, contended = pipe.execute()
    found = [run_id for run_ids in indexed for run_id in run_ids]
    return whole_runs([*found, *waiting(ledger, contended, limit)])[:limit]


def waiting(ledger: Ledger, locks: Iterable[str], limit: int) -> list[str]:
    """Runs that wait for these locks."""
    wanted = sorted(locks)[:limit]
    if not wanted:
        return []
    with ledger.client.pipeline(transaction=False) as pipe:
        for lock in wanted:
            pipe.zrange(ledger.keys.waiting(lock), 0, limit - 1)
        return [run_id for found in pipe.execute() for run_id in found]


def whole_runs(run_ids: Iterable[str]) -> list[str]:
    """Without steps and items: the runs that they belong to, each once."""
    places = ((run_id, StepId.of(run_id)) for run_id in run_ids)
    return sorted({place.run if place else run_id for run_id, place in places})


@dataclass(frozen=True, slots=True)
class OpenJobs:
    """at: for each state of a run that has not ended, the jobs that have one in it. queued_for: the
    nominal time of the oldest run of a job that is queued and has never started.
    """

    at: Mapping[RunState, set[str]]
    queued_for: Mapping[str, datetime]


def open_jobs(ledger: Ledger) -> OpenJobs:
    at: dict[RunState, set[str]] = {state: set() for state in OPEN_STATES}
    queued_for: dict[str, datetime] = {}
    for chunk in chunks(open_ids(ledger, MOST_CHOSEN_FROM)):
        with ledger.client.pipeline(transaction=False) as pipe:
            for run_id in chunk:
                pipe.hmget(ledger.keys.run(run_id), "state", "job", "nominal", "started")
            for state, job, nominal, started in pipe.execute():
                if state in at:
                    at[state].add(job)
                due = to_instant(nominal)
                if state == RunState.QUEUED and due and not started:
                    queued_for[job] = min(due, queued_for.get(job, due))
    return OpenJobs(at, queued_for)


def latest_failures(ledger: Ledger, limit: int) -> list[Run]:
    """The newest runs of all jobs that failed.

    Each of the newest N belongs to one of the N jobs that failed last, however many jobs there are.
    """
    standing = standings(ledger, ledger.job_names())
    failed = [(at, name) for name, known in standing.items() if (at := known.last_failure_at)]
    names = [name for _, name in heapq.nlargest(limit, failed)]
    return search(ledger, names, Wanted(frozenset(FAILURES), limit=limit))


def open_runs(ledger: Ledger) -> list[Run]:
    """Those at work first, the longest of them first; then those that wait, in their order."""
    runs = [run for run in ledger.runs(open_ids(ledger, MOST_OPEN)) if run.state.is_open]
    return sorted(runs, key=lambda run: (run.started_at is None, run.started_at or run.queued_at))
