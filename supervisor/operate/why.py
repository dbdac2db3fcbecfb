"""`why`: facts in, sentences out; the outcome first, then its causes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import chain
from typing import assert_never

from supervisor.job.policies import OnCrash
from supervisor.job.run import Run, RunState
from supervisor.operate.plans import surprise_text
from supervisor.operate.why_facts import Calendar, Facts, RunFacts
from supervisor.operate.why_words import (
    WENT,
    because,
    blocker_then,
    deadline_of_job,
    deadline_of_run,
    duplicates,
    duration_words,
    earlier_attempts,
    is_or_went,
    lateness,
    named,
    on_worker,
    queue_words,
    steps_of,
    subject,
    times,
    unknown_task,
    unmet_needs,
    upstream_words,
    usual,
    why_slow,
)
from supervisor.operate.words import (
    LocalTime,
    ahead,
    harmless,
    items_words,
    lasted,
    plural,
    progress_words,
    span,
)


def answer(facts: Facts) -> list[str]:
    """The chain of causes, a sentence each, the outcome first; none of them twice."""
    local = LocalTime(facts.now, facts.job.spec.zone)
    if facts.at is None:
        found = of_job(facts, local)
    elif facts.run is None:
        found = without_record(facts.at, facts, local)
    else:
        found = chain(of_run(facts.run, facts, local), deadline_of_run(facts.run.run, facts, local))
    others = (f"{run.id}, for the same time, {is_or_went(run.state)}" for run in facts.others)
    return list(dict.fromkeys([*found, *others]))


def of_job(facts: Facts, local: LocalTime) -> Iterator[str]:
    """The open runs, or else the newest run; and what keeps newer ones from starting."""
    for found in facts.open_runs:
        yield from of_run(found, facts, local)
    if facts.run:
        yield from of_run(facts.run, facts, local)
    else:
        yield f"{facts.job.spec.name} has no runs yet"
    yield from deadline_of_job(facts, local)
    yield from obstacles(facts, local)
    yield next_tick(facts, local)


def of_run(found: RunFacts, facts: Facts, local: LocalTime) -> Iterator[str]:
    match found.run.state:
        case RunState.SKIPPED:
            return skipped(found, facts, local)
        case RunState.MISSED:
            return missed(found, facts, local)
        case RunState.EXCLUDED:
            return excluded(found, facts, local)
        case RunState.EXPIRED:
            return expired(found, facts, local)
        case RunState.WAITING:
            return iter([waiting(found, local)])
        case RunState.QUEUED:
            return queued(found, facts, local)
        case RunState.RUNNING:
            return running(found, local)
        case RunState.RETRYING:
            return retrying(found, facts, local)
        case (
            RunState.SUCCEEDED
            | RunState.FAILED
            | RunState.TIMED_OUT
            | RunState.LOST
            | RunState.CANCELLED
            | RunState.REPLACED
        ):
            return ended(found, facts, local)
        case _:
            assert_never(found.run.state)


# Runs that started and ended.


def ended(found: RunFacts, facts: Facts, local: LocalTime) -> Iterator[str]:
    run = found.run
    yield f"{subject(run, local)} {WENT[run.state]}{end_words(run, local)}{because(run.reason)}"
    yield from tries_left(run, facts)
    yield from duration_words(run, facts.now)
    yield from steps_of(found, local)
    yield from earlier_attempts(run.attempts, local)
    yield from lateness(found, local)
    if run.overlapped_with:
        yield f"it ran at the same time as {run.overlapped_with}"
    yield from duplicates(run)


def end_words(run: Run, local: LocalTime) -> str:
    """`` at 09:06:10, after 1m9s on worker w3``"""
    if run.finished_at is None:
        return ""
    at = f" at {local.time(run.finished_at)}"
    if not run.attempts:
        return f"{at}, before it started"
    last = run.attempts[-1]
    took = lasted(last.started_at, last.finished_at or run.finished_at)
    return f"{at}, after {took}{on_worker(last.worker)}"


def tries_left(run: Run, facts: Facts) -> Iterator[str]:
    """Why it was not tried again."""
    if run.state is RunState.LOST:
        if facts.job.spec.on_crash is OnCrash.FAIL:
            yield "it was not run again: `on_crash: fail`"
        else:
            limit = f"(`max_crashes: {facts.job.spec.max_crashes}`)"
            yield f"it was not run again: its workers died {times(run.crashes)} {limit}"
    if run.state in (RunState.FAILED, RunState.TIMED_OUT) and run.attempts and not run.has_steps:
        tried = run.attempts_dropped + len(run.attempts) - run.crashes
        yield f"it was tried {times(tried)}; `max_retries` is {facts.job.spec.max_retries}"


# A job as it is now: what keeps it from running.


def obstacles(facts: Facts, local: LocalTime) -> Iterator[str]:
    """What keeps new ticks of the job from being emitted."""
    job, beat = facts.job, facts.beat
    if job.paused:
        yield pause_words(facts, local)
    if not facts.beat_leads and job.spec.has_schedule:
        last = beat.last_tick_at
        yield f"no beat has led since {local.time(last)}" if last else "no beat has led yet"
    if beat.problems:
        yield (
            f"the schedule files have {plural(len(beat.problems), 'problem')}; "
            f"what was loaded before stays in force: {beat.problems[0]}"
        )
    if beat.clock_set_back_at and facts.now - beat.clock_set_back_at < beat.clock_set_back:
        by = span(beat.clock_set_back.total_seconds())
        yield (
            f"the clock of Redis was set back by {by} at {local.time(beat.clock_set_back_at)}: "
            "ticks that have run before do not run a second time"
        )
    yield from grace(facts, local)


def grace(facts: Facts, local: LocalTime) -> Iterator[str]:
    if facts.grace_until:
        yield f"the server is new: nothing starts before {local.time(facts.grace_until)}"


def pause_words(facts: Facts, local: LocalTime) -> str:
    """``the job has been paused since 09:00, until 12:00: stocktaking``"""
    job = facts.job
    since = f"has been paused since {local.time(facts.paused_at)}" if facts.paused_at else ""
    until = f", until {local.time(job.paused_until)}" if job.paused_until else ""
    note = f": {job.paused_note}" if job.paused_note else ""
    return f"the job {since or 'is paused'}{until}{note}"


def next_tick(facts: Facts, local: LocalTime) -> str:
    job = facts.job
    if not job.spec.has_schedule:
        return without_schedule(facts, local)
    after = facts.calendar.after if facts.calendar else None
    if after is None:
        return "there are no more ticks"
    is_excluded = job.paused and (job.paused_until is None or after < job.paused_until)
    fate = "; the pause excludes it" if is_excluded else ""
    return f"the next tick is at {local.time(after)}, {ahead(after, facts.now)}{fate}"


def without_schedule(facts: Facts, local: LocalTime) -> str:
    spec = facts.job.spec
    if not spec.after:
        at_start = "at start, and " if spec.run_at_start else ""
        return f"{spec.name} has no schedule: it runs {at_start}when code or a person asks for it"
    if not facts.upstreams:
        return f"{spec.name} has no schedule: it runs {spec.schedule}"
    at = f" for {local.time(facts.upstreams_for)}" if facts.upstreams_for else ""
    return f"{spec.name} runs{at} after {upstream_words(facts.upstreams, local)}"


# Times without a record: not a tick, still to come, not emitted, or long ago.


def without_record(at: datetime, facts: Facts, local: LocalTime) -> Iterator[str]:
    calendar = facts.calendar
    if calendar is None:
        yield f"{facts.job.spec.name} has no schedule, and no run for {local.time(at)}"
    elif not calendar.is_tick:
        yield from no_tick(at, facts, calendar, local)
    elif at > facts.now:
        yield f"{local.time(at)} is still to come, {ahead(at, facts.now)}"
        yield from surprises(calendar)
        yield from obstacles(facts, local)
    elif facts.watermark is None or at > facts.watermark:
        yield f"{local.time(at)} was due {local.since(at)} ago and has not been emitted yet"
        if facts.watermark:
            yield f"beat has come as far as {local.time(facts.watermark)}"
        yield from obstacles(facts, local)
    else:
        yield forgotten(at, facts, local)


def no_tick(at: datetime, facts: Facts, calendar: Calendar, local: LocalTime) -> Iterator[str]:
    spec = facts.job.spec
    zone = f" {spec.timezone}" if spec.every is None and spec.timezone != "UTC" else ""
    cause = (
        "`exclude` removes it" if calendar.excluded else f"its schedule is {spec.schedule}{zone}"
    )
    yield f"{local.time(at)} is not a tick of {spec.name}: {cause}"
    yield from surprises(calendar)
    near = [f"{local.time(t)} before" for t in (calendar.before,) if t]
    near += [f"{local.time(t)} after" for t in (calendar.after,) if t]
    yield f"the nearest ticks are {' and '.join(near)}" if near else "there are no ticks near it"


def surprises(calendar: Calendar) -> Iterator[str]:
    if calendar.surprise:
        yield f"clocks change on {surprise_text(calendar.surprise)}"


def forgotten(at: datetime, facts: Facts, local: LocalTime) -> str:
    kept = f"the last {facts.job.spec.history} runs, for up to seven days"
    if facts.oldest_at and at < facts.oldest_at:
        oldest = local.time(facts.oldest_at)
        return f"{local.time(at)} is older than what is kept ({kept}); the oldest is {oldest}"
    return (
        f"there is no record of {local.time(at)}: {kept} are kept; or the job was loaded, or its "
        "schedule edited, after it"
    )


# Ticks that never ran: skipped, missed, excluded, expired.


def skipped(found: RunFacts, facts: Facts, local: LocalTime) -> Iterator[str]:
    run, spec = found.run, facts.job.spec
    if run.reason == "upstream":
        yield f"{subject(run, local)} was skipped: {upstream_cause(found, local)}"
        return
    at = run.blocker.at if run.blocker else run.finished_at or run.queued_at
    waited = lasted(found.admitted_at or run.queued_at, run.finished_at or run.queued_at)
    cause = {
        "overlap": "",
        "buffer_full": f"{spec.max_waiting} others waited already (`max_waiting`), and ",
        "requeues_exhausted": f"it had been re-queued {run.requeues} times (`max_requeues`), and ",
        "wait_expired": f"it had waited {waited} for the lock (`max_wait`), and ",
        "grace": "Redis was new, and nothing starts for a `lease_ttl` then; ",
        "replaced": "a newer run took its place at the head of the line; ",
    }.get(run.reason or "", f"{run.reason}, and ")
    if run.is_held and run.reason == "wait_expired":
        others = run.after or ", ".join(spec.after)
        yield f"{subject(run, local)} was skipped: it had waited {waited} for {others} (`max_wait`)"
        return
    yield f"{subject(run, local)} was skipped: {cause}{blocker_then(found, at, local)}"
    yield from why_slow(found, at, local)


def upstream_cause(found: RunFacts, local: LocalTime) -> str:
    """``extract's run of 09:00, which it follows, failed: ValueError()``"""
    if found.blocker is None:
        return f"{found.run.blocked_by}, which it follows, did not succeed"
    other = found.blocker.run
    name = named(other, found.run.job, local)
    return f"{name}, which it follows, {is_or_went(other.state)}{because(other.reason)}"


