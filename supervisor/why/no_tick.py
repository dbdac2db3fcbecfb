"""Times without a record: of no tick, of one to come, of one that nobody emitted, and long ago."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.display.plans import surprise_text
from supervisor.display.words import ahead
from supervisor.why.facts import Calendar, Facts
from supervisor.why.job import obstacles
from supervisor.why.wall import Wall


def without_record(facts: Facts, wall: Wall) -> Iterator[str]:
    at, calendar = facts.at, facts.calendar
    assert at is not None, "a question without a time has another answer"
    if calendar is None:
        yield f"{facts.job.spec.name} has no schedule, and no run for {wall.time(at)}"
        return
    if not calendar.is_tick:
        yield from no_tick(facts, calendar, wall)
    elif at > facts.now:
        yield f"{wall.time(at)} is to come: {ahead(at, facts.now)}"
        yield from surprises(calendar)
        yield from obstacles(facts, wall)
    elif facts.watermark is None or at > facts.watermark:
        yield from overdue(facts, wall)
    else:
        yield from forgotten(facts, wall)


def no_tick(facts: Facts, calendar: Calendar, wall: Wall) -> Iterator[str]:
    at, spec = facts.at, facts.job.spec
    assert at is not None, "as above"
    by_the_clock = spec.every is None and spec.timezone != "UTC"
    zone = f" {spec.timezone}" if by_the_clock else ""
    because = "`exclude` takes it out" if calendar.excluded else f"{spec.schedule}{zone} has none"
    yield f"{wall.time(at)} is no tick of {spec.name}: {because}"
    yield from surprises(calendar)
    near = [f"{wall.time(t)} before" for t in (calendar.before,) if t]
    near += [f"{wall.time(t)} after" for t in (calendar.after,) if t]
    yield f"the nearest ticks are {' and '.join(near)}" if near else "there are no ticks near it"


def surprises(calendar: Calendar) -> Iterator[str]:
    if calendar.surprise:
        yield f"clocks change on {surprise_text(calendar.surprise)}"


def overdue(facts: Facts, wall: Wall) -> Iterator[str]:
    assert facts.at is not None, "as above"
    ago = wall.since(facts.at)
    yield f"{wall.time(facts.at)} was due {ago} ago and nobody has dealt with it yet"
    if facts.watermark:
        yield f"the ticks up to {wall.time(facts.watermark)} have been dealt with"
    yield from obstacles(facts, wall)


def forgotten(facts: Facts, wall: Wall) -> Iterator[str]:
    assert facts.at is not None, "as above"
    kept = f"the last {facts.job.spec.history} runs, for at most seven days"
    if facts.oldest_at and facts.at < facts.oldest_at:
        yield (
            f"{wall.time(facts.at)} is older than what is kept ({kept}); "
            f"the oldest is of {wall.time(facts.oldest_at)}"
        )
        return
    yield (
        f"there is no record of {wall.time(facts.at)}: kept are {kept}; or the job was loaded, or "
        "its times were edited, after it"
    )
