"""The run that was in the way: how it was at that moment, and why it had not ended."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from supervisor.display.reports import harmless
from supervisor.display.words import span
from supervisor.runs.run import Attempt, Run, RunState
from supervisor.why.attempts import WORTH_A_WORD, earlier_attempts, queue_words
from supervisor.why.facts import RunFacts
from supervisor.why.names import WENT, named, on_worker, ordinal
from supervisor.why.wall import Wall, lasted


def in_the_way(facts: RunFacts, at: datetime, wall: Wall) -> str:
    """``the run of 09:00 was still running on worker w3, 7m12s, its usual p95 is 4m``"""
    if facts.blocker is None:
        known = facts.run.blocked_by
        return f"{known} was in the way, whose record is gone" if known else "nothing is recorded"
    blocker = facts.blocker
    who, attempt = named(blocker.run, facts.run.job, wall), attempt_at(blocker.run, facts, at)
    if attempt is None:
        return f"{who} {before_its_turn(blocker, at, wall)}"
    parts = [
        f"{who} was still running{on_worker(attempt.worker)}, {lasted(attempt.started_at, at)}",
        *usual(blocker),
    ]
    return ", ".join(parts) + "".join(f"; {part}" for part in lease_then(facts, blocker, at))


def attempt_at(blocker: Run, facts: RunFacts, at: datetime) -> Attempt | None:
    """The attempt that was at work: as it was recorded, or else by the attempts' own times."""
    seen = facts.run.blocker
    if seen and seen.at == at and seen.state != RunState.RUNNING:
        return None
    for attempt in reversed(blocker.attempts):
        if attempt.started_at <= at and (attempt.finished_at is None or attempt.finished_at >= at):
            return attempt
    return None


def usual(facts: RunFacts) -> Iterator[str]:
    if facts.usual:
        yield f"its usual p95 is {span(facts.usual.p95)}"


def lease_then(facts: RunFacts, blocker: RunFacts, at: datetime) -> Iterator[str]:
    """``lease token 812, heartbeat 2s before``; a run of several steps has no heartbeat itself."""
    seen = facts.run.blocker
    if seen is None or seen.at != at or seen.state != RunState.RUNNING:
        return
    text = f"lease token {seen.fencing_token}"
    ttl = blocker.run.rules.get("lease_ttl")
    if seen.lease_ends_at and ttl and not blocker.run.has_steps:
        silent = float(ttl) / 1000 - (seen.lease_ends_at - at).total_seconds()
        text += f", heartbeat {span(max(0.0, silent))} before"
    yield text


def before_its_turn(blocker: RunFacts, at: datetime, wall: Wall) -> str:
    """It held the lock, or its place in line, and was not at work."""
    ended = [a for a in blocker.run.attempts if a.finished_at and a.finished_at <= at]
    if ended:
        last = ended[-1]
        reason = f" ({harmless(last.reason)})" if last.reason else ""
        return f"was between attempts: attempt {last.number} had ended {last.outcome}{reason}"
    since = blocker.admitted_at or blocker.run.queued_at
    if blocker.run.blocked_by and blocker.run.blocked_by != blocker.run.id:
        return f"came first and had waited for {lasted(since, at)}"
    return (
        f"had its turn and had not begun: queued{queue_words(blocker)} for {lasted(since, at)} "
        "with no worker taking it"
    )


def why_slow(facts: RunFacts, at: datetime, wall: Wall) -> Iterator[str]:
    """One level deeper: what kept the blocker, and what became of it."""
    blocker = facts.blocker
    if blocker is None:
        return
    run = blocker.run
    who = named(run, facts.run.job, wall)
    begun = [attempt for attempt in run.attempts if attempt.started_at <= at]
    for line in earlier_attempts(begun, wall):
        yield f"{who} was at its {ordinal(begun[-1].number)} attempt: {line}"
    first = begun[0] if begun and not run.attempts_dropped else None
    if first and first.started_at - run.nominal_at >= WORTH_A_WORD:
        behind = f", after waiting for {run.blocked_by}" if run.blocked_by else ""
        yield f"{who} had begun {lasted(run.nominal_at, first.started_at)} late{behind}"
    yield from end_of(blocker, who, wall)


def end_of(blocker: RunFacts, who: str, wall: Wall) -> Iterator[str]:
    run = blocker.run
    if run.state.is_open:
        yield f"{who} is {run.state.value} now"
        return
    if run.finished_at is None:
        return
    took = f" after {lasted(run.attempts[0].started_at, run.finished_at)}" if run.attempts else ""
    compared = f" ({compare(blocker)})" if run.attempts and blocker.usual else ""
    yield f"{who} {WENT[run.state]} at {wall.time(run.finished_at)}{took}{compared}"


def compare(blocker: RunFacts) -> str:
    assert blocker.usual is not None
    seconds = max(attempt.duration_seconds or 0.0 for attempt in blocker.run.attempts)
    word = "longer than usual" if seconds > blocker.usual.p95 else "as usual"
    return f"{word}: p95 is {span(blocker.usual.p95)}, of {blocker.usual.attempts:,} attempts"
