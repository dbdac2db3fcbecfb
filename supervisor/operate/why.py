"""`why`: facts in, sentences out; the outcome first, then its causes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import chain, pairwise

from supervisor.job.policies import OnCrash
from supervisor.job.run import Attempt, Run, RunState, start_id
from supervisor.operate.plans import surprise_text
from supervisor.operate.why_facts import Calendar, Facts, RunFacts, Upstreams, is_tick
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
from supervisor.schedule import due_at

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
        case _:
            return ended(found, facts, local)


# Words that many sentences share.


def subject(run: Run, local: LocalTime) -> str:
    """The run at the beginning of a sentence: ``09:05``, or the id of one that is not a tick's."""
    if run.id == start_id(run.job, run.nominal_at):
        return f"the run at start of {local.time(run.nominal_at)}"
    return local.time(run.nominal_at) if is_tick(run) else run.id


def named(run: Run, job: str, local: LocalTime) -> str:
    """The run within a sentence about a run of `job`: ``the run of 09:00``."""
    of = "the run" if run.job == job else f"{run.job}'s run"
    return f"{of} of {local.time(run.nominal_at)}" if is_tick(run) else f"the run {run.id}"


def is_or_went(state: RunState) -> str:
    """``is running``, ``was skipped``"""
    return f"is {state.value}" if state.is_open else WENT[state]


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def because(reason: str | None) -> str:
    return f": {harmless(reason)}" if reason else ""


def on_worker(worker: str | None) -> str:
    """Empty for a run of several steps, each of which has a worker of its own."""
    return f" on worker {worker}" if worker else ""


def queue_words(found: RunFacts) -> str:
    return f" in {found.queue}" if found.queue else ""


def usual(found: RunFacts) -> str:
    return f", its usual p95 is {span(found.usual.p95)}" if found.usual else ""


def since_words(start: datetime | None, local: LocalTime) -> str:
    """`` since 09:00:01, 7m12s``"""
    return f" since {local.time(start)}, {local.since(start)}" if start else ""


def no_beat_words(found: RunFacts, local: LocalTime) -> Iterator[str]:
    if found.no_beat:
        start, end = found.no_beat.start, found.no_beat.end
        yield f"no beat led from {local.time(start)} to {local.time(end)}, {lasted(start, end)}"


# Runs that started and ended.


def ended(found: RunFacts, facts: Facts, local: LocalTime) -> Iterator[str]:
    run = found.run
    yield f"{subject(run, local)} {WENT[run.state]}{end_words(run, local)}{because(run.reason)}"
    yield from tries_left(run, facts)
    yield from story(found, facts.now, local)
    if run.overlapped_with:
        yield f"it ran at the same time as {run.overlapped_with}"


def story(found: RunFacts, now: datetime, local: LocalTime) -> Iterator[str]:
    """What there is to say of a run that has started."""
    yield from duration_words(found.run, now)
    yield from steps_of(found, local)
    yield from earlier_attempts(found.run.attempts, local)
    yield from lateness(found, local)
    yield from duplicates(found.run)


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
    if run.state is RunState.LOST and facts.job.spec.on_crash is OnCrash.FAIL:
        yield "it was not run again: `on_crash: fail`"
    elif run.state is RunState.LOST:
        limit = f"(`max_crashes: {facts.job.spec.max_crashes}`)"
        yield f"it was not run again: its workers died {times(run.crashes)} {limit}"
    if run.state in (RunState.FAILED, RunState.TIMED_OUT) and run.attempts and not run.has_steps:
        tried = run.attempts_dropped + len(run.attempts) - run.crashes
        yield f"it was tried {times(tried)}; `max_retries` is {facts.job.spec.max_retries}"


