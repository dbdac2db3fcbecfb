"""The list of jobs, a page at a time; what fails and what waits beside it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Any

from supervisor.job.durations import Durations
from supervisor.job.run import FAILURES, Run, RunState
from supervisor.ledger.job_record import NO_RUNS, JobRecord, OpenRuns
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import NEVER, Trace, holders, standings, traces
from supervisor.schedule.expectations import LATE_LEAST
from supervisor.web.jobs_query import Filter, JobsQuery, Sort, page_of
from supervisor.web.strip import LENGTH, Chart, Pace, chart_of, pace_of

#: Last outcomes of jobs that are failing.
BAD = frozenset({*FAILURES, RunState.MISSED})


@dataclass(frozen=True, slots=True)
class Listing:
    query: JobsQuery

    names: Sequence[str]
    """Of the page."""

    total: int

    counts: Mapping[str, int]
    """Jobs for each filter, of those that the search finds."""

    page: int
    pages: int


def listing_of(ledger: Ledger, query: JobsQuery, jobs: Standings) -> Listing:
    """`jobs`: all of them."""
    names = names_with(ledger, query)
    counts = {word.value: len(jobs.filtered(word, names)) for word in Filter}
    matching = jobs.sorted(jobs.filtered(query.filter, names), query)
    shown, page, pages = page_of(matching, query.page)
    return Listing(query, shown, len(matching), counts, page, pages)


def names_of(ledger: Ledger, query: JobsQuery, now: datetime) -> Sequence[str]:
    """All jobs that the query finds, on all pages."""
    names = names_with(ledger, query)
    if query.filter is Filter.ALL and query.sort is Sort.NAME:
        return names[::-1] if query.is_reversed else names
    jobs = Standings(ledger, names, now)
    return jobs.sorted(jobs.filtered(query.filter, names), query)


def names_with(ledger: Ledger, query: JobsQuery) -> Sequence[str]:
    needle = query.search.lower()
    names = [name for name in sorted(ledger.job_names()) if needle in name.lower()]
    if not query.label:
        return names
    specs = ledger.some_specs(names)
    return [name for name in names if name in specs and specs[name].has_label(query.label)]


class Standings:
    """How jobs stand, by which they are filtered and sorted."""

    def __init__(self, ledger: Ledger, names: Sequence[str], now: datetime) -> None:
        self.by_name = standings(ledger, names)
        self.open_runs = ledger.open_runs_of(names)
        self._now = now
        self._overdue = overdue(ledger, now)

    def filtered(self, filter: Filter, names: Sequence[str]) -> Sequence[str]:
        fits: Mapping[Filter, Callable[[str], bool]] = {
            Filter.ALL: lambda name: True,
            Filter.RUNNING: lambda name: self._open(name).running > 0,
            Filter.WAITING: lambda name: self._open(name).pending > 0,
            Filter.LATE: self._is_late,
            Filter.FAILING: self.is_failing,
            Filter.SKIPPING: lambda name: self.by_name[name].consecutive_skips > 0,
            Filter.PAUSED: lambda name: self.by_name[name].paused,
        }
        return [name for name in names if name in self.by_name and fits[filter](name)]

    def sorted(self, names: Sequence[str], query: JobsQuery) -> Sequence[str]:
        """The names in this order: equal ones by name, those without a value last."""
        if query.sort is Sort.NAME:
            return names[::-1] if query.is_reversed else names
        values: Mapping[Sort, Callable[[str], Any]] = {
            Sort.STATE: self._place_of_state,
            Sort.NEXT: self._next_at,
            Sort.LAST: lambda name: self.by_name[name].last_start_at,
            Sort.FAILURES: lambda name: self.by_name[name].failures or None,
        }
        value = values[query.sort]
        valued = [name for name in names if value(name) is not None]
        valued.sort(key=value, reverse=query.direction(query.sort.value) == "descending")
        return valued + [name for name in names if value(name) is None]

    def is_failing(self, name: str) -> bool:
        return self.by_name[name].last_outcome in BAD

    def _open(self, name: str) -> OpenRuns:
        return self.open_runs.get(name, NO_RUNS)

    def _next_at(self, name: str) -> datetime | None:
        standing = self.by_name[name]
        return None if standing.paused else standing.next_at

    def _is_late(self, name: str) -> bool:
        # One that waits for a lock may do so; one that is queued has it, and should start.
        queued_at = self._open(name).oldest_queued_at if self._open(name).queued else None
        moments = (self._next_at(name), queued_at)
        is_late = any(moment and self._now - moment >= LATE_LEAST for moment in moments)
        return is_late or name in self._overdue

    def _place_of_state(self, name: str) -> int:
        runs = self._open(name)
        states = (
            self.is_failing(name),
            runs.running,
            runs.pending,
            self.by_name[name].paused,
            True,
        )
        return [*map(bool, states)].index(True)


def overdue(ledger: Ledger, now: datetime) -> set[str]:
    """The jobs that have not succeeded in time, as their `due_by` says."""
    records = ledger.records_of(ledger.scheduled_with("due_by"))
    return {job.spec.name for job in records if (due := job.success_due_at) and due < now}


@dataclass(frozen=True, slots=True)
class Queueing:
    """A job with runs that have not started or are to start again."""

    job: str
    runs: OpenRuns

    behind: Run | None
    """The run that holds its lock."""


def queueing(ledger: Ledger, open_runs: Mapping[str, OpenRuns], limit: int) -> list[Queueing]:
    """The jobs whose runs have waited longest."""
    pending = {name: runs for name, runs in open_runs.items() if runs.pending}

    def since(name: str) -> tuple[bool, float, str]:
        oldest = pending[name].oldest_queued_at
        return oldest is None, oldest.timestamp() if oldest else 0, name

    names = sorted(pending, key=since)[:limit]
    specs = ledger.some_specs([name for name in names if pending[name].waiting])
    locks = {name: spec.lock for name, spec in specs.items()}
    behind = holders(ledger, [*locks.values()])
    return [Queueing(name, pending[name], behind.get(locks.get(name, ""))) for name in names]


@dataclass(frozen=True, slots=True)
class Failing:
    """The last runs of a job that ended, all badly."""

    times: int

    is_more: bool
    """Earlier ones, which were not read, may belong to them."""

    since: datetime | None
    reason: str

    run: str | None = None
    """The last of them, if it was one, and not a range of ticks."""


def failing(traces: Sequence[Trace], failures: int) -> Failing | None:
    """None unless the run that ended last was bad; it may be of an earlier time than others.

    failures: of all runs of the job so far.
    """
    ended = [run for run in traces if run.state in BAD | {RunState.SUCCEEDED}]
    ended.sort(key=lambda run: run.finished_at or NEVER)
    bad = list(takewhile(lambda run: run.state in BAD, reversed(ended)))
    if not bad:
        return None
    lines = (bad[0].reason or "").splitlines()
    since = bad[-1].finished_at or bad[-1].nominal_at
    run = bad[0].id if bad[0].state in FAILURES else None
    is_more = len(bad) == len(ended) and failures > sum(run.state in FAILURES for run in bad)
    return Failing(len(bad), is_more, since, lines[0] if lines else "", run)


#: The panel of failing jobs compares the histories of at most this many, those that failed last.
MOST_COMPARED = 100


def failing_jobs(ledger: Ledger, jobs: Standings, limit: int) -> tuple[int, dict[str, Failing]]:
    """How many jobs are failing, and how: first those that began to last."""

    def last_at(name: str) -> datetime:
        return jobs.by_name[name].last_start_at or NEVER

    bad = [name for name in jobs.by_name if jobs.is_failing(name)]
    names = heapq.nlargest(MOST_COMPARED, bad, last_at)
    runs = traces(ledger, names, LENGTH)
    by_name = {
        name: how for name in names if (how := failing(runs[name], jobs.by_name[name].failures))
    }
    newest = heapq.nlargest(limit, by_name, lambda name: by_name[name].since or NEVER)
    return len(bad), {name: by_name[name] for name in newest}


@dataclass(frozen=True, slots=True)
class JobRow:
    job: JobRecord
    failing: Failing | None
    chart: Chart
    pace: Pace

    held_back: Trace | None
    """The last run of the chart that was skipped because of another."""


def rows_of(ledger: Ledger, names: Sequence[str], now: datetime) -> list[JobRow]:
    """The rows, in the order of the names."""
    specs = ledger.some_specs(names)
    records = ledger.records_of([specs[name] for name in names if name in specs])
    shown = [record.spec for record in records]
    runs, durations = traces(ledger, [s.name for s in shown], LENGTH), ledger.durations_of(shown)
    return [
        row_of(record, runs[name], durations[name], now)
        for record in records
        if (name := record.spec.name)
    ]


def row_of(job: JobRecord, runs: Sequence[Trace], durations: Durations, now: datetime) -> JobRow:
    pace = pace_of(job.spec, durations, now)
    blocked = (run for run in reversed(runs) if run.blocked_by and run.state is RunState.SKIPPED)
    how = failing(runs, job.failures)
    return JobRow(job, how, chart_of(runs, pace.interval), pace, next(blocked, None))
