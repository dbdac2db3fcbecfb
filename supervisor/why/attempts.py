"""How the attempts of a run went: when it began and why so late, what failed, which worker died."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import pairwise

from supervisor.display.reports import harmless
from supervisor.display.words import span
from supervisor.runs.run import Attempt, Run, RunState
from supervisor.why.facts import RunFacts
from supervisor.why.names import is_or_went, named, on_worker
from supervisor.why.wall import Wall, lasted

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
