"""A job as it is now: why it is not at work when somebody expects it to be."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.display.words import ahead, span
from supervisor.why.facts import Facts
from supervisor.why.wall import Wall


def obstacles(facts: Facts, wall: Wall) -> Iterator[str]:
    """What keeps new ticks of the job from being emitted."""
    job, beat = facts.job, facts.beat
    if job.paused:
        yield pause_words(facts, wall)
    if facts.beat_away and job.spec.has_schedule:
        last = beat.last_tick_at
        yield f"no beat leads since {wall.time(last)}" if last else "no beat has led yet"
    if beat.problems:
        count = f"{len(beat.problems)} problem{'s' * (len(beat.problems) != 1)}"
        yield f"the schedule files have {count}; what was loaded before goes on: {beat.problems[0]}"
    if beat.clock_set_back_at and facts.now - beat.clock_set_back_at < beat.clock_set_back:
        by = span(beat.clock_set_back.total_seconds())
        yield (
            f"the clock of Redis was set back by {by} at {wall.time(beat.clock_set_back_at)}: "
            "ticks that have run before do not run a second time"
        )
    if facts.grace_until:
        yield f"the server is new: nothing begins before {wall.time(facts.grace_until)}"


def pause_words(facts: Facts, wall: Wall) -> str:
    """``the job is paused since 09:00 until 12:00: stocktaking``"""
    job = facts.job
    since = f" since {wall.time(facts.paused_at)}" if facts.paused_at else ""
    until = f" until {wall.time(job.paused_until)}" if job.paused_until else ""
    return f"the job is paused{since}{until}" + (f": {job.paused_note}" if job.paused_note else "")


def next_tick(facts: Facts, wall: Wall) -> Iterator[str]:
    calendar, spec = facts.calendar, facts.job.spec
    if not spec.has_schedule:
        yield f"{spec.name} has no schedule: it runs when code or a person asks for it"
        return
    after = calendar.after if calendar else None
    if after is None:
        yield "there are no ticks to come"
        return
    job = facts.job
    left_out = job.paused and (job.paused_until is None or after < job.paused_until)
    fate = "; the pause excludes it" if left_out else ""
    yield f"the next tick is at {wall.time(after)}, {ahead(after, facts.now)}{fate}"
