"""Reads for pages: a few facts of each of many jobs, in a fixed number of round trips."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count, islice
from math import inf

from supervisor.job.run import FAILURES, Run, RunState
from supervisor.job.run_ids import StepId
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.reader import chunks
from supervisor.ledger.run_record import lines_of
from supervisor.times import instant, ms_of, optional_instant

# What surrounds a run: when it was admitted, when no beat led, since when the server has answered.


def admitted_at(ledger: Ledger, runs: Sequence[Run]) -> dict[str, datetime]:
    """When runs were admitted, by id, without runs that have left their job's history."""
    scores = ledger.read_each(
        runs, lambda pipe, run: pipe.zscore(ledger.keys.history(run.job), run.id)
    )
    return {run.id: instant(at) for run, at in scores if at is not None}


def absences(ledger: Ledger) -> list[tuple[datetime, datetime]]:
    """The times in which no beat led, newest first; the last of them as long as they are kept."""
    spans = (line.split() for line in ledger.client.lrange(ledger.keys.away, 0, -1))
    return [(instant(start), instant(end)) for start, end in spans]


def server_since(ledger: Ledger) -> datetime | None:
    """Since when the server has answered; None before any function has looked."""
    return optional_instant(ledger.client.hget(ledger.keys.server, "since"))


# Runs by outcome and time, newest first.
#
# 1. Of each job a page of its history is read: ids and times of admission, within the bounds.
# 2. Of these ids the states are read, and nothing else of the records.
# 3. A job is asked for its next page only as long as that could still hold one of the newest
#    matches.
# 4. No run that failed is newer than the last failure of its job: only jobs that have failed so are
#    asked, some at a time, those first that failed last.
# 5. The records of the matches are read.


PAGE = 100

#: Runs whose states are read at once.
STATES_AT_ONCE = 10_000

#: Runs whose ends are read for a page or an answer of the API, newest of each job first.
MOST_ENDS = 40_000

NEVER = datetime(1970, 1, 1, tzinfo=UTC)