def duration_words(run: Run, now: datetime) -> Iterator[str]:
    most, least = run.rules.max_duration_ms / 1000, run.rules.min_duration_ms / 1000
    if run.is_too_long(now):
        yield f"that is longer than its `max_duration`, {span(most)}"
    elif run.duration_fault == "max_duration":
        yield f"an attempt took longer than `max_duration`, {span(most)}"
    elif run.duration_fault == "min_duration":
        yield f"it took less than `min_duration`, {span(least)}: it may have found nothing to do"


def steps_of(found: RunFacts, local: LocalTime) -> Iterator[str]:
    """The steps that failed, are open, or have yet to begin."""
    for step in found.steps:
        if step.run is None or step.run.state is RunState.SUCCEEDED:
            continue
        run = step.run
        at, went = run.finished_at or run.started_at, is_or_went(run.state)
        if at and run.state.is_open:
            went = f"has been {run.state.value} since {local.time(at)}"
        elif at:
            went += f" at {local.time(at)}"
        yield f"step {step.name} {went}{on_worker(run.worker)}{because(run.reason)}"
    to_come = [step.name for step in found.steps if step.run is None]
    if to_come and found.run.state.is_open:
        yield f"still to come: {', '.join(to_come)}"


def earlier_attempts(attempts: Sequence[Attempt], local: LocalTime) -> Iterator[str]:
    """The attempts that another one followed; the last of them one by one."""
    listed = attempts[-MOST_LISTED - 1 :]
    if listed and listed[0].number > 1:
        yield f"{plural(listed[0].number - 1, 'attempt')} ended before these"
    for attempt, following in pairwise(listed):
        if attempt.finished_at is None:
            continue
        yield (
            f"attempt {attempt.number} {WENT[RunState(attempt.outcome or RunState.LOST)]} at "
            f"{local.time(attempt.finished_at)}{on_worker(attempt.worker)}, after "
            f"{lasted(attempt.started_at, attempt.finished_at)}{because(attempt.reason)}; attempt "
            f"{following.number} started at {local.time(following.started_at)}"
        )


def lateness(found: RunFacts, local: LocalTime) -> Iterator[str]:
    """Why a run started late: each part of its way to a worker that took long."""
    run = found.run
    if not run.attempts or run.attempts_dropped:
        return
    started_at, admitted_at = run.attempts[0].started_at, found.admitted_at or run.nominal_at
    due = admitted_at if run.is_follower else run.nominal_at
    if started_at - due < WORTH_MENTIONING:
        return
    yield f"it started {lasted(due, started_at)} late, at {local.time(started_at)}"
    if admitted_at - due >= WORTH_MENTIONING:
        late = f"beat emitted it {lasted(due, admitted_at)} after its time"
        yield next(no_beat_words(found, local), late)
    held = lasted(admitted_at, run.queued_at)
    if run.blocked_by:
        blocker = named(found.blocker.run, run.job, local) if found.blocker else run.blocked_by
        requeued = f", re-queued {times(run.requeues)}" if run.requeues else ""
        yield f"it waited {held} for {blocker}{requeued}"
    elif run.is_follower and run.queued_at - admitted_at >= WORTH_MENTIONING:
        yield f"it waited {held} for what it follows"
    if len(run.attempts) == 1 and started_at - run.queued_at >= WORTH_MENTIONING:
        in_queue = lasted(run.queued_at, started_at)
        yield f"it was queued{queue_words(found)} for {in_queue} until a worker started it"


def duplicates(run: Run) -> Iterator[str]:
    if run.duplicates:
        yield f"it was delivered again {times(run.duplicates)}; duplicates are dropped"
    if run.differed:
        yield (
            f"a message of it was refused {times(run.differed)}: its task or arguments were not"
            " those of the job; code of another version does that, or code that changes messages"
        )


# Deadlines that the job names.


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
    runs = (found.run for found in (*facts.open_runs, facts.run) if found)
    later = [run for run in runs if (run.started_at or run.nominal_at) >= deadline.tick]
    became = "no run has begun since"
    if later:
        who = "it" if later[0].nominal_at == deadline.tick else named(later[0], later[0].job, local)
        became = f"{who} {went_words(later[0], local)}"
    yield f"{tick} must have succeeded by {by}; it is {now} and {became}"


