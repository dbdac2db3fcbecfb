"""The run that was in the way: how it was at that moment, and why it had not ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from supervisor.job.run import Attempt, Run, RunState
from supervisor.operate.shapes import harmless
from supervisor.operate.wall import Wall, lasted
from supervisor.operate.why_facts import WENT, RunFacts, is_or_went, named, on_worker, ordinal
from supervisor.operate.words import span

# How the attempts of a run went: when it began and why so late, what failed, which worker died.


#: What takes longer than this on the way to a worker is worth a word.
WORTH_A_WORD = timedelta(seconds=2)

#: Of the attempts of a run, so many are told one by one.
MOST_TOLD = 10

ENDS = {
    RunState.LOST.value: "was lost",
    RunState.FAILED.value: "failed",
    RunState.TIMED_OUT.value: "timed out",
}


def earlier_attempts(attempts: Sequence[Attempt], wall: Wall) -> Iterator[str]:
    """Those that were followed by another, the last of them one by one."""
    told = attempts[-MOST_TOLD - 1 :]
    if told and told[0].number > 1:
        before = told[0].number - 1
        yield f"{before} {'attempt' if before == 1 else 'attempts'} ended before these"
    for attempt, following in pairwise(told):
        if attempt.finished_at is None:
            continue
        how = ENDS.get(attempt.outcome or "", f"ended {attempt.outcome}")
        reason = f": {harmless(attempt.reason)}" if attempt.reason else ""
        yield (
            f"attempt {attempt.number} {how} at {wall.time(attempt.finished_at)}"
            f"{on_worker(attempt.worker)}, after {lasted(attempt.started_at, attempt.finished_at)}"
            f"{reason}; attempt {following.number} began at {wall.time(following.started_at)}"
        )


def lateness(facts: RunFacts, wall: Wall) -> Iterator[str]:
    """Why a run began later than its time: each part of its way that took long."""
    run = facts.run
    if not run.attempts or run.attempts_dropped:
        return
    if run.attempts[0].started_at - run.nominal_at < WORTH_A_WORD:
        return
    began_at = run.attempts[0].started_at
    yield f"it began {lasted(run.nominal_at, began_at)} late, at {wall.time(began_at)}"
    admitted_at = facts.admitted_at or run.nominal_at
    if admitted_at - run.nominal_at >= WORTH_A_WORD:
        yield from late_admission(facts, wall)
    if began_at - admitted_at < WORTH_A_WORD:
        return
    if run.blocked_by:
        yield waited(facts, wall)
    elif len(run.attempts) == 1:
        in_queue = lasted(admitted_at, began_at)
        yield f"it was queued{queue_words(facts)} for {in_queue} until a worker began it"


def late_admission(facts: RunFacts, wall: Wall) -> Iterator[str]:
    run, admitted_at, away = facts.run, facts.admitted_at, facts.away
    if admitted_at is None:
        return
    if away and away.start <= run.nominal_at <= away.end:
        yield f"no beat led from {wall.time(away.start)} to {wall.time(away.end)}"
        return
    yield f"beat emitted it {lasted(run.nominal_at, admitted_at)} after its time"


def waited(facts: RunFacts, wall: Wall) -> str:
    run = facts.run
    blocker = named(facts.blocker.run, run.job, wall) if facts.blocker else run.blocked_by
    requeued = f", re-queued {run.requeues} times" if run.requeues else ""
    admitted_at = facts.admitted_at or run.nominal_at
    if len(run.attempts) > 1 or run.queued_at <= admitted_at:
        return f"it waited for {blocker}{requeued}"
    text = f"it waited {lasted(admitted_at, run.queued_at)} for {blocker}{requeued}"
    in_queue = run.attempts[0].started_at - run.queued_at
    if in_queue >= WORTH_A_WORD:
        text += f", then {span(in_queue.total_seconds())} for a worker{queue_words(facts)}"
    return text


def queue_words(facts: RunFacts) -> str:
    return f" in {facts.queue}" if facts.queue else ""


def unknown_task(facts: RunFacts) -> Iterator[str]:
    if facts.crew and facts.crew.unknown_task:
        who = f"that consumes {facts.queue} " if facts.queue else ""
        yield f"no worker {who}knows the task {facts.crew.unknown_task}"


def duplicates(run: Run) -> Iterator[str]:
    if run.duplicates:
        times = "once" if run.duplicates == 1 else f"{run.duplicates} times"
        yield f"it was delivered again {times}; what came again was dropped as a duplicate"


def overlap(run: Run) -> Iterator[str]:
    if run.overlapped_with:
        yield f"it was at work at the same time as {run.overlapped_with}"


def steps_of(facts: RunFacts, wall: Wall) -> Iterator[str]:
    """Which steps failed, and which are at work."""
    for step in facts.steps:
        if step.run is None or step.run.state is RunState.SUCCEEDED:
            continue
        reason = f": {harmless(step.run.reason)}" if step.run.reason else ""
        at = step.run.finished_at or step.run.started_at
        when = f" {'since' if step.run.state.is_open else 'at'} {wall.time(at)}" if at else ""
        went = is_or_went(step.run.state)
        yield f"step {step.name} {went}{when}{on_worker(step.run.worker)}{reason}"
    if facts.run.state.is_open:
        ahead = [step.name for step in facts.steps if step.run is None]
        if ahead:
            yield f"still to come: {', '.join(ahead)}"


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
    ttl = blocker.run.rules.lease_ttl_ms
    if seen.lease_ends_at and ttl and not blocker.run.has_steps:
        silent = ttl / 1000 - (seen.lease_ends_at - at).total_seconds()
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