def missed(found: RunFacts, facts: Facts, local: LocalTime) -> Iterator[str]:
    run, spec = found.run, facts.job.spec
    cause = {
        "window": "when beat looked again, more than `catchup_window` had passed, "
        + span(spec.catchup_window.total_seconds()),
        "catchup": f"left out by `catchup: {spec.catchup.value}`",
        "edited": "the job's schedule was edited, or the job removed, while no beat led",
    }.get(run.reason or "", run.reason or "no reason is recorded")
    yield f"{of_range(facts, run, local)} missed: {cause}"
    if found.no_beat:
        start, end = found.no_beat.start, found.no_beat.end
        yield f"no beat led from {local.time(start)} to {local.time(end)}, {lasted(start, end)}"
    else:
        yield f"no beat looked at the job until {local.time(run.queued_at)}"


def excluded(found: RunFacts, facts: Facts, local: LocalTime) -> Iterator[str]:
    note = f" ({found.run.note})" if found.run.note else ""
    yield f"{of_range(facts, found.run, local)} excluded: the job was paused{note}"
    yield pause_words(facts, local) if facts.job.paused else "it is no longer paused"


def of_range(facts: Facts, run: Run, local: LocalTime) -> str:
    """``09:05 was``, or ``09:05 is one of 12 ticks from 09:00 to 09:55 that were``."""
    asked = local.time(facts.at or run.nominal_at)
    if run.ticks == 1:
        return f"{asked} was"
    first, last = local.time(run.first_nominal_at or run.nominal_at), local.time(run.nominal_at)
    return f"{asked} is one of {run.ticks:,} ticks from {first} to {last} that were"