def went_words(run: Run, local: LocalTime) -> str:
    """``has been running since 05:31``, ``failed at 02:20``"""
    if run.state is RunState.RUNNING and run.started_at:
        return f"has been running since {local.time(run.started_at)}"
    return is_or_went(run.state) + (f" at {local.time(run.finished_at)}" if run.finished_at else "")


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
    return f"the job {since or 'is paused'}{until}{because(job.paused_note)}"


def next_tick(facts: Facts, local: LocalTime) -> str:
    job = facts.job
    if not job.spec.has_schedule:
        return without_schedule(facts)
    after = facts.calendar.after if facts.calendar else None
    if after is None:
        return "there are no more ticks"
    is_excluded = job.paused and (job.paused_until is None or after < job.paused_until)
    fate = "; the pause excludes it" if is_excluded else ""
    return f"the next tick is at {local.time(after)}, {ahead(after, facts.now)}{fate}"


def without_schedule(facts: Facts) -> str:
    spec = facts.job.spec
    if not spec.after:
        at_start = "at start, and " if spec.run_at_start else ""
        return f"{spec.name} has no schedule: it runs {at_start}when code or a person asks for it"
    return f"{spec.name} has no schedule: it runs after {upstream_words(facts.upstreams)}"


# Times without a record: not a tick, still to come, not emitted, or long ago.


def without_record(at: datetime, facts: Facts, local: LocalTime) -> Iterator[str]:
    calendar = facts.calendar
    if calendar is None:
        yield f"{facts.job.spec.name} has no schedule, and no run for {local.time(at)}"
    elif not calendar.is_tick:
        yield from no_tick(at, facts, calendar, local)
    elif at > facts.now:
        yield f"{local.time(at)} is still to come, {ahead(at, facts.now)}"
        yield from clock_change(calendar)
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
    yield from clock_change(calendar)
    near = [f"{local.time(t)} before" for t in (calendar.before,) if t]
    near += [f"{local.time(t)} after" for t in (calendar.after,) if t]
    yield f"the nearest ticks are {' and '.join(near)}" if near else "there are no ticks near it"


def clock_change(calendar: Calendar) -> Iterator[str]:
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
    who = f"{subject(run, local)} was skipped: "
    waited = lasted(found.admitted_at or run.queued_at, run.finished_at or run.queued_at)
    if run.reason == "upstream":
        yield who + upstream_cause(found, local)
        return
    if run.is_held and run.reason == "wait_expired":
        others = run.after or ", ".join(spec.after)
        yield f"{who}it had waited {waited} for {others} (`max_wait`)"
        return
    cause = {
        "overlap": "",
        "buffer_full": f"{spec.max_waiting} others waited already (`max_waiting`), and ",
        "requeues_exhausted": f"it had been re-queued {run.requeues} times (`max_requeues`), and ",
        "wait_expired": f"it had waited {waited} for the lock (`max_wait`), and ",
        "grace": "Redis was new, and nothing starts for a `lease_ttl` then; ",
        "replaced": "a newer run took its place at the head of the line; ",
    }.get(run.reason or "", f"{run.reason}, and ")
    at = run.blocker.at if run.blocker else run.finished_at or run.queued_at
    yield f"{who}{cause}{blocker_then(found, at, local)}"
    yield from blocker_since(found, local)


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
    unseen = f"no beat looked at the job until {local.time(run.queued_at)}"
    yield next(no_beat_words(found, local), unseen)


def excluded(found: RunFacts, facts: Facts, local: LocalTime) -> Iterator[str]:
    note = f" ({found.run.note})" if found.run.note else ""
    yield f"{of_range(facts, found.run, local)} excluded: the job was paused{note}"
    yield pause_words(facts, local) if facts.job.paused else "it is no longer paused"