ScoredName = tuple[str, float]


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs are asked for."""

    outcome: RunState | Set[RunState] | None = None
    """A state, several, or None for any."""

    since: datetime | None = None
    """When a run was admitted at the earliest, included."""

    until: datetime | None = None
    """And at the latest, included."""

    limit: int = 50
    """Of matches."""

    most: int | None = None
    """Of runs that are looked at for their outcome, about."""

    @property
    def outcomes(self) -> Set[RunState]:
        """None of them for any."""
        return {self.outcome} if isinstance(self.outcome, RunState) else self.outcome or set()


def search(ledger: Ledger, jobs: Sequence[str], query: RunQuery) -> list[Run]:
    matches: dict[str, float] = {}
    left = query.most or inf
    for newest, some in portions(ledger, jobs, query):
        if left <= 0 or oldest_shown(matches, query) >= newest:
            break
        left -= search_in(ledger, some, query, left, matches)
    ids = heapq.nlargest(query.limit, matches, key=matches.__getitem__)
    return ledger.runs(ids)


def portions(
    ledger: Ledger, jobs: Sequence[str], query: RunQuery
) -> Iterator[tuple[float, Sequence[str]]]:
    """The jobs, and when their newest match can have been admitted at the latest, in ms."""
    if not query.outcomes or query.outcomes - {*FAILURES}:
        yield inf, jobs
        return
    fields = ("last_failure", *(f"n:finished:{outcome.value}" for outcome in query.outcomes))
    replies = ledger.read_each(jobs, lambda pipe, job: pipe.hmget(ledger.keys.job(job), fields))
    failed = [(float(at or inf), job) for job, (at, *counts) in replies if any(counts)]
    for some in chunks(sorted(failed, reverse=True), PAGE):
        yield some[0][0], [job for _, job in some]


def oldest_shown(matches: dict[str, float], query: RunQuery) -> float:
    """When the oldest of the newest matches was admitted, in ms; before all while there are few."""
    newest = heapq.nlargest(query.limit, matches.values())
    return newest[-1] if len(newest) == query.limit else -inf


def search_in(
    ledger: Ledger,
    jobs: Sequence[str],
    query: RunQuery,
    most: float,
    matches: dict[str, float],
) -> int:
    """Adds to the matches those of these jobs. Returns how many runs it has looked at."""
    length = max(1, min(PAGE, STATES_AT_ONCE // max(1, len(jobs)))) if query.outcomes else PAGE
    looked_at = 0
    pending = list(jobs)
    for offset in count(0, length):
        if not pending or looked_at >= most:
            break
        pages = dict(pages_of(ledger, pending, query, offset, length))
        entries = [entry for page in pages.values() for entry in page]
        looked_at += len(entries)
        matches |= dict(with_outcome(ledger, entries, query.outcomes))
        oldest = oldest_shown(matches, query)
        pending = [
            job for job, page in pages.items() if len(page) == length and page[-1][1] > oldest
        ]
    return looked_at


def pages_of(
    ledger: Ledger, jobs: Sequence[str], query: RunQuery, offset: int, length: int
) -> Iterator[tuple[str, list[ScoredName]]]:
    lowest = ms_of(query.since) if query.since else "-inf"
    highest = ms_of(query.until) if query.until else "+inf"
    return ledger.read_each(
        jobs,
        lambda pipe, job: pipe.zrevrangebyscore(
            ledger.keys.history(job), highest, lowest, offset, length, withscores=True
        ),
    )


def with_outcome(
    ledger: Ledger, entries: Sequence[ScoredName], outcomes: Set[RunState]
) -> Iterator[ScoredName]:
    if not outcomes:
        yield from entries
        return
    scores = dict(entries)
    states = ledger.read_fields(scores, "state")
    yield from ((run_id, scores[run_id]) for run_id, state in states if state in outcomes)


STANDING_FIELDS = (
    "paused",
    "last_outcome",
    "consecutive_skips",
    "next",
    "last_start",
    "last_failure",
    *(f"n:finished:{outcome.value}" for outcome in FAILURES),
)

TRACE_FIELDS = (
    "state",
    "nominal",
    "started",
    "finished",
    "blocked_by",
    "reason",
    "kind",
    "queued",
    "attempt",
)

#: Of a job whose runs may overlap, more of them could have begun before a span of time.
RUNS_BEFORE = 2


@dataclass(frozen=True, slots=True)
class Standing:
    """How a job stands, as far as one can choose or sort jobs by it."""

    paused: bool
    last_outcome: str | None
    consecutive_skips: int
    next_at: datetime | None
    last_start_at: datetime | None
    last_failure_at: datetime | None
    failures: int
    """Of all its runs."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A run as a mark in a strip."""

    id: str
    state: RunState
    nominal_at: datetime | None
    started_at: datetime | None
    """Of its last attempt."""

    finished_at: datetime | None
    blocked_by: str | None
    reason: str | None
    requested_at: datetime | None = None
    """When a run was asked for, by a trigger, a retry or a backfill."""

    attempt: int = 1
    """0 before it has started."""

    @property
    def duration_seconds(self) -> float | None:
        if self.started_at is None or self.finished_at is None:
            return None
        return (self.finished_at - self.started_at).total_seconds()


def standings(ledger: Ledger, names: Sequence[str]) -> dict[str, Standing]:
    replies = ledger.read_each(
        names, lambda pipe, name: pipe.hmget(ledger.keys.job(name), STANDING_FIELDS)
    )
    return {name: standing_from(values) for name, values in replies}


def standing_from(values: Sequence[str | None]) -> Standing:
    paused, outcome, skips, following, started, failed, *failures = values
    return Standing(
        paused == "1",
        outcome,
        int(skips or 0),
        optional_instant(following),
        optional_instant(started),
        optional_instant(failed),
        sum(int(count or 0) for count in failures),
    )


def traces(
    ledger: Ledger,
    names: Sequence[str],
    limit: int,
    since: datetime | None = None,
    until: datetime | None = None,
) -> dict[str, list[Trace]]:
    """The last runs of each job, oldest first.

    since and until: when they were admitted. Of those admitted before, the last two come as well:
    they may not have ended by then.
    """
    earlier = RUNS_BEFORE if since else 0
    last_runs = ledger.last_runs(names, TRACE_FIELDS, limit, since, until, earlier)
    return {
        name: [trace_from(run_id, values) for run_id, *values in reversed(runs) if values[0]]
        for name, runs in last_runs
    }


def trace_from(run_id: str, values: Sequence[str | None]) -> Trace:
    state, nominal, started, finished, blocked_by, reason, kind, queued, attempt = values
    return Trace(
        run_id,
        RunState(state or ""),
        optional_instant(nominal),
        optional_instant(started),
        optional_instant(finished),
        blocked_by or None,
        reason or None,
        optional_instant(queued) if kind in ("manual", "repeat") else None,
        int(attempt or 0),
    )


