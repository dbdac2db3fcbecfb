"""The timeline of all jobs: a row for each, or for each value of a label, with what has run, what
waits and what comes; and that of one job, with the same row.

1. The axis reaches as far back from its middle, which is now by default, as it reaches ahead.
2. Of the jobs of one page the runs are read; jobs whose last run was bad come first.
3. The starts of all jobs are counted from their schedules, once for each schedule that several of
   them have: so it is known where many start in the same second, and nothing is read for that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any
from urllib.parse import urlencode

from supervisor.job.run import FAILURES, RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import Trace, standings, traces
from supervisor.operate.words import duration, plural
from supervisor.schedule import schedule_of, ticks_between
from supervisor.schedule.crowds import Crowd, Starts, crowds_of, starting_at, starts_of
from supervisor.times import INSTANT
from supervisor.web.axis import Label, Window, labels_of
from supervisor.web.clock import stamp
from supervisor.web.jobs_page import BAD, names_with
from supervisor.web.jobs_query import JobsQuery, page_of
from supervisor.web.strip import NEVER_STARTED, counted

#: How far the axis reaches to both sides of its middle.
REACHES = {
    "1m": timedelta(minutes=1),
    "10m": timedelta(minutes=10),
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
}
DEFAULT_REACH = "24h"

#: The axis of one job reaches by default as far as that many of its runs do.
ENOUGH_RUNS = 24

#: How far from now the middle may be.
FARTHEST = timedelta(days=366)

#: Per cent of the width within which marks of one kind become one.
NEAREST = 0.3

#: Runs that are read: of a job, of which the ledger keeps 200 by default, and of all in the rows.
MOST_RUNS, MOST_OF_ALL = 500, 40_000

#: Names of labels that are offered, those that most jobs have.
MOST_LABELS = 4

#: More times to come than these are drawn as one band.
MOST_COMING = 100

#: Bars of the picture of all starts.
BINS = 120

MOST_CROWDS = 4


@dataclass(frozen=True, slots=True)
class TimelineQuery:
    """What the address asks for; words that are not valid are ignored."""

    jobs: JobsQuery
    reach: str = DEFAULT_REACH

    by: str = ""
    """The label of which each value has a row; jobs have one each without it."""

    at: datetime | None = None
    """The middle of the axis, where it is not now."""

    starts: datetime | None = None
    """Only jobs that start at this moment."""

    @classmethod
    def of(cls, query: Mapping[str, str], now: datetime) -> TimelineQuery:
        reach = query.get("reach", "")
        return cls(
            JobsQuery.of(query),
            reach if reach in REACHES else DEFAULT_REACH,
            query.get("by", "").strip()[:100],
            moment_of(query.get("at", ""), now),
            moment_of(query.get("starts", ""), now),
        )

    def window(self, now: datetime) -> Window:
        middle, reach = self.at or now, REACHES[self.reach]
        return Window(middle - reach, middle + reach)

    def url(self, page: int = 1, **changes: Any) -> str:
        words = replace(self, **changes).words | ({"page": str(page)} if page > 1 else {})
        return "timeline?" + urlencode(words)

    @property
    def words(self) -> dict[str, str]:
        """The query as part of an address, without what is so by default."""
        words = {"search": self.jobs.search, "label": self.jobs.label}
        words["reach"] = self.reach if self.reach != DEFAULT_REACH else ""
        words |= {"by": self.by, "at": text_of(self.at), "starts": text_of(self.starts)}
        return {name: word for name, word in words.items() if word}

    @property
    def kept(self) -> Mapping[str, str]:
        """The hidden fields of the form that searches."""
        return {name: word for name, word in self.words.items() if name != "search"}

    @property
    def narrowed(self) -> Mapping[str, str]:
        """What leaves jobs out beside the search, and the address without it."""
        others = {}
        if self.jobs.label:
            without = replace(self.jobs, label="")
            others[f"label {self.jobs.label}"] = self.url(jobs=without)
        if self.starts:
            others[f"starting at {stamp(self.starts)}"] = self.url(starts=None)
        return others

    def row_url(self, row: str) -> str:
        """The address with a row for each job of this one; of those without the label, for all."""
        _, equals, _ = row.partition("=")
        return self.url(by="", jobs=replace(self.jobs, label=row if equals else ""))

    def zoomed(self, step: int) -> str | None:
        """The address with the next shorter (-1) or longer (1) axis, if there is one."""
        names = list(REACHES)
        place = names.index(self.reach) + step
        return self.url(reach=names[place]) if 0 <= place < len(names) else None

    def moved(self, now: datetime, share: float) -> str:
        """The address with the middle moved by this share of what the axis reaches."""
        moved = (self.at or now) + REACHES[self.reach] * share
        return self.url(at=moved.replace(microsecond=0))


def moment_of(text: str, now: datetime) -> datetime | None:
    """An instant in ISO 8601, in UTC unless it says otherwise, that is not too far from now."""
    try:
        moment = datetime.fromisoformat(text[:40])
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC) if abs(moment - now) <= FARTHEST else None
    except (ValueError, OverflowError):
        return None


def text_of(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}" if moment else ""


@dataclass(frozen=True, slots=True)
class RunMark:
    """A run, or several that are too near to each other; then `run` is the worst of them."""

    run: str
    state: str

    is_hold: bool
    """It has not started at its time, or not at all."""

    x: float
    width: float
    title: str


@dataclass(frozen=True, slots=True)
class Coming:
    """A time to come, and how long the run will take if it is as usual; or a band of many times."""

    x: float
    width: float
    title: str
    is_band: bool = False


@dataclass(frozen=True, slots=True)
class TimelineRow:
    name: str
    """Of a job, or ``team=mail``."""

    about: str
    """The job's schedule, or how many jobs these are."""

    is_bad: bool
    """The last outcome of any was."""

    is_paused: bool
    marks: Sequence[RunMark]
    coming: Sequence[Coming]

    words: str
    """The row for people who cannot see it."""