def expired(found: RunFacts, facts: Facts, local: LocalTime) -> Iterator[str]:
    run = found.run
    at = run.finished_at or run.queued_at
    what = f"{subject(run, local)} expired at {local.time(at)}: no worker started it"
    queued = f"{local.time(run.queued_at)}, when it was queued{queue_words(found)}"
    if run.expires_at and run.expires_at <= at and not run.attempt:
        yield f"{what} between {queued}, and {local.time(run.expires_at)} (`expires` of its call)"
    else:
        deadline = span(facts.job.spec.start_deadline.total_seconds())
        yield f"{what} within {deadline} (`start_deadline`) of {queued}"
    yield from unknown_task(found)
    yield from unmet_needs(found)
    yield message_words(run, local) if run.sent_at else "the broker never accepted its message"


def message_words(run: Run, local: LocalTime) -> str:
    often = f" {run.sends} times, last" if run.sends > 1 else ""
    return f"its message was sent{often} at {local.time(run.sent_at or run.queued_at)}"


# Runs that have not ended: waiting, queued, running, retrying.


def waiting(found: RunFacts, local: LocalTime) -> str:
    run = found.run
    if run.is_held:
        return held_words(found, local)
    blocked = blocked_words(found, local)
    if run.due_at:
        most = run.rules.max_requeues
        count = f"{run.requeues} of {most}" if most else f"{run.requeues}"
        what = f"was re-queued ({count})" if run.requeues else "is not to start"
        return f"{subject(run, local)} {what} until {local.time(run.due_at)}{blocked}"
    since, lock = found.admitted_at or run.queued_at, run.rules.lock or run.job
    return (
        f"{subject(run, local)} has been waiting since {local.time(since)}, {local.since(since)}, "
        f"for the lock {lock!r}{blocked}"
    )


