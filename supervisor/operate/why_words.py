"""Sentences of `why` about one run: its attempts, its delays, and the run that blocked it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from supervisor.job.run import Attempt, Run, RunState, start_id
from supervisor.operate.why_facts import Facts, RunFacts, Upstream, is_tick
from supervisor.operate.words import LocalTime, ahead, harmless, lasted, plural, span
from supervisor.schedule import Deadline, due_at

#: In the past tense, as in "09:05 was skipped".
WENT = {
    RunState.SUCCEEDED: "succeeded",
    RunState.FAILED: "failed",
    RunState.TIMED_OUT: "timed out",
    RunState.CANCELLED: "was cancelled",
    RunState.REPLACED: "was replaced",
    RunState.LOST: "was lost",
    RunState.EXPIRED: "expired",
    RunState.SKIPPED: "was skipped",
    RunState.MISSED: "was missed",
    RunState.EXCLUDED: "was excluded",
}

#: A shorter delay on the way to a worker is not mentioned.
WORTH_MENTIONING = timedelta(seconds=2)

#: Up to this many of a run's attempts are listed one by one.
MOST_LISTED = 10


def subject(run: Run, local: LocalTime) -> str:
    """The run at the beginning of a sentence: ``09:05``, or the id of one that is not a tick's."""
    if is_of_start(run):
        return f"the run at start of {local.time(run.nominal_at)}"
    return local.time(run.nominal_at) if is_tick(run) else run.id


def named(run: Run, job: str, local: LocalTime) -> str:
    """The run within a sentence about a run of `job`: ``the run of 09:00``."""
    of = "the run" if run.job == job else f"{run.job}'s run"
    if is_of_start(run):
        return f"{of} at start of {local.time(run.nominal_at)}"
    return f"{of} of {local.time(run.nominal_at)}" if is_tick(run) else f"the run {run.id}"


def is_of_start(run: Run) -> bool:
    """Whether the service's start asked for it."""
    return run.id == start_id(run.job, run.nominal_at)


def is_or_went(state: RunState) -> str:
    """``is running``, ``was skipped``"""
    return f"is {state.value}" if state.is_open else WENT[state]


def ordinal(number: int) -> str:
    """``1st``, ``2nd``, ``11th``"""
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else suffix}"


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def because(reason: str | None) -> str:
    return f": {harmless(reason)}" if reason else ""


def on_worker(worker: str | None) -> str:
    """Empty for a run of several steps, each of which has a worker of its own."""
    return f" on worker {worker}" if worker else ""


def usually(facts: RunFacts) -> str:
    return f", usually up to {span(facts.usual.p95)}" if facts.usual else ""


def queue_words(facts: RunFacts) -> str:
    return f" in {facts.queue}" if facts.queue else ""


def usual(facts: RunFacts) -> str:
    return f", its usual p95 is {span(facts.usual.p95)}" if facts.usual else ""


# What a run that follows others waits for.


def upstream_words(upstreams: Sequence[Upstream], local: LocalTime) -> str:
    """``extract (running since 05:31, 12m, its usual p95 is 22m) and load (succeeded)``"""
    words = [f"{each.name} ({upstream_state(each, local)})" for each in upstreams]
    return " and ".join([*([", ".join(words[:-1])] if words[1:] else []), *words[-1:]])


def upstream_state(upstream: Upstream, local: LocalTime) -> str:
    if upstream.state is not None:
        return WENT[upstream.state]
    if upstream.run is None:
        return "none yet"
    run = upstream.run.run
    since = run.started_at if run.state is RunState.RUNNING else run.queued_at
    at = f" since {local.time(since)}, {local.since(since)}" if since else ""
    return f"{run.state.value}{at}{usual(upstream.run)}"


# How a run went: its attempts, its steps, and why it started late.


