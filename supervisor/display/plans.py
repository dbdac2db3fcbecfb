"""A plan as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from supervisor.display.foresights import foresight_shape, foretold
from supervisor.display.shapes import instant
from supervisor.display.words import span
from supervisor.job.changes import Changes
from supervisor.job.spec import JobSpec
from supervisor.plan.clock_changes import Surprise
from supervisor.plan.foresight import Durations
from supervisor.plan.planning import JobPlan, Plan

#: More times than these are given as their number, the first and the last.
NAMED = 3


def plan_lines(plan: Plan) -> Iterator[str]:
    """Jobs in order of their names: + added, ~ changed, - removed; then the counts."""
    added = set(plan.changes.added)
    blocks = {
        job.spec.name: job_lines(job, "+" if job.spec.name in added else "~") for job in plan.jobs
    }
    blocks |= {name: iter((f"- {name}",)) for name in plan.changes.removed}
    for name in sorted(blocks):
        yield from blocks[name]
    yield summary(plan.changes)


def summary(changes: Changes) -> str:
    counts = (len(changes.added), len(changes.changed), len(changes.removed), changes.unchanged)
    words = ("added", "changed", "removed", "unchanged")
    return ", ".join(f"{count:,} {word}" for count, word in zip(counts, words, strict=True))


def job_lines(job: JobPlan, sign: str) -> Iterator[str]:
    yield f"{sign} {job.spec.name}  {timed(job.spec)}"
    facts = [(edit.key, f"{value(edit.old)} -> {value(edit.new)}") for edit in job.edits]
    facts += tick_facts(job)
    facts += [("clocks", surprise_text(surprise)) for surprise in job.surprises]
    if job.durations:
        facts.append(("durations", durations_text(job.durations)))
    if job.durations and job.foresight:
        facts.append(("overlaps", foretold(job.spec, job.durations, job.foresight)))
    width, previous = max(len(word) for word, _ in facts), ""
    for word, fact in facts:
        yield f"    {'' if word == previous else word:<{width}}  {fact}"
        previous = word


def timed(spec: JobSpec) -> str:
    return spec.schedule if spec.timezone == "UTC" else f"{spec.schedule} {spec.timezone}"


def tick_facts(job: JobPlan) -> list[tuple[str, str]]:
    after = ticks_text(job.ticks_after, job.spec)
    if job.before is None or job.ticks_before == job.ticks_after:
        return [("next", after)]
    return [("before", ticks_text(job.ticks_before, job.before)), ("after", after)]


def ticks_text(ticks: Sequence[datetime], spec: JobSpec) -> str:
    """In the job's zone; a day and an offset are named where they change."""
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
    """Seconds are shown of all or of none."""
    exactly = any(time.second for time in times)
    return [f"{time:%H:%M:%S}" if exactly else f"{time:%H:%M}" for time in times]


def value(thing: Any) -> str:
    """As one would write it in a schedule file, on one line."""
    if thing is None:
        return "none"
    if isinstance(thing, str) and thing and thing.isprintable():
        return thing
    return json.dumps(thing, ensure_ascii=False)


def surprise_text(surprise: Surprise) -> str:
    """``2027-03-28: 02:30 does not exist in Europe/Berlin, runs at 03:00``"""
    times, several = times_text(surprise.times), len(surprise.times) > 1
    day = f"{surprise.times[0]:%Y-%m-%d}"
    if surprise.is_gap:
        what = f"{'do' if several else 'does'} not exist in {surprise.zone}"
    else:
        what = f"{'come' if several else 'comes'} twice in {surprise.zone}"
    return f"{day}: {times} {what}, {outcome(surprise)}"


def outcome(surprise: Surprise) -> str:
    verb = "run" if len(surprise.times) > 1 else "runs"
    if surprise.is_gap:
        if not surprise.runs_at:
            return "no run of their own" if verb == "run" else "no run of its own"
        one = "one run" if len(surprise.runs_at) < len(surprise.times) else verb
        return f"{one} at {times_text(surprise.runs_at)}"
    match surprise.first, surprise.second:
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
    if len(words) <= NAMED:
        return ", ".join(words)
    return f"{len(words)} times from {words[0]} to {words[-1]}"


def durations_text(durations: Durations) -> str:
    over = " or more" if durations.over else ""
    attempts = f"{durations.observations:,} attempt{'s' * (durations.observations != 1)}"
    quantiles = f"p50 {span(durations.p50)}, p95 {span(durations.p95)}, p99 {span(durations.p99)}"
    return f"{quantiles}{over}, of {attempts}"


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
        "ticks_before": [instant(tick) for tick in job.ticks_before],
        "ticks_after": [instant(tick) for tick in job.ticks_after],
        "clock_changes": [surprise_shape(surprise) for surprise in job.surprises],
        "durations": durations_shape(job.durations) if job.durations else None,
        "overlaps": foresight_shape(job.foresight) if job.foresight else None,
    }


def surprise_shape(surprise: Surprise) -> dict[str, Any]:
    """Times of the wall clock, which have no offset."""
    return {
        "timezone": surprise.zone,
        "kind": "gap" if surprise.is_gap else "fold",
        "times": [time.isoformat() for time in surprise.times],
        "runs_at": [time.isoformat() for time in surprise.runs_at],
        "runs_first_time": surprise.first,
        "runs_second_time": surprise.second,
        "text": surprise_text(surprise),
    }


def durations_shape(durations: Durations) -> dict[str, Any]:
    return {
        "observations": durations.observations,
        "p50_seconds": durations.p50,
        "p95_seconds": durations.p95,
        "p99_seconds": durations.p99,
        "is_beyond_buckets": durations.over,
    }
