"""Runs that have not ended: waiting, queued, running, retrying."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.display.reports import harmless, progress_words
from supervisor.display.steps import items_words
from supervisor.runs.run import Run, RunState
from supervisor.why.attempts import (
    duplicates,
    earlier_attempts,
    lateness,
    queue_words,
    steps_of,
    unknown_task,
)
from supervisor.why.blockers import usual
from supervisor.why.facts import Crew, Facts, RunFacts
from supervisor.why.names import named, on_worker, subject
from supervisor.why.wall import Wall


def waiting(found: RunFacts, facts: Facts, wall: Wall) -> Iterator[str]:
    run = found.run
    since = found.admitted_at or run.queued_at
    if run.due_at:
        what = f"was re-queued ({ordinals(run)})" if run.requeues else "is not to start"
        until = f"until {wall.time(run.due_at)}{blocked_words(found, wall)}"
        yield f"{subject(run, wall)} {what} {until}"
        return
    lock = run.rules.get("lock", run.job)
    yield (
        f"{subject(run, wall)} waits since {wall.time(since)}, {wall.since(since)}, for the lock "
        f"{lock!r}{blocked_words(found, wall)}"
    )


def ordinals(run: Run) -> str:
    most = run.rules.get("max_requeues")
    return f"{run.requeues} of {most}" if most else f"{run.requeues}"


def blocked_words(found: RunFacts, wall: Wall) -> str:
    """``: held by the run of 09:00, which is running on worker w3 since 09:00:01, 7m12s``"""
    run = found.run
    if run.blocked_by is None:
        return ""
    if found.blocker is None:
        return f": {run.blocked_by} was in the way"
    other = found.blocker.run
    who = named(other, run.job, wall)
    if not other.state.is_open:
        return f": {who} was in the way and has ended; others may be before it"
    since = other.started_at if other.state is RunState.RUNNING else other.queued_at
    at = f" since {wall.time(since)}, {wall.since(since)}" if since else ""
    told = "".join(f", {part}" for part in usual(found.blocker))
    worker = on_worker(other.worker) if other.state is RunState.RUNNING else ""
    return f": {who} is {other.state.value}{worker}{at}{told}"


def queued(found: RunFacts, facts: Facts, wall: Wall) -> Iterator[str]:
    run = found.run
    yield (
        f"{subject(run, wall)} is queued{queue_words(found)} since {wall.time(run.queued_at)}, and "
        f"no worker has begun it for {wall.since(run.queued_at)}"
    )
    if found.drained_at:
        since = wall.time(found.drained_at)
        yield f"its queue, {run.queue}, is drained since {since}: `supervisor undrain {run.queue}`"
    if facts.grace_until:
        yield f"the server is new: nothing begins before {wall.time(facts.grace_until)}"
    if found.blocker and found.blocker.run.state is RunState.RUNNING:
        yield f"the serial queue is at work{blocked_words(found, wall)}"
    if found.crew:
        yield crew_words(found.crew, found.queue)
    yield from unknown_task(found)
    if run.sent_at is None:
        yield "its message has not been sent yet" + (", no beat leads" if facts.beat_away else "")
    else:
        often = "" if run.sends <= 1 else f" {run.sends} times, last"
        yield f"its message was sent{often} at {wall.time(run.sent_at)}"
    if run.reason:
        yield f"it is to begin anew: {harmless(run.reason)}"
    yield from duplicates(run)


def crew_words(crew: Crew, queue: str | None) -> str:
    """``no worker that is there consumes reports``"""
    if not crew.workers:
        return f"no worker that is there consumes {queue}" if queue else "no worker is there"
    workers = f"{crew.workers} worker{'s' * (crew.workers != 1)}"
    processes = f"{crew.processes} process{'es' * (crew.processes != 1)}"
    where = f"consuming {queue}" if queue else "there"
    return f"{workers} with {processes} {'is' if crew.workers == 1 else 'are'} {where}"


def running(found: RunFacts, facts: Facts, wall: Wall) -> Iterator[str]:
    run = found.run
    since = run.started_at or run.queued_at
    told = "".join(f", {part}" for part in usual(found))
    yield (
        f"{subject(run, wall)} is running{on_worker(run.worker)} since {wall.time(since)}, "
        f"{wall.since(since)}{told}"
    )
    said = items_words(run.batch) or progress_words(run.progress)
    if said:
        yield f"it said of itself: {said}"
    yield from steps_of(found, wall)
    yield from earlier_attempts(run.attempts, wall)
    yield from lateness(found, wall)
    yield from duplicates(run)


def retrying(found: RunFacts, facts: Facts, wall: Wall) -> Iterator[str]:
    run, spec = found.run, facts.job.spec
    due = f"; attempt {run.attempt + 1} is due at {wall.time(run.due_at)}" if run.due_at else ""
    reason = f": {harmless(run.reason)}" if run.reason else ""
    yield (
        f"{subject(run, wall)} is to be tried again: attempt {run.attempt} of "
        f"{spec.max_retries + 1 + run.crashes} failed{reason}{due}"
    )
    yield from earlier_attempts(run.attempts, wall)