def earlier_attempts(attempts: Sequence[Attempt], local: LocalTime) -> Iterator[str]:
    """The attempts that another one followed; the last of them one by one."""
    listed = attempts[-MOST_LISTED - 1 :]
    if listed and listed[0].number > 1:
        yield f"{plural(listed[0].number - 1, 'attempt')} ended before these"
    for attempt, following in pairwise(listed):
        if attempt.finished_at is None:
            continue
        outcome = attempt.outcome or ""
        ended = (
            WENT[RunState(outcome)]
            if outcome in ("lost", "failed", "timed_out")
            else (f"ended {outcome}")
        )
        yield (
            f"attempt {attempt.number} {ended} at {local.time(attempt.finished_at)}"
            f"{on_worker(attempt.worker)}, after {lasted(attempt.started_at, attempt.finished_at)}"
            f"{because(attempt.reason)}; attempt {following.number} started at "
            f"{local.time(following.started_at)}"
        )


def lateness(facts: RunFacts, local: LocalTime) -> Iterator[str]:
    """Why a run started late: each part of its way to a worker that took long."""
    run = facts.run
    if not run.attempts or run.attempts_dropped:
        return
    started_at, admitted_at = run.attempts[0].started_at, facts.admitted_at or run.nominal_at
    due_at = admitted_at if run.is_follower else run.nominal_at
    if started_at - due_at < WORTH_MENTIONING:
        return
    yield f"it started {lasted(due_at, started_at)} late, at {local.time(started_at)}"
    if run.is_follower:
        admitted_at = due_at
    elif admitted_at - run.nominal_at >= WORTH_MENTIONING:
        yield late_admission(facts, admitted_at, local)
    if started_at - admitted_at < WORTH_MENTIONING:
        return
    if run.blocked_by:
        yield waited(facts, admitted_at, local)
    elif (run.rules.follows or run.after) and run.queued_at - admitted_at >= WORTH_MENTIONING:
        yield f"it waited {lasted(admitted_at, run.queued_at)} for what it follows"
    elif len(run.attempts) == 1:
        in_queue = lasted(admitted_at, started_at)
        yield f"it was queued{queue_words(facts)} for {in_queue} until a worker started it"


def late_admission(facts: RunFacts, admitted_at: datetime, local: LocalTime) -> str:
    nominal_at, no_beat = facts.run.nominal_at, facts.no_beat
    if no_beat and no_beat.start <= nominal_at <= no_beat.end:
        return f"no beat led from {local.time(no_beat.start)} to {local.time(no_beat.end)}"
    return f"beat emitted it {lasted(nominal_at, admitted_at)} after its time"


def waited(facts: RunFacts, admitted_at: datetime, local: LocalTime) -> str:
    run = facts.run
    blocker = named(facts.blocker.run, run.job, local) if facts.blocker else run.blocked_by
    requeued = f", re-queued {times(run.requeues)}" if run.requeues else ""
    if len(run.attempts) > 1 or run.queued_at <= admitted_at:
        return f"it waited for {blocker}{requeued}"
    text = f"it waited {lasted(admitted_at, run.queued_at)} for {blocker}{requeued}"
    in_queue = run.attempts[0].started_at - run.queued_at
    if in_queue >= WORTH_MENTIONING:
        text += f", then {span(in_queue.total_seconds())} for a worker{queue_words(facts)}"
    return text


def unknown_task(facts: RunFacts) -> Iterator[str]:
    if facts.workers and facts.workers.unknown_task:
        which = f"that consumes {facts.queue} " if facts.queue else ""
        yield f"no worker {which}knows the task {facts.workers.unknown_task}"


def unmet_needs(facts: RunFacts) -> Iterator[str]:
    if facts.workers and facts.workers.unmet:
        unmet = facts.workers.unmet
        yield f"their pool lacks what its job needs: {unmet} (docs/how-to/adopting.md, Pools)"


def duplicates(run: Run) -> Iterator[str]:
    if run.duplicates:
        yield f"it was delivered again {times(run.duplicates)}; duplicates are dropped"


