"""Plans and foreseen overlaps, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from supervisor.job.changes import Changes, edit_text
from supervisor.job.durations import Durations
from supervisor.job.policies import OverlapPolicy
from supervisor.job.spec import JobSpec
from supervisor.operate.forecast import Forecast
from supervisor.operate.planning import JobPlan, Plan
from supervisor.operate.shapes import iso_utc
from supervisor.operate.words import plural, span
from supervisor.schedule.clock_changes import ClockChange

# A plan.


#: More times than this are given as their number, the first and the last.
MOST_LISTED = 3


def plan_lines(plan: Plan, most: int | None = None) -> Iterator[str]:
    """Jobs in order of their names: + added, ~ changed, - removed; then the counts.

    most: as of `Changes.names`.
    """
    added, names = set(plan.changes.added), plan.changes.names(most)
    jobs = {job.spec.name: job for job in plan.jobs}
    for name in names:
        if name in jobs:
            yield from job_lines(jobs[name], "+" if name in added else "~")
        else:
            yield f"- {name}"
    if more := len(plan.changes) - len(names):
        yield f"and {plural(more, 'more job')}: `supervisor plan` shows all"
    yield summary(plan.changes)


def summary(changes: Changes) -> str:
    counts = (len(changes.added), len(changes.changed), len(changes.removed), changes.unchanged)
    words = ("added", "changed", "removed", "unchanged")
    return ", ".join(f"{count:,} {word}" for count, word in zip(counts, words, strict=True))


def job_lines(job: JobPlan, sign: str) -> Iterator[str]:
    yield f"{sign} {job.spec.name}  {timed(job.spec)}"
    rows = [(edit.key, edit_text(edit)) for edit in job.edits]
    rows += tick_rows(job)
    rows += [("clocks", clock_change_text(change)) for change in job.clock_changes]
    if job.durations:
        rows.append(("durations", durations_text(job.durations)))
    if job.durations and job.forecast:
        rows.append(("overlaps", overlaps_text(job.spec, job.durations, job.forecast)))
    width, previous = max(len(word) for word, _ in rows), ""
    for word, text in rows:
        yield f"    {'' if word == previous else word:<{width}}  {text}"
        previous = word


def timed(spec: JobSpec) -> str:
    return spec.schedule if spec.timezone == "UTC" else f"{spec.schedule} {spec.timezone}"


def tick_rows(job: JobPlan) -> list[tuple[str, str]]:
    after = ticks_text(job.ticks_after, job.spec)
    if job.before is None or job.ticks_before == job.ticks_after:
        return [("next", after)]
    return [("before", ticks_text(job.ticks_before, job.before)), ("after", after)]


def ticks_text(ticks: Sequence[datetime], spec: JobSpec) -> str:
    """The ticks in the job's zone, with the day and the offset where they change."""
    local = [tick.astimezone(spec.zone) for tick in ticks]
    parts, shown = [], ("", "")
    for tick, time in zip(local, clock_times(local), strict=True):
        day, offset = f"{tick:%a %Y-%m-%d} ", f" {tick:%Z}"
        parts.append(
            f"{day if day != shown[0] else ''}{time}{offset if offset != shown[1] else ''}"
        )
        shown = (day, offset)
    return ", ".join(parts) or "none"


def clock_times(times: Sequence[datetime]) -> list[str]:
    """The times, with seconds if any of them has some."""
    exactly = any(time.second for time in times)
    return [f"{time:%H:%M:%S}" if exactly else f"{time:%H:%M}" for time in times]


def clock_change_text(change: ClockChange) -> str:
    """``2027-03-28: 02:30 does not exist in Europe/Berlin, runs at 03:00``"""
    times, several = times_text(change.times), len(change.times) > 1
    day = f"{change.times[0]:%Y-%m-%d}"
    if change.is_gap:
        what = f"{'do' if several else 'does'} not exist in {change.zone}"
    else:
        what = f"{'come' if several else 'comes'} twice in {change.zone}"
    return f"{day}: {times} {what}, {outcome(change)}"


def outcome(change: ClockChange) -> str:
    verb = "run" if len(change.times) > 1 else "runs"
    if change.is_gap:
        if not change.runs_at:
            return "no run of their own" if verb == "run" else "no run of its own"
        one = "one run" if len(change.runs_at) < len(change.times) else verb
        return f"{one} at {times_text(change.runs_at)}"
    match change.first, change.second:
        case True, True:
            return f"{verb} both times"
        case True, False:
            return f"{verb} the first time"
        case False, True:
            return f"{verb} the second time"
        case _:
            return f"{verb} at neither"


