"""`why`: facts in, sentences out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from supervisor.job.run import Run, RunState
from supervisor.operate.shapes import harmless, items_words, progress_words
from supervisor.operate.tables import surprise_text
from supervisor.operate.wall import Wall, lasted
from supervisor.operate.why_facts import (
    WENT,
    Calendar,
    Crew,
    Facts,
    RunFacts,
    is_or_went,
    named,
    on_worker,
    subject,
)
from supervisor.operate.why_words import (
    duplicates,
    earlier_attempts,
    in_the_way,
    lateness,
    overlap,
    queue_words,
    steps_of,
    unknown_task,
    usual,
    why_slow,
)
from supervisor.operate.words import ahead, span

# Runs that began and ended: succeeded, failed, timed out, lost, cancelled, replaced.


def ended(found: RunFacts, facts: Facts, wall: Wall) -> Iterator[str]:
    run = found.run
    yield f"{subject(run, wall)} {WENT[run.state]}{end_words(run, wall)}{reason_words(run)}"
    yield from tries_left(found, facts)
    yield from steps_of(found, wall)
    yield from earlier_attempts(run.attempts, wall)
    yield from lateness(found, wall)
    yield from overlap(run)
    yield from duplicates(run)


def end_words(run: Run, wall: Wall) -> str:
    """`` at 09:06:10, after 1m9s on worker w3``"""
    if run.finished_at is None:
        return ""
    if not run.attempts:
        return f" at {wall.time(run.finished_at)}, before it began"
    last = run.attempts[-1]
    return (
        f" at {wall.time(run.finished_at)}, after "
        f"{lasted(last.started_at, last.finished_at or run.finished_at)}{on_worker(last.worker)}"
    )


def reason_words(run: Run) -> str:
    return f": {harmless(run.reason)}" if run.reason else ""


def tries_left(found: RunFacts, facts: Facts) -> Iterator[str]:
    """Why it was not tried again."""
    run, spec = found.run, facts.job.spec
    if run.state is RunState.LOST:
        if run.rules.on_crash == "fail":
            yield "it was not run again: `on_crash: fail`"
        else:
            bound = f"(`max_crashes: {run.rules.max_crashes}`)"
            yield f"it was not run again: its workers died {times(run.crashes)} {bound}"
    if run.state in (RunState.FAILED, RunState.TIMED_OUT) and run.attempts and not run.has_steps:
        tried = run.attempts_dropped + len(run.attempts) - run.crashes
        yield f"it was tried {times(tried)}; `max_retries` is {spec.max_retries}"


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


# A job as it is now: why it is not at work when somebody expects it to be.


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


# Times without a record: of no tick, of one to come, of one that nobody emitted, and long ago.


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


# Ticks that became no work: skipped, missed, excluded, expired.


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
        deadline = span(run.rules.start_deadline_ms / 1000)
        yield f"{told} within {deadline} (`start_deadline`) of {queued}"
    yield from unknown_task(found)
    yield from messages(run, wall)


def messages(run: Run, wall: Wall) -> Iterator[str]:
    if run.sent_at is None:
        yield "the broker never took a message of it"
        return
    often = "once" if run.sends == 1 else f"{run.sends} times, last"
    yield f"its message was sent {often} at {wall.time(run.sent_at)}"


# Runs that have not ended: waiting, queued, running, retrying.


def waiting(found: RunFacts, facts: Facts, wall: Wall) -> Iterator[str]:
    run = found.run
    since = found.admitted_at or run.queued_at
    if run.due_at:
        what = f"was re-queued ({ordinals(run)})" if run.requeues else "is not to start"
        until = f"until {wall.time(run.due_at)}{blocked_words(found, wall)}"
        yield f"{subject(run, wall)} {what} {until}"
        return
    lock = run.rules.lock or run.job
    yield (
        f"{subject(run, wall)} waits since {wall.time(since)}, {wall.since(since)}, for the lock "
        f"{lock!r}{blocked_words(found, wall)}"
    )


def ordinals(run: Run) -> str:
    most = run.rules.max_requeues
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


def answer(facts: Facts) -> list[str]:
    """The chain of causes, a sentence each, the outcome first; none of them twice."""
    wall = Wall(facts.now, facts.job.spec.zone)
    found = of_job(facts, wall) if facts.at is None else of_time(facts, wall)
    return list(dict.fromkeys(found))


def of_time(facts: Facts, wall: Wall) -> Iterator[str]:
    if facts.run is None:
        yield from without_record(facts, wall)
    else:
        yield from of_run(facts.run, facts, wall)
    for run in facts.others:
        yield f"{run.id}, for the same time, {is_or_went(run.state)}"


def of_job(facts: Facts, wall: Wall) -> Iterator[str]:
    """What is at work or on its way; else the newest run, and why there is no newer."""
    told = {found.run.id for found in facts.open_runs}
    for found in facts.open_runs:
        yield from of_run(found, facts, wall)
    if facts.run and facts.run.run.id not in told:
        yield from of_run(facts.run, facts, wall)
    if facts.run is None:
        yield f"{facts.job.spec.name} has no runs yet"
    yield from obstacles(facts, wall)
    yield from next_tick(facts, wall)


def of_run(found: RunFacts, facts: Facts, wall: Wall) -> Iterator[str]:
    match found.run.state:
        case RunState.SKIPPED:
            yield from skipped(found, facts, wall)
        case RunState.MISSED:
            yield from missed(found, facts, wall)
        case RunState.EXCLUDED:
            yield from excluded(found, facts, wall)
        case RunState.EXPIRED:
            yield from expired(found, facts, wall)
        case RunState.WAITING:
            yield from waiting(found, facts, wall)
        case RunState.QUEUED:
            yield from queued(found, facts, wall)
        case RunState.RUNNING:
            yield from running(found, facts, wall)
        case RunState.RETRYING:
            yield from retrying(found, facts, wall)
        case (
            RunState.SUCCEEDED
            | RunState.FAILED
            | RunState.TIMED_OUT
            | RunState.LOST
            | RunState.CANCELLED
            | RunState.REPLACED
        ):
            yield from ended(found, facts, wall)
        case _:
            assert_never(found.run.state)