def steps_of(facts: RunFacts, local: LocalTime) -> Iterator[str]:
    """The steps that failed, are open, or have yet to begin."""
    for step in facts.steps:
        if step.run is None or step.run.state is RunState.SUCCEEDED:
            continue
        at, went = step.run.finished_at or step.run.started_at, is_or_went(step.run.state)
        when = f" at {local.time(at)}" if at else ""
        if at and step.run.state.is_open:
            went, when = f"has been {step.run.state.value}", f" since {local.time(at)}"
        yield f"step {step.name} {went}{when}{on_worker(step.run.worker)}{because(step.run.reason)}"
    to_come = [step.name for step in facts.steps if step.run is None]
    if to_come and facts.run.state.is_open:
        yield f"still to come: {', '.join(to_come)}"


# Deadlines that the job names: `due_by`, `max_duration`, `min_duration`.


def deadline_of_job(facts: Facts, local: LocalTime) -> Iterator[str]:
    """``02:00 must have succeeded by 06:00 UTC; it is 06:04 and it has been running since``"""
    deadline = facts.job.deadline
    if deadline is None or deadline.tick > facts.now:
        return
    tick, by = local.time(deadline.tick), by_words(deadline.at, facts, local)
    if facts.now <= deadline.at:
        yield f"{tick} has to succeed by {by}, {ahead(deadline.at, facts.now)}"
        return
    now = local.time(facts.now.replace(second=0, microsecond=0))
    yield f"{tick} must have succeeded by {by}; it is {now} and {instead(deadline, facts, local)}"


def instead(deadline: Deadline, facts: Facts, local: LocalTime) -> str:
    """What has become of the run that is due, or of one after it."""
    found = [*facts.open_runs, *((facts.run,) if facts.run else ())]
    later = [f for f in found if (f.run.started_at or f.run.nominal_at) >= deadline.tick]
    if not later:
        return "no run has begun since"
    run = later[0].run
    who = "it" if run.nominal_at == deadline.tick else named(run, run.job, local)
    if run.state is RunState.RUNNING and run.started_at:
        return f"{who} has been running since {local.time(run.started_at)}{usually(later[0])}"
    at = f" at {local.time(run.finished_at)}" if run.finished_at else ""
    return f"{who} {is_or_went(run.state)}{at}"


def deadline_of_run(run: Run, facts: Facts, local: LocalTime) -> Iterator[str]:
    """The deadline of a tick's run, if it is open or succeeded too late."""
    due = due_at(facts.job.spec, run.nominal_at) if is_tick(run) else None
    if due is None or facts.job.paused:
        return
    by = by_words(due, facts, local)
    if run.state is RunState.SUCCEEDED and run.finished_at and run.finished_at > due:
        yield f"it had to succeed by {by}, and did so {lasted(due, run.finished_at)} late"
    elif run.state.is_open and facts.now > due:
        yield f"it must have succeeded by {by}, {local.since(due)} ago"
    elif run.state.is_open:
        yield f"it has to succeed by {by}, {ahead(due, facts.now)}"


def by_words(at: datetime, facts: Facts, local: LocalTime) -> str:
    return f"{local.time(at)} {facts.job.spec.timezone}"


def duration_words(run: Run, now: datetime) -> Iterator[str]:
    most, least = run.rules.max_duration_ms / 1000, run.rules.min_duration_ms / 1000
    if run.is_too_long(now):
        yield f"that is longer than its `max_duration`, {span(most)}"
    elif run.duration_fault == "max_duration":
        yield f"an attempt took longer than `max_duration`, {span(most)}"
    elif run.duration_fault == "min_duration":
        yield f"it took less than `min_duration`, {span(least)}: it may have found nothing to do"


# The run that blocked another: what it was doing at that moment, and why it had not ended.