def of_range(facts: Facts, run: Run, local: LocalTime) -> str:
    """``09:05 was``, or ``09:05 is one of 12 ticks from 09:00 to 09:55 that were``."""
    at = local.time(facts.at or run.nominal_at)
    if run.ticks == 1:
        return f"{at} was"
    first, last = local.time(run.first_nominal_at or run.nominal_at), local.time(run.nominal_at)
    return f"{at} is one of {run.ticks:,} ticks from {first} to {last} that were"


def expired(found: RunFacts, facts: Facts, local: LocalTime) -> Iterator[str]:
    run = found.run
    at = run.finished_at or run.queued_at
    what = f"{subject(run, local)} expired at {local.time(at)}: no worker started it"
    since = f"{local.time(run.queued_at)}, when it was queued{queue_words(found)}"
    if run.expires_at and run.expires_at <= at and not run.attempt:
        yield f"{what} between {since}, and {local.time(run.expires_at)} (`expires` of its call)"
    else:
        deadline = span(facts.job.spec.start_deadline.total_seconds())
        yield f"{what} within {deadline} (`start_deadline`) of {since}"
    yield from unsuited(found)
    yield message_words(run, local) if run.sent_at else "the broker never accepted its message"


def message_words(run: Run, local: LocalTime) -> str:
    often = f" {run.sends} times, last" if run.sends > 1 else ""
    return f"its message was sent{often} at {local.time(run.sent_at or run.queued_at)}"


# Runs that have not ended: waiting, queued, running, retrying.


def waiting(found: RunFacts, local: LocalTime) -> str:
    run = found.run
    since = found.admitted_at or run.queued_at
    who = f"{subject(run, local)} has been waiting{since_words(since, local)}, for "
    if run.is_held:
        most = run.rules.max_wait_ms
        end = local.time(since + timedelta(milliseconds=max(0, most)))
        until = f", until {end} (`max_wait`)" if most >= 0 else ""
        return f"{who}{run.after or upstream_words(found.upstreams)}{until}"
    blocked = blocked_words(found, local)
    if run.due_at:
        most = run.rules.max_requeues
        count = f"{run.requeues} of {most}" if most else f"{run.requeues}"
        what = f"was re-queued ({count})" if run.requeues else "is not to start"
        return f"{subject(run, local)} {what} until {local.time(run.due_at)}{blocked}"
    return f"{who}the lock {run.rules.lock or run.job!r}{blocked}"


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
    since = since_words(other.started_at if is_running else other.queued_at, local)
    worker = on_worker(other.worker) if is_running else ""
    verb = "has been" if since else "is"
    return f": {name} {verb} {other.state.value}{worker}{since}{usual(found.blocker)}"


def upstream_words(upstreams: Upstreams) -> str:
    """``extract (succeeded) and load (not yet)``"""
    words = (f"{name} ({WENT[state] if state else 'not yet'})" for name, state in upstreams.items())
    return " and ".join(words)


def queued(found: RunFacts, facts: Facts, local: LocalTime) -> Iterator[str]:
    run = found.run
    age = local.since(run.queued_at)
    # On a new server no worker is to blame.
    unstarted = age if facts.grace_until else f"and no worker has started it for {age}"
    since = local.time(run.queued_at)
    yield f"{subject(run, local)} has been queued{queue_words(found)} since {since}, {unstarted}"
    if found.drained_at:
        drained = local.time(found.drained_at)
        undrain = f"`supervisor undrain {run.queue}`"
        yield f"its queue, {run.queue}, has been drained since {drained}: {undrain}"
    yield from grace(facts, local)
    if found.blocker and found.blocker.run.state is RunState.RUNNING:
        yield f"its serial queue is busy{blocked_words(found, local)}"
    if found.workers:
        yield worker_words(found)
    yield from unsuited(found)
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