@dataclass(frozen=True, slots=True)
class Bin:
    """How many starts there are in a piece of the axis, which begins at `at`."""

    x: float
    width: float
    height: float
    starts: int
    at: datetime
    title: str


@dataclass(frozen=True, slots=True)
class AllJobsTimeline:
    query: TimelineQuery
    rows: Sequence[TimelineRow]
    labels: Sequence[Label]
    label_names: Sequence[str]

    now_x: float | None
    """None where the axis does not have it."""

    bins: Sequence[Bin]
    most: int
    crowds: Sequence[Crowd]

    are_all: bool
    """Whether all starts were counted."""

    total: int
    page: int
    pages: int


def timeline_of_all(ledger: Ledger, query: TimelineQuery, now: datetime) -> AllJobsTimeline:
    window = query.window(now)
    specs = ledger.specs()
    standing = standings(ledger, list(specs))
    paused = {name for name, of_job in standing.items() if of_job.paused}
    bad = {name for name, of_job in standing.items() if of_job.last_outcome in BAD}
    names = [name for name in names_with(ledger, query.jobs) if name in specs]
    if query.starts:
        there = starting_at(query.starts, [specs[n] for n in names if n not in paused])
        names = [name for name in names if name in there]
    grouped = by_row(names, specs, query.by)
    in_order = sorted(grouped, key=lambda row: (bad.isdisjoint(grouped[row]), row))
    shown, page, pages = page_of(in_order, query.jobs.page)
    jobs = [name for row in shown for name in grouped[row]]
    most = max(1, min(MOST_RUNS, MOST_OF_ALL // max(1, len(jobs))))
    runs = traces(ledger, jobs, most, window.start, window.end) if window.start < now else {}
    emitted = [spec for name, spec in specs.items() if name not in paused]
    starts, are_all = starts_of(emitted, window.start, window.end)
    bins = bins_of(starts, window)
    return AllJobsTimeline(
        query,
        [
            row_of(row, [specs[name] for name in grouped[row]], runs, window, now, bad, paused)
            for row in shown
        ],
        list(labels_of(window)),
        label_names(specs.values()),
        window.x(now) if window.shows(now, now) else None,
        bins,
        max((each.starts for each in bins), default=0),
        crowds_of(starts, specs, now)[:MOST_CROWDS],
        are_all,
        len(in_order),
        page,
        pages,
    )


@dataclass(frozen=True, slots=True)
class JobTimeline:
    reach: str
    row: TimelineRow
    labels: Sequence[Label]
    now_x: float


def timeline_of_job(ledger: Ledger, spec: JobSpec, reach: str | None, now: datetime) -> JobTimeline:
    """reach: one of REACHES, or none of them for the one that fits."""
    name = spec.name
    # Of any time: those of a backlog run long after they were admitted.
    runs = traces(ledger, [name], MOST_RUNS)
    if reach not in REACHES:
        reach = fitting_reach(runs[name][-ENOUGH_RUNS:], now)
    window = Window(now - REACHES[reach], now + REACHES[reach])
    row = row_of(name, [spec], runs, window, now, set(), ledger.paused([name]))
    return JobTimeline(reach, row, list(labels_of(window)), window.x(now))


def fitting_reach(runs: Sequence[Trace], now: datetime) -> str:
    if not runs:
        return DEFAULT_REACH
    age = now - min(map(begin_of, runs))
    return next((word for word, length in REACHES.items() if length >= age), "7d")


def by_row(
    names: Iterable[str], specs: Mapping[str, JobSpec], label: str
) -> Mapping[str, Sequence[str]]:
    """The jobs of each row, by its name: a job, or ``team=mail``."""
    if not label:
        return {name: [name] for name in names}
    rows: dict[str, list[str]] = defaultdict(list)
    for name in names:
        text = specs[name].labels.get(label)
        rows[f"without {label}" if text is None else f"{label}={text}"].append(name)
    return rows


def label_names(specs: Iterable[JobSpec]) -> list[str]:
    names = Counter(name for spec in specs for name in spec.labels)
    return [name for name, _ in names.most_common(MOST_LABELS)]


# A row: what has run, in order of time, and what comes.


def row_of(
    name: str,
    specs: Sequence[JobSpec],
    runs: Mapping[str, Sequence[Trace]],
    window: Window,
    now: datetime,
    bad: Set[str],
    paused: Set[str],
) -> TimelineRow:
    jobs = [spec.name for spec in specs]
    of_jobs = (run for job in jobs for run in runs.get(job, ()))
    shown = [run for run in of_jobs if window.shows(begin_of(run), end_of(run, now))]
    going = [spec for spec in specs if spec.name not in paused]
    ticks = sorted(tick for spec in going for tick in coming_ticks(spec, window, now))
    if is_one := jobs == [name]:
        about, usual = specs[0].schedule, usual_seconds(shown)
    else:
        shown.sort(key=begin_of)
        failing = len(bad & set(jobs))
        about = plural(len(jobs), "job") + (f", {failing:,} failing" if failing else "")
        usual = 0.0
    return TimelineRow(
        name,
        about,
        is_bad=not bad.isdisjoint(jobs),
        is_paused=is_one and not going,
        marks=list(marks_of(shown, window, now)),
        coming=list(coming_of(ticks, about, window, usual)),
        words=row_words(shown, ticks, is_paused=not going),
    )


def usual_seconds(runs: Iterable[Trace]) -> float:
    """The median of those that succeeded."""
    took = (run.duration_seconds for run in runs if run.state is RunState.SUCCEEDED)
    seconds = [each for each in took if each is not None]
    return median(seconds) if seconds else 0.0


def begin_of(run: Trace) -> datetime:
    """When it started; of one that did not, when it was asked for or meant."""
    begin = run.started_at or run.requested_at or run.nominal_at or run.finished_at
    return begin or datetime.min.replace(tzinfo=UTC)


def end_of(run: Trace, now: datetime) -> datetime:
    if run.state.is_open:
        return now
    return run.finished_at if run.finished_at and run.started_at else begin_of(run)


#: Of marks in one place, the first of these is shown.
WORST_FIRST = (
    *FAILURES,
    RunState.RUNNING,
    RunState.RETRYING,
    RunState.QUEUED,
    RunState.WAITING,
    RunState.MISSED,
    RunState.SKIPPED,
    RunState.CANCELLED,
    RunState.REPLACED,
    RunState.EXCLUDED,
    RunState.SUCCEEDED,
)


@dataclass(frozen=True, slots=True)
class Spell:
    """What is drawn of a run: that it ran, or that it waited or never started."""

    run: Trace
    state: RunState
    is_hold: bool
    start: datetime
    end: datetime


def spells_of(run: Trace, now: datetime) -> Iterator[Spell]:
    """Two of a run that another blocked before it started.

    One that was retried: when its first attempt started is not known here.
    """
    start, has_no_start = begin_of(run), run.state in NEVER_STARTED or run.started_at is None
    due = run.requested_at or run.nominal_at
    is_first = run.attempt == 1 and not has_no_start
    if run.blocked_by and is_first and due and due < start:
        yield Spell(run, RunState.WAITING, True, due, start)
    yield Spell(run, run.state, has_no_start, start, end_of(run, now))


def marks_of(runs: Iterable[Trace], window: Window, now: datetime) -> Iterator[RunMark]:
    """`runs`: in order of time."""
    places: dict[tuple[bool, int], list[Spell]] = defaultdict(list)
    for run in runs:
        for spell in spells_of(run, now):
            places[spell.is_hold, int(window.x(spell.start) / NEAREST)].append(spell)
    for (is_hold, _), together in places.items():
        worst = min(together, key=lambda spell: WORST_FIRST.index(spell.state))
        first, last = together[0].start, max(spell.end for spell in together)
        yield RunMark(
            worst.run.id,
            worst.state.value,
            is_hold,
            window.x(first),
            max(NEAREST, window.width(max(first, window.start), last)),
            mark_title(together, worst),
        )


def mark_title(together: Sequence[Spell], worst: Spell) -> str:
    if len(together) == 1:
        lasted, run = (worst.end - worst.start).total_seconds(), worst.run
        parts = [
            f"{stamp(worst.start)} {worst.state.words}",
            duration(lasted) if lasted else "",
            f"blocked by {run.blocked_by}" if run.blocked_by and worst.is_hold else "",
            run.reason if run.reason and worst.state is run.state else "",
        ]
        return ", ".join(filter(None, parts))
    span = f"{stamp(together[0].start)} to {stamp(together[-1].start)}"
    return f"{span}: {counted(Counter(spell.state.words for spell in together))}"


def coming_ticks(spec: JobSpec, window: Window, now: datetime) -> list[datetime]:
    """Up to one more than MOST_COMING."""
    start = max(now, window.start - INSTANT)
    if not spec.has_schedule or window.end <= start:
        return []
    return ticks_between(schedule_of(spec), start, window.end, MOST_COMING + 1)


def coming_of(
    ticks: Sequence[datetime], about: str, window: Window, usual: float
) -> Iterator[Coming]:
    if len(ticks) > MOST_COMING:
        x = window.x(ticks[0])
        yield Coming(x, 100 - x, f"{about}, from {stamp(ticks[0])} on", is_band=True)
        return
    lasting = timedelta(seconds=usual)
    expected = f", takes {duration(usual)} as a rule" if usual else ""
    for tick in ticks:
        width = max(NEAREST, window.width(tick, tick + lasting))
        yield Coming(window.x(tick), width, f"due {stamp(tick)}{expected}")


def row_words(runs: Sequence[Trace], ticks: Sequence[datetime], *, is_paused: bool) -> str:
    if is_paused:
        following = "paused"
    elif not ticks:
        following = "nothing due"
    elif len(ticks) > MOST_COMING:
        following = f"more than {MOST_COMING} times due, first {stamp(ticks[0])}"
    else:
        following = f"{plural(len(ticks), 'time')} due, first {stamp(ticks[0])}"
    past = counted(Counter(run.state.words for run in runs))
    return f"{past or 'no runs'}; {following}"


# The starts of all jobs, as the bars above the rows.


def bins_of(starts: Starts, window: Window) -> list[Bin]:
    length = (window.end - window.start) / BINS
    counts: Counter[int] = Counter()
    for moment, groups in starts.items():
        place = min(BINS - 1, (moment - window.start) // length)
        counts[place] += sum(map(len, groups))
    most = max(counts.values(), default=0)
    width = 100 / BINS
    return [
        Bin(
            round(place * width, 3),
            round(width, 3),
            round(100 * number / most, 1),
            number,
            at := window.start + place * length,
            f"{plural(number, 'start')} in {duration(length.total_seconds())} from {stamp(at)}",
        )
        for place, number in sorted(counts.items())
    ]