def neighbours(ledger: Ledger, run: Run) -> tuple[str | None, str | None]:
    """The runs of the job that were admitted before and after this one, where they are kept."""
    ids = ledger.client.zrange(ledger.keys.history(run.job), 0, -1)
    if run.id not in ids:
        return None, None
    place = ids.index(run.id)
    return ids[place - 1] if place else None, next(iter(ids[place + 1 : place + 2]), None)


def open_ids(ledger: Ledger) -> list[str]:
    """Ids of runs that have not ended: with a lease, sent, to be sent, due later, waiting."""
    keys = ledger.keys
    with ledger.client.pipeline(transaction=False) as pipe:
        for index in (keys.leases, keys.sent, keys.outbox, keys.delayed):
            pipe.zrange(index, 0, -1)
        pipe.smembers(keys.contended)
        *indexed, locks = pipe.execute()
    replies = ledger.read_each(locks, lambda pipe, lock: pipe.zrange(keys.waiting(lock), 0, -1))
    ids_by_index = (*indexed, *(run_ids for _, run_ids in replies))
    return whole_runs(run_id for run_ids in ids_by_index for run_id in run_ids)


def whole_runs(run_ids: Iterable[str]) -> list[str]:
    """The ids with whole runs in place of their steps and items, each once."""
    places = ((run_id, StepId.of(run_id)) for run_id in run_ids)
    return sorted({place.run if place else run_id for run_id, place in places})


@dataclass(frozen=True, slots=True)
class FailedRun:
    """How a failed run ended."""

    id: str
    job: str
    state: RunState
    finished_at: datetime
    reason: str

    repeated_by: Sequence[str]
    """The ids of the runs that repeat it."""


def failed_runs(
    ledger: Ledger, names: Sequence[str], since: datetime | None = None
) -> tuple[list[FailedRun], bool]:
    """The runs of these jobs that failed since then, and whether all of them are there: of the jobs
    that failed last, up to MOST_ENDS runs are looked at.
    """
    failed_at = {
        name: standing.last_failure_at for name, standing in standings(ledger, names).items()
    }
    recent = [name for name, at in failed_at.items() if at and (since is None or at >= since)]
    recent.sort(key=lambda name: failed_at[name] or NEVER, reverse=True)
    failed: list[FailedRun] = []
    left = MOST_ENDS
    for some in chunks(recent, PAGE):
        pages = ledger.read_each(
            some, lambda pipe, name: pipe.zrevrange(ledger.keys.history(name), 0, MOST_ENDS - 1)
        )
        of_all = ((run_id, name) for name, run_ids in pages for run_id in run_ids)
        job_of = dict(islice(of_all, left))
        ends = ledger.read_fields(job_of, "state", "finished", "reason", "repeated_by")
        failed += [
            FailedRun(run_id, job_of[run_id], RunState(v[0]), end, v[2] or "", lines_of(v[3]))
            for run_id, v in ends
            if v[0] in FAILURES and (end := instant(v[1])) and (since is None or end >= since)
        ]
        left -= len(job_of)
        if left <= 0:
            return failed, False
    return failed, True


def running_runs(ledger: Ledger, limit: int) -> tuple[int, list[Run]]:
    """How many runs are running, and the first of them, the longest of them first."""
    ids = whole_runs(ledger.client.zrange(ledger.keys.leases, 0, -1))
    waiting = [
        (float(started), run_id)
        for run_id, (state, started) in ledger.read_fields(ids, "state", "started")
        if state == RunState.RUNNING and started
    ]
    return len(waiting), ledger.runs([run_id for _, run_id in heapq.nsmallest(limit, waiting)])


def holders(ledger: Ledger, locks: Sequence[str]) -> dict[str, Run]:
    """A run that holds each lock now, of those that are held."""
    key = ledger.keys.lock_state
    replies = ledger.read_each(locks, lambda pipe, lock: pipe.hget(key(lock), "holder:1"))
    holding = {lock: run_id for lock, run_id in replies if run_id}
    runs = {run.id: run for run in ledger.runs([*holding.values()]) if run.state.is_open}
    return {lock: runs[run_id] for lock, run_id in holding.items() if run_id in runs}
