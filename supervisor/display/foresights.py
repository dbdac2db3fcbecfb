"""Overlaps foreseen, in a sentence and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from supervisor.display.words import span
from supervisor.job.overlap import OverlapPolicy
from supervisor.job.spec import JobSpec
from supervisor.plan.foresight import Durations, Foresight

#: Days in what a frequency is given by: the first in which it comes to one at least.
PERIODS = (("day", 1), ("week", 7), ("month", 30), ("year", 365))


def foretold(spec: JobSpec, durations: Durations, foresight: Foresight) -> str:
    """``p99 is 6m12s, every 5m: about 14 skips a day; a safe interval is 7m``"""
    distance = span(foresight.distance.total_seconds())
    apart = spec.schedule if spec.every else f"ticks {distance} apart"
    p99 = f"p99 is {'over ' if durations.over else ''}{span(durations.p99)}"
    advice = ""
    if foresight.safe_interval and foresight.safe_interval > foresight.distance:
        advice = f"; a safe interval is {span(foresight.safe_interval.total_seconds())}"
    return f"{p99}, {apart}: {', '.join(consequences(spec, foresight))}{advice}"


def consequences(spec: JobSpec, foresight: Foresight) -> Iterator[str]:
    if foresight.replacements:
        yield often(foresight.replacements, "replaced run")
    if foresight.growth and spec.overlap is OverlapPolicy.QUEUE_ALL:
        growth = often(foresight.growth, "run")
        most = f"{spec.max_waiting:,}"
        yield f"the backlog grows by {growth} until {most} wait, then runs are skipped"
        return
    if foresight.requeues:
        yield often(foresight.requeues, "re-queue")
    elif foresight.waits:
        yield f"{often(foresight.waits, 'wait')} of up to {span(foresight.longest_wait)}"
    if foresight.skips:
        yield often(foresight.skips, "skip")
    if spec.most_running is None:
        yield f"up to {foresight.most_running} runs at once"


def often(a_day: float, noun: str) -> str:
    """``about 14 skips a day``, ``about 1 skip a month``"""
    period, days = next((p for p in PERIODS if a_day * p[1] >= 1), PERIODS[-1])
    count = round(a_day * days)
    if not count:
        return f"less than one {noun} a {period}"
    return f"about {count:,} {noun}{'s' * (count != 1)} a {period}"


def foresight_shape(foresight: Foresight) -> dict[str, Any]:
    safe = foresight.safe_interval
    return {
        "distance_seconds": foresight.distance.total_seconds(),
        "skips_a_day": round(foresight.skips, 2),
        "waits_a_day": round(foresight.waits, 2),
        "longest_wait_seconds": round(foresight.longest_wait, 3),
        "requeues_a_day": round(foresight.requeues, 2),
        "replacements_a_day": round(foresight.replacements, 2),
        "growth_a_day": round(foresight.growth, 2),
        "most_running": foresight.most_running,
        "safe_interval_seconds": safe.total_seconds() if safe else None,
    }