def times_text(times: Sequence[datetime]) -> str:
    words = clock_times(times)
    if len(words) <= MOST_LISTED:
        return ", ".join(words)
    return f"{len(words)} times from {words[0]} to {words[-1]}"


def durations_text(durations: Durations) -> str:
    """``median 4m, p95 5m20s, longest 6m, of 120 runs``"""
    figures = durations_shape(durations)
    words = ("median", "p95", "longest")
    listed = ", ".join(f"{word} {span(figures[f'{word}_seconds'])}" for word in words)
    return f"{listed}, of {plural(figures['runs'], 'run')}"


def plan_shape(plan: Plan) -> dict[str, Any]:
    """`jobs`: the added and changed ones; every instant in UTC."""
    added = set(plan.changes.added)
    return {
        "added": plan.changes.added,
        "changed": plan.changes.changed,
        "removed": plan.changes.removed,
        "unchanged": plan.changes.unchanged,
        "jobs": [job_shape(job, is_added=job.spec.name in added) for job in plan.jobs],
    }


def job_shape(job: JobPlan, *, is_added: bool) -> dict[str, Any]:
    return {
        "job": job.spec.name,
        "change": "added" if is_added else "changed",
        "schedule": job.spec.schedule,
        "timezone": job.spec.timezone,
        "keys": {edit.key: {"old": edit.old, "new": edit.new} for edit in job.edits},
        "ticks_before": [iso_utc(tick) for tick in job.ticks_before],
        "ticks_after": [iso_utc(tick) for tick in job.ticks_after],
        "clock_changes": [clock_change_shape(change) for change in job.clock_changes],
        "durations": durations_shape(job.durations) if job.durations else None,
        "overlaps": forecast_shape(job.forecast) if job.forecast else None,
    }


def clock_change_shape(change: ClockChange) -> dict[str, Any]:
    """Local times, without an offset."""
    return {
        "timezone": change.zone,
        "kind": "gap" if change.is_gap else "fold",
        "times": [time.isoformat() for time in change.times],
        "runs_at": [time.isoformat() for time in change.runs_at],
        "runs_first_time": change.first,
        "runs_second_time": change.second,
        "text": clock_change_text(change),
    }


def durations_shape(durations: Durations) -> dict[str, Any]:
    return {
        "runs": len(durations.seconds),
        "median_seconds": durations.quantile(0.5),
        "p95_seconds": durations.quantile(0.95),
        "longest_seconds": durations.longest,
    }


# Expected overlaps.


#: A frequency is given by the first of these periods, in days, in which it is one or more.
PERIODS = (("day", 1), ("week", 7), ("month", 30), ("year", 365))


def overlaps_text(spec: JobSpec, durations: Durations, forecast: Forecast) -> str:
    """``p99 is 6m12s, every 5m: about 14 skips a day; a safe interval is 7m``"""
    return "; ".join(overlap_sentences(spec, durations, forecast))


#: By policy, what a tick is that finds a run unended.
OVERLAPPING = {
    OverlapPolicy.SKIP: "skip",
    OverlapPolicy.QUEUE_ONE: "wait",
    OverlapPolicy.QUEUE_ALL: "wait",
    OverlapPolicy.REQUEUE: "re-queue",
    OverlapPolicy.REPLACE: "replaced run",
    OverlapPolicy.ALLOW: "overlap",
}


def overlap_sentences(spec: JobSpec, durations: Durations, forecast: Forecast) -> Iterator[str]:
    distance = span(forecast.distance.total_seconds())
    apart = spec.schedule if spec.every else f"ticks {distance} apart"
    count = often(forecast.overlaps, OVERLAPPING[spec.overlap])
    yield f"runs take up to {span(durations.longest or 0)}, {apart}: {count}"
    if forecast.safe_interval > forecast.distance:
        yield f"a safe interval is {span(forecast.safe_interval.total_seconds())}"


def often(a_day: float, noun: str) -> str:
    """``about 14 skips a day``, ``about 1 skip a month``"""
    period, days = next((p for p in PERIODS if a_day * p[1] >= 1), PERIODS[-1])
    count = round(a_day * days)
    if not count:
        return f"less than one {noun} a {period}"
    return f"about {plural(count, noun)} a {period}"


def forecast_shape(forecast: Forecast) -> dict[str, Any]:
    return {
        "distance_seconds": forecast.distance.total_seconds(),
        "overlaps_a_day": round(forecast.overlaps, 2),
        "safe_interval_seconds": forecast.safe_interval.total_seconds(),
    }
