"""Ticks that became no work: skipped, missed, excluded, expired."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.display.words import span
from supervisor.runs.run import Run
from supervisor.why.attempts import queue_words, unknown_task
from supervisor.why.blockers import in_the_way, why_slow
from supervisor.why.facts import Facts, RunFacts
from supervisor.why.job import pause_words
from supervisor.why.names import subject
from supervisor.why.wall import Wall, lasted


def skipped(found: RunFacts, facts: Facts, wall: Wall) -> Iterator[str]:
    run, spec = found.run, facts.job.spec
    at = run.blocker.at if run.blocker else run.finished_at or run.queued_at
    because = {
        "overlap": "",
        "buffer_full": f"{spec.max_waiting} others waited already (`max_waiting`), and ",
        "requeues_exhausted": f"it had been re-queued {run.requeues} times (`max_requeues`), and ",
        "wait_expired": f"it had waited {waited(found)} for the lock (`max_wait`), and ",
        "grace": "Redis was new, and nothing begins for a `lease_ttl` then; ",
        "replaced": "a newer run took its place in front of the line; ",
    }.get(run.reason or "", f"{run.reason}, and ")
    yield f"{subject(run, wall)} was skipped: {because}{in_the_way(found, at, wall)}"
    yield from why_slow(found, at, wall)


def waited(found: RunFacts) -> str:
    run = found.run
    return lasted(found.admitted_at or run.queued_at, run.finished_at or run.queued_at)


def missed(found: RunFacts, facts: Facts, wall: Wall) -> Iterator[str]:
    run, spec = found.run, facts.job.spec
    because = {
        "window": "when beat looked again, more than `catchup_window` had passed, "
        + span(spec.catchup_window.total_seconds()),
        "catchup": f"left out by `catchup: {spec.catchup.value}`",
        "edited": "the job's schedule was edited, or the job removed, with no beat there",
    }.get(run.reason or "", run.reason or "no reason is recorded")
    yield f"{of_many(facts, run, wall)} missed: {because}"
    if found.away:
        yield (
            f"no beat led from {wall.time(found.away.start)} to {wall.time(found.away.end)}, "
            f"{lasted(found.away.start, found.away.end)}"
        )
        return
    yield f"no beat looked at the job until {wall.time(run.queued_at)}"


def excluded(found: RunFacts, facts: Facts, wall: Wall) -> Iterator[str]:
    run = found.run
    told = f" ({run.note})" if run.note else ""
    yield f"{of_many(facts, run, wall)} excluded: the job was paused{told}"
    yield pause_words(facts, wall) if facts.job.paused else "it is not paused any more"


def of_many(facts: Facts, run: Run, wall: Wall) -> str:
    """``09:05 was``, or ``09:05 and 11 more, from 09:00 to 09:55, were``: one record's ticks."""
    asked = wall.time(facts.at or run.nominal_at)
    if run.ticks == 1:
        return f"{asked} was"
    first, last = wall.time(run.first_nominal_at or run.nominal_at), wall.time(run.nominal_at)
    return f"{asked} is one of {run.ticks:,} ticks from {first} to {last} that were"


def expired(found: RunFacts, facts: Facts, wall: Wall) -> Iterator[str]:
    run = found.run
    at = run.finished_at or run.queued_at
    told = f"{subject(run, wall)} expired at {wall.time(at)}: no worker began it"
    queued = f"{wall.time(run.queued_at)}, when it was queued{queue_words(found)}"
    if run.expires_at and run.expires_at <= at and not run.attempt:
        yield f"{told} between {queued}, and {wall.time(run.expires_at)} (`expires` of its call)"
    else:
        deadline = span(float(run.rules.get("start_deadline", 0)) / 1000)
        yield f"{told} within {deadline} (`start_deadline`) of {queued}"
    yield from unknown_task(found)
    yield from messages(run, wall)


def messages(run: Run, wall: Wall) -> Iterator[str]:
    if run.sent_at is None:
        yield "the broker never took a message of it"
        return
    often = "once" if run.sends == 1 else f"{run.sends} times, last"
    yield f"its message was sent {often} at {wall.time(run.sent_at)}"