def held_words(found: RunFacts, local: LocalTime) -> str:
    run = found.run
    since = found.admitted_at or run.queued_at
    most = run.rules.max_wait_ms
    until = f", until {local.time(since + timedelta(milliseconds=most))} (`max_wait`)"
    return (
        f"{subject(run, local)} has been waiting since {local.time(since)}, {local.since(since)}, "
        f"for {upstream_words(found.upstreams, local)}{until if most >= 0 else ''}"
    )


def blocked_words(found: RunFacts, local: LocalTime) -> str:
    """``: the run of 09:00 has been running on worker w3 since 09:00:01, 7m12s``"""
    run = found.run
    if run.blocked_by is None:
        return ""
    if found.blocker is None:
        return f": {run.blocked_by} blocked it"
    other = found.blocker.run
    name = named(other, run.job, local)
    if not other.state.is_open:
        return f": {name} blocked it and has ended; others may come before it"
    is_running = other.state is RunState.RUNNING
    since = other.started_at if is_running else other.queued_at
    at = f" since {local.time(since)}, {local.since(since)}" if since else ""
    worker = on_worker(other.worker) if is_running else ""
    verb = "has been" if since else "is"
    return f": {name} {verb} {other.state.value}{worker}{at}{usual(found.blocker)}"


def queued(found: RunFacts, facts: Facts, local: LocalTime) -> Iterator[str]:
    run = found.run
    age = local.since(run.queued_at)
    unstarted = f"and no worker has started it for {age}"
    yield (
        f"{subject(run, local)} has been queued{queue_words(found)} since "
        f"{local.time(run.queued_at)}, "
        f"{age if facts.grace_until else unstarted}"  # on a new server no worker is to blame
    )
    if found.drained_at:
        since = local.time(found.drained_at)
        undrain = f"`supervisor undrain {run.queue}`"
        yield f"its queue, {run.queue}, has been drained since {since}: {undrain}"
    yield from grace(facts, local)
    if found.blocker and found.blocker.run.state is RunState.RUNNING:
        yield f"its serial queue is busy{blocked_words(found, local)}"
    if found.workers:
        yield worker_words(found)
    yield from unknown_task(found)
    yield from unmet_needs(found)
    if run.sent_at:
        yield message_words(run, local)
    else:
        yield "its message has not been sent yet" + ("" if facts.beat_leads else ", no beat leads")
    if run.reason:
        yield f"it is to start again: {harmless(run.reason)}"
    yield from duplicates(run)


def worker_words(found: RunFacts) -> str:
    """``no worker consumes reports``"""
    workers, queue = found.workers, found.queue
    if not workers or not workers.count:
        return f"no worker consumes {queue}" if queue else "no worker is running"
    count, verb = plural(workers.count, "worker"), "is" if workers.count == 1 else "are"
    processes = plural(workers.processes, "process", "es")
    return f"{count} with {processes} {verb} {f'consuming {queue}' if queue else 'running'}"


def running(found: RunFacts, local: LocalTime) -> Iterator[str]:
    run = found.run
    since = run.started_at or run.queued_at
    yield (
        f"{subject(run, local)} has been running{on_worker(run.worker)} since "
        f"{local.time(since)}, "
        f"{local.since(since)}{usual(found)}"
    )
    yield from duration_words(run, local.now)
    if progress := items_words(run.batch) or progress_words(run.progress):
        yield f"its progress: {progress}"
    yield from steps_of(found, local)
    yield from earlier_attempts(run.attempts, local)
    yield from lateness(found, local)
    yield from duplicates(run)


def retrying(found: RunFacts, facts: Facts, local: LocalTime) -> Iterator[str]:
    run, most = found.run, facts.job.spec.max_retries + 1 + found.run.crashes
    due = f"; attempt {run.attempt + 1} is due at {local.time(run.due_at)}" if run.due_at else ""
    failed = f"attempt {run.attempt} of {most} failed{because(run.reason)}"
    yield f"{subject(run, local)} is to be retried: {failed}{due}"
    yield from earlier_attempts(run.attempts, local)