def unsuited(found: RunFacts) -> Iterator[str]:
    """Why the workers that there are do not take it."""
    workers = found.workers
    if workers and workers.unknown_task:
        which = f"that consumes {found.queue} " if found.queue else ""
        yield f"no worker {which}knows the task {workers.unknown_task}"
    if workers and workers.unmet:
        page = "(docs/how-to/adopting.md, Pools)"
        yield f"their pool lacks what its job needs: {workers.unmet} {page}"


def running(found: RunFacts, local: LocalTime) -> Iterator[str]:
    run = found.run
    since = since_words(run.started_at or run.queued_at, local)
    yield f"{subject(run, local)} has been running{on_worker(run.worker)}{since}{usual(found)}"
    if progress := items_words(run.batch) or progress_words(run.progress):
        yield f"its progress: {progress}"
    yield from story(found, local.now, local)


def retrying(found: RunFacts, facts: Facts, local: LocalTime) -> Iterator[str]:
    run, most = found.run, facts.job.spec.max_retries + 1 + found.run.crashes
    due = f"; attempt {run.attempt + 1} is due at {local.time(run.due_at)}" if run.due_at else ""
    failed = f"attempt {run.attempt} of {most} failed{because(run.reason)}"
    yield f"{subject(run, local)} is to be retried: {failed}{due}"
    yield from earlier_attempts(run.attempts, local)


# The run that blocked another: what it was doing at that moment, and how it ended.


def blocker_then(found: RunFacts, at: datetime, local: LocalTime) -> str:
    """``the run of 09:00 was still running on worker w3, 7m12s, its usual p95 is 4m``"""
    blocker, then = found.blocker, found.run.blocker
    if blocker is None:
        known = found.run.blocked_by
        return f"{known} blocked it, and its record is gone" if known else "nothing is recorded"
    name = named(blocker.run, found.run.job, local)
    was_running = then is None or then.state == RunState.RUNNING
    attempts = [a for a in blocker.run.attempts if a.started_at <= at]
    if attempts and was_running and not has_ended(attempts[-1], at):
        took = lasted(attempts[-1].started_at, at)
        worker = on_worker(attempts[-1].worker)
        return f"{name} was still running{worker}, {took}{usual(blocker)}{heartbeat(found)}"
    if attempts and has_ended(attempts[-1], at):
        last = attempts[-1]
        reason = f" ({harmless(last.reason)})" if last.reason else ""
        between = f"attempt {last.number} had ended {last.outcome}{reason}"
        return f"{name} was between attempts: {between}"
    since = lasted(blocker.admitted_at or blocker.run.queued_at, at)
    if blocker.run.blocked_by:
        return f"{name} came first and had waited for {since}"
    stood = f"queued{queue_words(blocker)} for {since} without a worker taking it"
    return f"{name} came first and had not started: {stood}"


def has_ended(attempt: Attempt, at: datetime) -> bool:
    return attempt.finished_at is not None and attempt.finished_at < at


def heartbeat(found: RunFacts) -> str:
    """``; lease token 812, heartbeat 2s before``; a run of several steps has no heartbeat."""
    then, blocker = found.run.blocker, found.blocker
    if then is None or not then.lease_ends_at or not blocker or not blocker.lease_ttl:
        return ""
    silent = (blocker.lease_ttl - (then.lease_ends_at - then.at)).total_seconds()
    return f"; lease token {then.fencing_token}, heartbeat {span(max(0.0, silent))} before"


def blocker_since(found: RunFacts, local: LocalTime) -> Iterator[str]:
    """One level deeper: how the blocker went on."""
    if found.blocker is None:
        return
    run = found.blocker.run
    name = named(run, found.run.job, local)
    if run.state.is_open:
        yield f"{name} is {run.state.value} now"
    elif run.finished_at:
        took = lasted(run.attempts[0].started_at, run.finished_at) if run.attempts else ""
        after = f" after {took}" if took else ""
        yield f"{name} {WENT[run.state]} at {local.time(run.finished_at)}{after}"