def blocker_then(facts: RunFacts, at: datetime, local: LocalTime) -> str:
    """``the run of 09:00 was still running on worker w3, 7m12s, its usual p95 is 4m``"""
    blocker = facts.blocker
    if blocker is None:
        known = facts.run.blocked_by
        return f"{known} blocked it, and its record is gone" if known else "nothing is recorded"
    name, attempt = named(blocker.run, facts.run.job, local), attempt_at(blocker.run, facts, at)
    if attempt is None:
        return f"{name} {not_running(blocker, at)}"
    return (
        f"{name} was still running{on_worker(attempt.worker)}, {lasted(attempt.started_at, at)}"
        f"{usual(blocker)}{lease_then(facts, blocker, at)}"
    )


def attempt_at(blocker: Run, facts: RunFacts, at: datetime) -> Attempt | None:
    """The attempt that was running: as recorded then, or else by the attempts' own times."""
    seen = facts.run.blocker
    if seen and seen.at == at and seen.state != RunState.RUNNING:
        return None
    for attempt in reversed(blocker.attempts):
        if attempt.started_at <= at and (attempt.finished_at is None or attempt.finished_at >= at):
            return attempt
    return None


def lease_then(facts: RunFacts, blocker: RunFacts, at: datetime) -> str:
    """``; lease token 812, heartbeat 2s before``; a run of several steps has no heartbeat."""
    seen = facts.run.blocker
    if seen is None or seen.at != at or seen.state != RunState.RUNNING:
        return ""
    text = f"; lease token {seen.fencing_token}"
    if seen.lease_ends_at and blocker.lease_ttl and not blocker.run.has_steps:
        silent = blocker.lease_ttl - (seen.lease_ends_at - at)
        text += f", heartbeat {span(max(0.0, silent.total_seconds()))} before"
    return text


def not_running(blocker: RunFacts, at: datetime) -> str:
    """How it held the lock, or its place in line, without running."""
    ended = [a for a in blocker.run.attempts if a.finished_at and a.finished_at <= at]
    if ended:
        last = ended[-1]
        reason = f" ({harmless(last.reason)})" if last.reason else ""
        return f"was between attempts: attempt {last.number} had ended {last.outcome}{reason}"
    since = lasted(blocker.admitted_at or blocker.run.queued_at, at)
    if blocker.run.blocked_by and blocker.run.blocked_by != blocker.run.id:
        return f"came first and had waited for {since}"
    return (
        f"came first and had not started: queued{queue_words(blocker)} for {since} "
        "without a worker taking it"
    )


def why_slow(facts: RunFacts, at: datetime, local: LocalTime) -> Iterator[str]:
    """One level deeper: what delayed the blocker, and how it ended."""
    blocker = facts.blocker
    if blocker is None:
        return
    run = blocker.run
    name = named(run, facts.run.job, local)
    started = [attempt for attempt in run.attempts if attempt.started_at <= at]
    for line in earlier_attempts(started, local):
        yield f"{name} was at its {ordinal(started[-1].number)} attempt: {line}"
    first = started[0] if started and not run.attempts_dropped else None
    if first and first.started_at - run.nominal_at >= WORTH_MENTIONING:
        behind = f", after waiting for {run.blocked_by}" if run.blocked_by else ""
        yield f"{name} had started {lasted(run.nominal_at, first.started_at)} late{behind}"
    if run.state.is_open:
        yield f"{name} is {run.state.value} now"
    elif run.finished_at:
        took = (
            f" after {lasted(run.attempts[0].started_at, run.finished_at)}{compared(blocker)}"
            if run.attempts
            else ""
        )
        yield f"{name} {WENT[run.state]} at {local.time(run.finished_at)}{took}"


def compared(blocker: RunFacts) -> str:
    if blocker.usual is None:
        return ""
    p95, attempts = blocker.usual.p95, blocker.usual.attempts
    seconds = max(attempt.duration_seconds or 0.0 for attempt in blocker.run.attempts)
    word = "longer than usual" if seconds > p95 else "as usual"
    return f" ({word}: p95 is {span(p95)}, of {attempts:,} attempts)"
