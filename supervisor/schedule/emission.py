"""Which ticks of a job beat emits now, and which have passed for good: a pure function of time.

1. The ticks after the watermark and up to now are taken in order; none is looked at twice.
2. Ticks younger than `PROMPT` are emitted as usual: beat was a moment late, or changed leaders.
3. Older ones passed while nothing could emit them. Outside `catchup_window` they are missed;
   inside, `catchup` decides: none, only the latest (if no younger one is emitted anyway), or all.
4. Ticks that fall into a pause are excluded, also when the pause is over by now. While it lasts,
   those that were due before it and not emitted are excluded as well: a paused job does not run.
5. At most `BATCH` ticks of a job a pass, so that one job's backlog does not delay the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from supervisor.job.policies import Catchup
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.schedule import Schedule, missed_before, ticks_between
from supervisor.schedule.ticks import PassedOver, PausePeriod, Tick
from supervisor.times import INSTANT

#: Ticks of up to this age are prompt: longer than a change of leaders takes.
PROMPT = timedelta(seconds=15)

BATCH = 100


@dataclass(frozen=True, slots=True)
class Emission:
    """What becomes of the ticks of a job now."""

    spec: JobSpec
    passed: tuple[PassedOver, ...]
    ticks: tuple[Tick, ...]
    next_at: datetime | None
    """When the job is to be looked at again; None when its schedule has ended."""


def emission(
    spec: JobSpec,
    schedule: Schedule,
    watermark: datetime,
    now: datetime,
    pause: PausePeriod | None = None,
) -> Emission:
    """What is due for a job whose ticks up to `watermark` have been dealt with."""
    is_excluded, until = first_part(schedule, watermark, now, pause)
    if is_excluded:
        passed = excluded(spec, schedule, watermark, until)
        return Emission(spec, tuple(passed), (), schedule.next_after(until))
    return unpaused(spec, schedule, watermark, now, until)


def closed(
    spec: JobSpec,
    schedule: Schedule,
    watermark: datetime,
    until: datetime,
    now: datetime,
    pause: PausePeriod | None,
) -> Iterator[PassedOver]:
    """What becomes of the ticks in (watermark, until] of a schedule that ends now."""
    while watermark < until:
        is_excluded, end = first_part(schedule, watermark, now, pause)
        end = min(end, until)
        if is_excluded:
            yield from excluded(spec, schedule, watermark, end)
        else:
            yield from missed(spec, schedule, watermark, end, "edited")
        watermark = end


def first_part(
    schedule: Schedule, watermark: datetime, now: datetime, pause: PausePeriod | None
) -> tuple[bool, datetime]:
    """Whether the pause excludes the first ticks after the watermark, and up to when that holds."""
    if pause is None or pause.start > now:
        return False, now
    end = pause.end or datetime.max.replace(tzinfo=UTC)
    if now < end:
        return True, now
    tick = schedule.next_after(watermark)
    if tick is None or tick >= end:
        return False, now
    if tick < pause.start:  # what was due before the pause comes first
        return False, pause.start - INSTANT
    return True, end - INSTANT


def unpaused(
    spec: JobSpec, schedule: Schedule, watermark: datetime, now: datetime, until: datetime
) -> Emission:
    """`until`: ticks after it are left for the next look."""
    prompt_from = min(now - PROMPT, until)
    passed: list[PassedOver] = []
    caught_up: list[datetime] = []
    tick = schedule.next_after(watermark)
    if tick is not None and tick <= prompt_from:
        window_from = max(watermark, now - spec.catchup_window)
        passed += missed(spec, schedule, watermark, min(window_from, prompt_from), "window")
        if window_from < prompt_from:
            caught_up, superseded_until = catch_up(spec, schedule, window_from, prompt_from, until)
            passed += missed(spec, schedule, window_from, superseded_until, "catchup")
        tick = schedule.next_after(prompt_from)
    due = caught_up
    while tick is not None and tick <= until and len(due) < BATCH:
        due.append(tick)
        tick = schedule.next_after(tick)
    if len(due) == BATCH:
        tick = schedule.next_after(due[-1])
    return Emission(spec, tuple(passed), tuple(Tick(spec, at) for at in due), tick)


def catch_up(
    spec: JobSpec, schedule: Schedule, after: datetime, until: datetime, now: datetime
) -> tuple[list[datetime], datetime]:
    """The ticks in (after, until] that run late, and up to when the others are missed."""
    match spec.catchup:
        case Catchup.ALL:
            return ticks_between(schedule, after, until, BATCH), after
        case Catchup.NONE:
            return [], until
        case Catchup.LATEST:
            _, latest = missed_before(schedule, after, until, keep=1)
            if not latest or ticks_between(schedule, until, now, 1):
                return [], until
            return latest, latest[0] - INSTANT


def excluded(
    spec: JobSpec, schedule: Schedule, after: datetime, until: datetime
) -> list[PassedOver]:
    return passed_over(spec, schedule, after, until, RunState.EXCLUDED, "paused")


def missed(
    spec: JobSpec, schedule: Schedule, after: datetime, until: datetime, reason: str
) -> list[PassedOver]:
    return passed_over(spec, schedule, after, until, RunState.MISSED, reason)


def passed_over(
    spec: JobSpec,
    schedule: Schedule,
    after: datetime,
    until: datetime,
    state: RunState,
    reason: str,
) -> list[PassedOver]:
    """The ticks in (after, until] as one range, if there are any."""
    if until <= after:
        return []
    ticks, last = missed_before(schedule, after, until, keep=1)
    first = schedule.next_after(after)
    if not ticks or first is None:
        return []
    return [PassedOver(spec, state, reason, first, last[0], ticks)]
