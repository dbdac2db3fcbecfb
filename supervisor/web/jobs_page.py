"""The list of jobs: filtered, sorted, a page at a time, each with a chart of its last runs."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import takewhile
from typing import Any
from urllib.parse import urlencode

from supervisor.job.durations import Durations
from supervisor.job.run import FAILURES, Run, RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import (
    NEVER,
    Standing,
    Trace,
    holders,
    running_runs,
    standings,
    traces,
)
from supervisor.ledger.presence import Processes, WorkerFacts
from supervisor.ledger.queues import LedgerQueues, Queue, Queues, queues
from supervisor.ledger.records import JobRecord, OpenRuns
from supervisor.logs import get_logger
from supervisor.operate.shapes import Worker
from supervisor.operate.words import duration, stamp
from supervisor.schedule.expectations import LATE_LEAST, interval_of, next_ticks

PAGE_SIZE = 50

log = get_logger("supervisor.web")

#: Last outcomes of jobs that are failing.
BAD = frozenset({*FAILURES, RunState.MISSED})


class Filter(StrEnum):
    """failing: the last outcome was bad. skipping: runs were skipped since the last that began.

    late: the next time, or that of a run that is queued and has not started, is half a minute past.
    """

    ALL = "all"
    FAILING = "failing"
    LATE = "late"
    RUNNING = "running"
    WAITING = "waiting"
    SKIPPING = "skipping"
    PAUSED = "paused"


class Sort(StrEnum):
    """The orders: name; state, failing first; next time; last start; most failures."""

    NAME = "name"
    STATE = "state"
    NEXT = "next"
    LAST = "last"
    FAILURES = "failures"


#: Sorted by these, the greatest comes first.
GREATEST_FIRST = frozenset({Sort.LAST, Sort.FAILURES})


#: Texts of a query that leave jobs out, as the address names them.
NARROWING = ("search", "label", "source", "prefix")


@dataclass(frozen=True, slots=True)
class JobsQuery:
    """What the address of the page asks for; words that are not valid are ignored."""

    search: str = ""
    label: str = ""
    source: str = ""
    prefix: str = ""
    filter: Filter = Filter.ALL
    sort: Sort = Sort.NAME
    is_reversed: bool = False
    page: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> JobsQuery:
        word, page, sort = query.get("state", ""), query.get("page", "1"), query.get("sort", "")
        column = sort.removeprefix("-")
        return cls(
            search=query.get("search", "").strip()[:100],
            label=query.get("label", "").strip()[:200],
            source=query.get("source", "").strip()[:100],
            prefix=query.get("prefix", "").strip()[:100],
            filter=Filter(word) if word in set(Filter) else Filter.ALL,
            sort=Sort(column) if column in set(Sort) else Sort.NAME,
            is_reversed=column in set(Sort) and sort.startswith("-"),
            page=int(page) if page.isascii() and page.isdigit() and len(page) < 6 else 1,
        )

    @property
    def order(self) -> str:
        """``-next`` for the reverse of ``next``."""
        return ("-" if self.is_reversed else "") + self.sort.value

    @property
    def title(self) -> str:
        parts = [
            self.filter.value if self.filter is not Filter.ALL else "",
            f"with {self.search}" if self.search else "",
            f"labelled {self.label}" if self.label else "",
            f"of {self.source}" if self.source else "",
            f"beginning with {self.prefix}" if self.prefix else "",
            f"by {self.sort.value}" if self.sort is not Sort.NAME else "",
            f"page {self.page}" if self.page > 1 else "",
        ]
        return ", ".join(["Jobs", *filter(None, parts)])

    @property
    def words(self) -> dict[str, str]:
        """The query as part of an address, without what is so by default."""
        asked = {name: getattr(self, name) for name in NARROWING}
        asked["state"] = self.filter.value if self.filter is not Filter.ALL else ""
        asked["sort"] = self.order if self.order != Sort.NAME.value else ""
        return {name: word for name, word in asked.items() if word}

    @property
    def is_narrowed(self) -> bool:
        """Whether it leaves jobs out, whatever their state."""
        return any(getattr(self, name) for name in NARROWING)

    @property
    def narrowed(self) -> Mapping[str, str]:
        """What leaves jobs out beside the search and the state, and the address without it."""
        return {
            f"{name} {word}": replace(self, **{name: ""}).url()  # type: ignore[arg-type]
            for name, word in self.words.items()
            if name in NARROWING[1:]
        }

    @property
    def kept(self) -> Mapping[str, str]:
        """The hidden fields of the form that searches."""
        return {name: word for name, word in self.words.items() if name != "search"}

    def url(self, filter: str | None = None, page: int = 1) -> str:
        shown = replace(self, filter=Filter(filter)) if filter else self
        return "./?" + urlencode(shown.words | ({"page": str(page)} if page > 1 else {}))

    def labelled_url(self, label: str) -> str:
        return replace(self, label=label).url()

    def sorted_url(self, column: str) -> str:
        """The address sorted by it, or reversed if it is sorted by it already."""
        is_again = self.sort.value == column and not self.is_reversed
        return replace(self, sort=Sort(column), is_reversed=is_again).url()

    def direction(self, column: str) -> str | None:
        """The value of aria-sort; None for a column that the list is not sorted by."""
        if self.sort.value != column:
            return None
        is_descending = self.is_reversed != (self.sort in GREATEST_FIRST)
        return "descending" if is_descending else "ascending"


@dataclass(frozen=True, slots=True)
class Listing:
    """names: of the page. counts: jobs for each filter, of those that the search finds."""

    query: JobsQuery
    names: tuple[str, ...]
    found: int
    counts: Mapping[str, int]
    page: int
    pages: int


def listing_of(
    ledger: Ledger,
    query: JobsQuery,
    now: datetime,
    standing: Mapping[str, Standing],
    open_runs: OpenByJob,
) -> Listing:
    """`standing`, `open_runs`: of all jobs."""
    names = names_with(ledger, query)
    jobs = Standings(standing, open_runs, names, now)
    counts = {word.value: len(jobs.filtered(word)) for word in Filter}
    wanted = jobs.sorted(jobs.filtered(query.filter), query)
    pages = max(1, -(-len(wanted) // PAGE_SIZE))
    page = min(max(1, query.page), pages)
    shown = wanted[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
    return Listing(query, tuple(shown), len(wanted), counts, page, pages)


def names_of(ledger: Ledger, query: JobsQuery, now: datetime) -> Sequence[str]:
    """All jobs that the query finds, on all pages."""
    names = names_with(ledger, query)
    if query.filter is Filter.ALL and query.sort is Sort.NAME:
        return names[::-1] if query.is_reversed else names
    jobs = Standings(standings(ledger, names), ledger.open_runs_of(names), names, now)
    return jobs.sorted(jobs.filtered(query.filter), query)


def names_with(ledger: Ledger, query: JobsQuery) -> Sequence[str]:
    known = sorted(ledger.job_names())
    if not query.is_narrowed:
        return known
    needle = query.search.lower()
    named = (name for name in known if name.startswith(query.prefix))
    names = [name for name in named if needle in name.lower()]
    if not (query.label or query.source):
        return names
    loaded = ledger.loaded(names)
    return [
        name
        for name, spec in loaded.specs.items()
        if (not query.label or spec.has_label(query.label))
        and (not query.source or loaded.origins[name].source == query.source)
    ]


OpenByJob = Mapping[str, OpenRuns]


class Standings:
    """The facts by which jobs are filtered and sorted. `names`: sorted."""

    def __init__(
        self,
        standings: Mapping[str, Standing],
        open_runs: OpenByJob,
        names: Sequence[str],
        now: datetime,
    ) -> None:
        self._names = [name for name in names if name in standings]
        self._now = now
        self._standings = standings
        # One that waits for a lock may do so; one that is queued has it, and should start.
        self._queued_for = {
            name: found.oldest_queued_at for name, found in open_runs.items() if found.queued
        }
        self._running = {name for name, found in open_runs.items() if found.running}
        self._held = {name for name, found in open_runs.items() if found.held}

    def filtered(self, filter: Filter) -> Sequence[str]:
        if filter is Filter.ALL:
            return self._names
        standing = self._standings
        fits: Mapping[Filter, Callable[[str], bool]] = {
            Filter.RUNNING: self._running.__contains__,
            Filter.WAITING: self._held.__contains__,
            Filter.LATE: self._is_late,
            Filter.FAILING: lambda name: standing[name].last_outcome in BAD,
            Filter.SKIPPING: lambda name: standing[name].consecutive_skips > 0,
            Filter.PAUSED: lambda name: standing[name].paused,
        }
        return [name for name in self._names if fits[filter](name)]

    def sorted(self, names: Sequence[str], query: JobsQuery) -> Sequence[str]:
        """The names in this order: equal ones by name, those without a value last."""
        if query.sort is Sort.NAME:
            return names[::-1] if query.is_reversed else names
        standing = self._standings
        values: Mapping[Sort, Callable[[str], Any]] = {
            Sort.STATE: self._place_of_state,
            Sort.NEXT: self._next_at,
            Sort.LAST: lambda name: standing[name].last_start_at,
            Sort.FAILURES: lambda name: standing[name].failures or None,
        }
        value = values[query.sort]
        known = [name for name in names if value(name) is not None]
        known.sort(key=value, reverse=query.direction(query.sort.value) == "descending")
        return known + [name for name in names if value(name) is None]

    def _next_at(self, name: str) -> datetime | None:
        standing = self._standings[name]
        return None if standing.paused else standing.next_at

    def _is_late(self, name: str) -> bool:
        moments = (self._next_at(name), self._queued_for.get(name))
        return any(moment and self._now - moment >= LATE_LEAST for moment in moments)

    def _place_of_state(self, name: str) -> int:
        standing = self._standings[name]
        is_failing = standing.last_outcome in BAD
        is_open = (name in self._running, name in self._held)
        return (is_failing, *is_open, standing.paused, True).index(True)


@dataclass(frozen=True, slots=True)
class Queueing:
    """A job with runs that have not started or are to start again. behind: what holds its lock."""

    job: str
    runs: OpenRuns
    behind: Run | None


def queueing(ledger: Ledger, open_runs: OpenByJob, limit: int) -> list[Queueing]:
    """The jobs whose runs have waited longest."""
    held = {name: found for name, found in open_runs.items() if found.held}

    def since(name: str) -> tuple[bool, float, str]:
        oldest = held[name].oldest_queued_at
        return oldest is None, oldest.timestamp() if oldest else 0, name

    names = sorted(held, key=since)[:limit]
    specs = ledger.some_specs([name for name in names if held[name].waiting])
    locks = {name: spec.lock for name, spec in specs.items()}
    behind = holders(ledger, [*locks.values()])
    return [Queueing(name, held[name], behind.get(locks.get(name, ""))) for name in names]


# Queues, the workers that consume them, and what runs in those.


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """running: runs by the process that they run in. more: how many are left out there."""

    queues: list[Queue]
    workers: list[Worker]
    running: Mapping[str, Sequence[Run]]
    count: int
    more: int


#: Up to this many are shown with their processes.
MOST_RUNNING = 500


def queue_status(ledger: Ledger, broker: Queues | None) -> QueueStatus:
    specs, processes = ledger.specs(), ledger.presences.processes()
    broker = broker or LedgerQueues(ledger.client, processes)
    running: dict[str, list[Run]] = defaultdict(list)
    count, longest = running_runs(ledger, MOST_RUNNING)
    for run in longest:
        if run.worker:
            running[run.worker].append(run)
    return QueueStatus(
        queues(specs.values(), processes, broker, ledger.drains.since()),
        list(workers_of(processes)),
        dict(sorted(running.items())),
        count,
        count - len(longest),
    )


def queues_of(ledger: Ledger, broker: Queues | None, specs: Iterable[JobSpec]) -> list[Queue]:
    """The queues that these jobs go to, that workers consume, or that are drained."""
    processes = ledger.presences.processes()
    broker = broker or LedgerQueues(ledger.client, processes)
    return queues(specs, processes, broker, ledger.drains.since())


def troubles_of(ledger: Ledger, broker: Queues | None) -> Iterable[str]:
    """Why queued runs do not begin."""
    for queue in queues_of(ledger, broker, ledger.scheduled().values()):
        if queue.drained_at:
            yield f"The queue {queue.name} is drained: nothing begins from it."
        elif queue.jobs and not queue.consumers:
            start = f"celery -A proj worker -Q {queue.name}" + " -c 1" * queue.is_serial
            yield (
                f"No worker consumes the queue {queue.name}: what is sent there does not begin."
                f" Start one: `{start}`"
            )
        elif queue.is_serial and queue.consumers > 1:
            yield f"{queue.consumers} workers consume the serial queue {queue.name}: one too many."


def workers_of(processes: Processes) -> Iterable[Worker]:
    """The workers that are present, and those that vanished without signing off."""
    names = set()
    for present in processes.present:
        if isinstance(facts := present.facts, WorkerFacts):
            names.add(facts.name)
            yield Worker(
                worker=facts.name,
                present=True,
                last_seen_at=present.last_seen_at,
                started_at=present.started_at,
                host=present.host,
                pid=present.pid,
                queues=list(facts.queues),
                processes=facts.pool_size,
            )
    for name in sorted(processes.last_seen.keys() - names):
        yield Worker(worker=name, present=False, last_seen_at=processes.last_seen[name])


# The last runs of a job as a bar chart: colour is the outcome, height the duration, on the scale of
# the job's interval where runs come near it.


LENGTH = 24
PITCH = 7
HEIGHT = 30
LEAST_HEIGHT = 4

#: From this share of the interval on, it is the scale.
NEAR = 0.25

#: Runs in these states have not run: a small mark on the ground.
NEVER_STARTED = frozenset(
    {
        RunState.SKIPPED,
        RunState.MISSED,
        RunState.EXCLUDED,
        RunState.EXPIRED,
        RunState.WAITING,
        RunState.QUEUED,
    }
)


@dataclass(frozen=True, slots=True)
class Mark:
    run: str
    state: str
    x: int
    y: float
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class Chart:
    """limit_y: where a bar would be as high as the interval is long."""

    marks: tuple[Mark, ...]
    limit_y: float | None
    words: str
    width: int = LENGTH * PITCH
    height: int = HEIGHT


def chart_of(traces: Sequence[Trace], interval_seconds: float | None) -> Chart:
    """`traces`: oldest first."""
    shown = traces[-LENGTH:]
    longest = max((trace.duration_seconds or 0 for trace in shown), default=0)
    is_near = interval_seconds is not None and longest >= NEAR * interval_seconds
    top = max(longest, interval_seconds or 0) if is_near else longest
    first = LENGTH - len(shown)
    return Chart(
        tuple(mark_of(trace, first + place, top) for place, trace in enumerate(shown)),
        HEIGHT * (1 - interval_seconds / top) if is_near and interval_seconds else None,
        words_of(shown),
    )


def mark_of(trace: Trace, place: int, top: float) -> Mark:
    height = float(LEAST_HEIGHT)
    if trace.state is RunState.RUNNING:
        height = HEIGHT / 2
    elif trace.state not in NEVER_STARTED and top:
        height = max(height, HEIGHT * (trace.duration_seconds or 0) / top)
    return Mark(
        run=trace.id,
        state=trace.state.value,
        x=place * PITCH,
        y=round(HEIGHT - height, 1),
        height=round(height, 1),
        title=title_of(trace),
    )


def title_of(trace: Trace) -> str:
    lasted = trace.duration_seconds
    parts = [
        f"{stamp(trace.nominal_at)} {trace.state.value}",
        f"in {duration(lasted)}" if lasted is not None and trace.state not in NEVER_STARTED else "",
        f"blocked by {trace.blocked_by}" if trace.blocked_by else "",
        trace.reason or "",
    ]
    return ", ".join(filter(None, parts))


def words_of(traces: Sequence[Trace]) -> str:
    """``18 succeeded, 5 skipped``: the chart for people who cannot see it."""
    counts = Counter(trace.state.value for trace in traces)
    return ", ".join(f"{count} {state}" for state, count in counts.most_common()) or "no runs yet"


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the runs in the history took, against how far apart ticks are. Seconds."""

    median: float | None
    p95: float | None
    longest: float | None
    interval: float | None

    @property
    def load(self) -> float | None:
        """Share of the interval that the longest run took; above 1, ticks came while it ran."""
        if self.longest is None or not self.interval:
            return None
        return self.longest / self.interval

    @property
    def word(self) -> str:
        if self.load is None:
            return "unknown"
        return "over" if self.load > 1 else "near" if self.load > 0.8 else "within"


@dataclass(frozen=True, slots=True)
class Failing:
    """The last runs of a job that ended, all badly. is_more: so did each that was looked at.

    run: the last of them, if it was one, and not a range of ticks.
    """

    times: int
    is_more: bool
    since: datetime | None
    reason: str
    run: str | None = None


def failing(traces: Sequence[Trace]) -> Failing | None:
    """`traces`: oldest first. None unless the last run that ended was bad."""
    ended = [run for run in reversed(traces) if run.state in BAD | {RunState.SUCCEEDED}]
    bad = list(takewhile(lambda run: run.state in BAD, ended))
    if not bad:
        return None
    lines = (bad[0].reason or "").splitlines()
    since = bad[-1].finished_at or bad[-1].nominal_at
    run = bad[0].id if bad[0].state in FAILURES else None
    return Failing(len(bad), len(bad) == len(traces) > 1, since, lines[0] if lines else "", run)


#: The panel of failing jobs compares the histories of at most this many, those that failed last.
MOST_COMPARED = 100


def failing_jobs(
    ledger: Ledger, standing: Mapping[str, Standing], limit: int
) -> tuple[int, dict[str, Failing]]:
    """How many jobs are failing, and how: first those that began to last."""

    def last_at(name: str) -> datetime:
        return standing[name].last_start_at or NEVER

    bad = [name for name, found in standing.items() if found.last_outcome in BAD]
    names = heapq.nlargest(MOST_COMPARED, bad, last_at)
    runs = traces(ledger, names, LENGTH)
    found = {name: how for name in names if (how := failing(runs[name]))}
    newest = heapq.nlargest(limit, found, lambda name: found[name].since or NEVER)
    return len(bad), {name: found[name] for name in newest}


@dataclass(frozen=True, slots=True)
class JobRow:
    """held_back: the last run of the chart that was skipped because of another."""

    job: JobRecord
    failing: Failing | None
    chart: Chart
    pace: Pace
    held_back: Trace | None


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
    held = (run for run in reversed(runs) if run.blocked_by and run.state is RunState.SKIPPED)
    return JobRow(job, failing(runs), chart_of(runs, pace.interval), pace, next(held, None))


def pace_of(spec: JobSpec, durations: Durations, now: datetime) -> Pace:
    interval = interval_of(next_ticks(spec, now))
    return Pace(
        durations.quantile(0.5),
        durations.quantile(0.95),
        durations.longest,
        interval.total_seconds() if interval else None,
    )
