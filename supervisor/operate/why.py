"""`why`: facts in, sentences out; the outcome first, then its causes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import chain

from supervisor.job.policies import OnCrash
from supervisor.job.run import Run, RunState, start_id
from supervisor.operate.plans import clock_change_text
from supervisor.operate.why_facts import Facts, RunFacts, Upstreams, is_tick
from supervisor.operate.words import ahead, harmless, lasted, plural, span
from supervisor.schedule import due_at

#: A shorter delay on the way to a worker is not mentioned.
WORTH_MENTIONING = timedelta(seconds=2)


def answer(facts: Facts) -> list[str]:
    """The chain of causes, a sentence each, the outcome first; none of them twice."""
    if facts.at is None:
        told = of_job(facts)
    elif facts.run is None:
        told = without_record(facts.at, facts)
    else:
        told = chain(of_run(facts.run, facts), deadline_of(facts.run.run, facts))
    return list(dict.fromkeys(told))


def of_job(facts: Facts) -> Iterator[str]:
    """The open runs, or else the newest run; and what keeps newer ones from starting."""
    for found in facts.open_runs:
        yield from of_run(found, facts)
    if (more := facts.open_count - len(facts.open_runs)) > 0:
        yield f"and {plural(more, 'more run')}, waiting, queued or running"
    if facts.run is None:
        yield f"{facts.job.spec.name} has no runs yet"
    elif not facts.run.run.state.is_open:
        yield from of_run(facts.run, facts)
    due = facts.job.deadline
    if due and due.tick <= facts.now:
        yield deadline(due.tick, due.at, facts)
    yield from obstacles(facts)
    yield next_tick(facts)


def deadline_of(run: Run, facts: Facts) -> Iterator[str]:
    """The deadline of a tick's run that is open, or succeeded too late."""
    due = due_at(facts.job.spec, run.nominal_at) if is_tick(run) else None
    if due is None or facts.job.paused:
        return
    is_late = run.state is RunState.SUCCEEDED and run.finished_at and run.finished_at > due
    if run.state.is_open or is_late:
        yield deadline(run.nominal_at, due, facts)


def deadline(tick: datetime, due: datetime, facts: Facts) -> str:
    """``02:00 had to succeed by 06:00 UTC, 4m ago``"""
    time, by = facts.local.time, f"{facts.local.time(due)} {facts.job.spec.timezone}"
    if facts.now > due:
        return f"{time(tick)} had to succeed by {by}, {facts.local.since(due)} ago"
    return f"{time(tick)} has to succeed by {by}, {ahead(due, facts.now)}"


# Words that many sentences share.


def subject(run: Run, facts: Facts) -> str:
    """The run at the beginning of a sentence: ``09:05``, or the id of one that is not a tick's."""
    time = facts.local.time(run.nominal_at)
    if run.id == start_id(run.job, run.nominal_at):
        return f"the run at start of {time}"
    return time if is_tick(run) else run.id


def named(run: Run, job: str, facts: Facts) -> str:
    """The run within a sentence about a run of `job`: ``the run of 09:00``."""
    of = "the run" if run.job == job else f"{run.job}'s run"
    return f"{of} of {facts.local.time(run.nominal_at)}" if is_tick(run) else f"the run {run.id}"


def went(state: RunState) -> str:
    """``is running``, ``failed``, ``was skipped``"""
    if state.is_open:
        return f"is {state.value}"
    verbs = (RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT, RunState.EXPIRED)
    return state.value.replace("_", " ") if state in verbs else f"was {state.value}"


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def because(reason: str | None) -> str:
    return f": {harmless(reason)}" if reason else ""


def on_worker(worker: str | None) -> str:
    """Empty for a run of several steps, each of which has a worker of its own."""
    return f" on worker {worker}" if worker else ""


def in_queue(found: RunFacts) -> str:
    return f" in {found.queue}" if found.queue else ""


def usual(found: RunFacts) -> str:
    return f", usually finishes within {span(found.usual)}" if found.usual else ""


def since_words(start: datetime | None, facts: Facts) -> str:
    """`` since 09:00:01, 7m12s``"""
    return f" since {facts.local.time(start)}, {facts.local.since(start)}" if start else ""


def no_beat_words(found: RunFacts, facts: Facts) -> str:
    if found.no_beat is None:
        return ""
    start, end = found.no_beat
    time = facts.local.time
    return f"no beat led from {time(start)} to {time(end)}, {lasted(start, end)}"


# Runs that started.


def ended(found: RunFacts, facts: Facts) -> Iterator[str]:
    run, spec, how = found.run, facts.job.spec, ""
    last = run.attempts[-1] if run.attempts else None
    if run.finished_at:
        how = f" at {facts.local.time(run.finished_at)}, before it started"
    if run.finished_at and last:
        took = lasted(last.started_at, last.finished_at or run.finished_at)
        how = f" at {facts.local.time(run.finished_at)}, after {took}{on_worker(last.worker)}"
    yield f"{subject(run, facts)} {went(run.state)}{how}{because(run.reason)}"
    if run.state is RunState.LOST:
        limit = f"max_crashes: {spec.max_crashes}"
        limit = "on_crash: fail" if spec.on_crash is OnCrash.FAIL else limit
        yield f"its workers died {times(run.crashes)}, and it is not run again: `{limit}`"
    elif run.state in (RunState.FAILED, RunState.TIMED_OUT) and last and not run.has_steps:
        tried = times(last.number - run.crashes)
        yield f"it was tried {tried}; `max_retries` is {spec.max_retries}"
    yield from story(found, facts)


def running(found: RunFacts, facts: Facts) -> Iterator[str]:
    run, since = found.run, since_words(found.run.started_at or found.run.queued_at, facts)
    yield f"{subject(run, facts)} has been running{on_worker(run.worker)}{since}{usual(found)}"
    yield from story(found, facts)


def retrying(found: RunFacts, facts: Facts) -> Iterator[str]:
    run, most = found.run, facts.job.spec.max_retries + 1 + found.run.crashes
    due = f" at {facts.local.time(run.due_at)}" if run.due_at else ""
    failed = f"attempt {run.attempt} of {most} failed{because(run.reason)}"
    yield f"{subject(run, facts)} is to be retried{due}: {failed}"


def story(found: RunFacts, facts: Facts) -> Iterator[str]:
    """What there is to say of a run that has started."""
    run, most = found.run, span(found.run.rules.max_duration_ms / 1000)
    if run.duration_fault == "max_duration" or run.is_too_long(facts.now):
        yield f"an attempt took longer than `max_duration`, {most}"
    elif run.duration_fault == "min_duration":
        least = span(run.rules.min_duration_ms / 1000)
        yield f"it took less than `min_duration`, {least}: it may have found nothing to do"
    for step in found.steps:
        if step.run and step.run.state is not RunState.SUCCEEDED:
            how = f"{went(step.run.state)}{on_worker(step.run.worker)}"
            yield f"step {step.name} {how}{because(step.run.reason)}"
    if len(run.attempts) > 1:
        before = run.attempts[-2]
        how = f"{went(RunState(before.outcome or RunState.LOST))}{on_worker(before.worker)}"
        yield f"attempt {before.number} {how}{because(before.reason)}"
    yield from lateness(found, facts)
    if run.overlapped_with:
        yield f"it ran at the same time as {run.overlapped_with}"


def lateness(found: RunFacts, facts: Facts) -> Iterator[str]:
    """Why a run started late: each part of its way to a worker that took long."""
    run = found.run
    if not run.attempts or run.attempts_dropped:
        return
    started_at, admitted_at = run.attempts[0].started_at, found.admitted_at or run.nominal_at
    due = admitted_at if run.is_follower else run.nominal_at
    if started_at - due < WORTH_MENTIONING:
        return
    yield f"it started {lasted(due, started_at)} late, at {facts.local.time(started_at)}"
    if admitted_at - due >= WORTH_MENTIONING:
        late = f"beat emitted it {lasted(due, admitted_at)} after its time"
        yield no_beat_words(found, facts) or late
    if run.queued_at > started_at:  # for another attempt
        return
    if run.queued_at - admitted_at >= WORTH_MENTIONING:
        other = named(found.blocker.run, run.job, facts) if found.blocker else run.blocked_by
        yield f"it waited {lasted(admitted_at, run.queued_at)} for {other or 'what it follows'}"
    if started_at - run.queued_at >= WORTH_MENTIONING:
        waited = lasted(run.queued_at, started_at)
        yield f"it was queued{in_queue(found)} for {waited} until a worker started it"


# Ticks that never ran: skipped, missed, excluded, expired.


def skipped(found: RunFacts, facts: Facts) -> Iterator[str]:
    run, spec = found.run, facts.job.spec
    who = f"{subject(run, facts)} was skipped: "
    waited = lasted(found.admitted_at or run.queued_at, run.finished_at or run.queued_at)
    if run.reason == "upstream":
        other = found.blocker.run if found.blocker else None
        name = named(other, run.job, facts) if other else run.blocked_by
        how = f"{went(other.state)}{because(other.reason)}" if other else "did not succeed"
        yield f"{who}{name}, which it follows, {how}"
    elif run.is_held and run.reason == "wait_expired":
        others = run.after or ", ".join(spec.after)
        yield f"{who}it had waited {waited} for {others} (`max_wait`)"
    else:
        cause = {
            "overlap": "",
            "buffer_full": f"{spec.max_waiting} others waited already (`max_waiting`), and ",
            "requeues_exhausted": f"re-queued {run.requeues} times (`max_requeues`), and ",
            "wait_expired": f"it had waited {waited} for the lock (`max_wait`), and ",
            "grace": "Redis was new, and nothing starts for a `lease_ttl` then; ",
            "replaced": "a newer run took its place at the head of the line; ",
        }.get(run.reason or "", f"{run.reason}, and ")
        yield f"{who}{cause}{blocker_then(found, facts)}"
        yield from blocker_now(found, facts)


def blocker_then(found: RunFacts, facts: Facts) -> str:
    """What the blocker was doing: ``the run of 09:00 was still running on worker w3, 7m12s``."""
    run, blocker = found.run, found.blocker
    if blocker is None:
        return f"{run.blocked_by or 'another run'} blocked it, and its record is gone"
    name, at = named(blocker.run, run.job, facts), run.finished_at or run.queued_at
    last = next((a for a in reversed(blocker.run.attempts) if a.started_at <= at), None)
    started_at = last.started_at if last else blocker.run.started_at
    if started_at is None or started_at > at:
        return f"{name} came first"
    if last and last.finished_at and last.finished_at <= at:
        return f"{name} was between attempts"
    worker = on_worker(last.worker if last else None)
    return f"{name} was still running{worker}, {lasted(started_at, at)}{usual(blocker)}"


def blocker_now(found: RunFacts, facts: Facts) -> Iterator[str]:
    """One level deeper: how the blocker went on."""
    if found.blocker is None:
        return
    run = found.blocker.run
    when = f"at {facts.local.time(run.finished_at)}" if run.finished_at else "now"
    yield f"{named(run, found.run.job, facts)} {went(run.state)} {when}"


def missed(found: RunFacts, facts: Facts) -> Iterator[str]:
    run, spec = found.run, facts.job.spec
    window = span(spec.catchup_window.total_seconds())
    cause = {
        "window": f"when beat looked again, more than `catchup_window` had passed, {window}",
        "catchup": f"left out by `catchup: {spec.catchup.value}`",
        "edited": "the job's schedule was edited, or the job removed, while no beat led",
    }.get(run.reason or "", run.reason or "no reason is recorded")
    yield f"{of_range(run, facts)} missed: {cause}"
    unseen = f"no beat looked at the job until {facts.local.time(run.queued_at)}"
    yield no_beat_words(found, facts) or unseen


def excluded(found: RunFacts, facts: Facts) -> Iterator[str]:
    note = f" ({found.run.note})" if found.run.note else ""
    yield f"{of_range(found.run, facts)} excluded: the job was paused{note}"
    if facts.job.paused:
        yield pause_words(facts)


def of_range(run: Run, facts: Facts) -> str:
    """``09:05 was``, or ``09:05 is one of 12 ticks from 09:00 to 09:55 that were``."""
    time = facts.local.time
    at = time(facts.at or run.nominal_at)
    if run.ticks == 1:
        return f"{at} was"
    first, last = time(run.first_nominal_at or run.nominal_at), time(run.nominal_at)
    return f"{at} is one of {run.ticks:,} ticks from {first} to {last} that were"


def expired(found: RunFacts, facts: Facts) -> Iterator[str]:
    run, time = found.run, facts.local.time
    at = run.finished_at or run.queued_at
    limit = f"within {span(facts.job.spec.start_deadline.total_seconds())} (`start_deadline`)"
    if run.expires_at and run.expires_at <= at and not run.attempt:
        limit = f"until {time(run.expires_at)} (`expires` of its call)"
    queued = f"it was queued{in_queue(found)} at {time(run.queued_at)}"
    yield f"{subject(run, facts)} expired at {time(at)}: no worker started it {limit}; {queued}"
    yield from unsuited(found)
    yield from kept_from_starting(run, facts)
    if not run.sent_at:
        yield "the broker never accepted its message"


# Runs that have not started: waiting, queued.


def waiting(found: RunFacts, facts: Facts) -> Iterator[str]:
    run, time = found.run, facts.local.time
    since = found.admitted_at or run.queued_at
    who = f"{subject(run, facts)} has been waiting{since_words(since, facts)}, for "
    if run.is_held:
        most = timedelta(milliseconds=run.rules.max_wait_ms)
        until = f", until {time(since + most)} (`max_wait`)" if most >= timedelta() else ""
        yield f"{who}{run.after or upstream_words(found.upstreams)}{until}"
    elif run.due_at:
        count = f"was re-queued {times(run.requeues)}" if run.requeues else "is not to start"
        blocked = blocked_words(found, facts)
        yield f"{subject(run, facts)} {count} until {time(run.due_at)}{blocked}"
    else:
        yield f"{who}the lock {run.rules.lock or run.job!r}{blocked_words(found, facts)}"


def blocked_words(found: RunFacts, facts: Facts) -> str:
    """``: the run of 09:00 has been running on worker w3 since 09:00:01, 7m12s``"""
    run, blocker = found.run, found.blocker
    if blocker is None:
        return f": {run.blocked_by} blocked it" if run.blocked_by else ""
    other = blocker.run
    name = named(other, run.job, facts)
    if not other.state.is_open:
        return f": {name} blocked it and has ended; others may come before it"
    is_running = other.state is RunState.RUNNING
    since = since_words(other.started_at if is_running else other.queued_at, facts)
    worker = on_worker(other.worker if is_running else None)
    return f": {name} has been {other.state.value}{worker}{since}{usual(blocker)}"


def upstream_words(upstreams: Upstreams) -> str:
    """``extract (succeeded) and load (not yet)``"""
    return " and ".join(
        f"{name} ({went(state) if state else 'not yet'})" for name, state in upstreams.items()
    )


def queued(found: RunFacts, facts: Facts) -> Iterator[str]:
    run, since = found.run, since_words(found.run.queued_at, facts)
    yield f"{subject(run, facts)} has been queued{in_queue(found)}{since}"
    if found.drained_at:
        drained = facts.local.time(found.drained_at)
        undrain = f"`supervisor undrain {run.queue}`"
        yield f"its queue, {run.queue}, has been drained since {drained}: {undrain}"
    yield from grace(facts)
    is_blocked = found.blocker and found.blocker.run.state is RunState.RUNNING
    if is_blocked and facts.job.spec.serial:
        yield f"its serial queue is busy{blocked_words(found, facts)}"
    workers = found.workers
    if workers and not workers.count:
        yield f"no worker consumes {found.queue}" if found.queue else "no worker is running"
    elif workers:
        count, which = plural(workers.count, "worker"), f" for {found.queue}" if found.queue else ""
        yield f"{count} with {plural(workers.processes, 'process', 'es')} in all{which}"
    yield from unsuited(found)
    yield from of_its_message(found, facts)
    yield from kept_from_starting(run, facts)
    if run.reason:
        yield f"it is to start again: {harmless(run.reason)}"


def of_its_message(found: RunFacts, facts: Facts) -> Iterator[str]:
    """Of a run of several steps none is sent: each step has a message of its own."""
    run = found.run
    for step in found.steps:
        if step.run and step.run.state is RunState.QUEUED:
            sent = (
                f"sent at {facts.local.time(step.run.sent_at)}"
                if step.run.sent_at
                else "not sent yet"
            )
            queue = f" in {step.run.queue}" if step.run.queue else ""
            yield f"step {step.name} is queued{queue}, its message {sent}"
            yield from kept_from_starting(step.run, facts)
    if run.sent_at:
        often = f" {run.sends} times, last" if run.sends > 1 else ""
        yield f"its message was sent{often} at {facts.local.time(run.sent_at)}"
    elif not run.has_steps:
        yield "its message has not been sent yet"
    if not facts.beat_leads:
        yield "no beat leads: one would send a message that is missing"


def kept_from_starting(run: Run, facts: Facts) -> Iterator[str]:
    """``it was kept from starting 3 times, last at 09:05:01 by vm:1234: the queue is full``"""
    if found := run.obstacle:
        often = f" {times(found.times)}, last" if found.times > 1 else ""
        at = facts.local.time(found.at)
        yield f"it was kept from starting{often} at {at} by {found.by}{because(found.text)}"


def unsuited(found: RunFacts) -> Iterator[str]:
    """Why the workers that there are do not take it."""
    workers = found.workers
    if workers and workers.unknown_task:
        which = f"that consumes {found.queue} " if found.queue else ""
        yield f"no worker {which}knows the task {workers.unknown_task}"
    if workers and workers.unmet:
        page = "(docs/how-to/adopting.md, Pools)"
        yield f"their pool lacks what its job needs: {workers.unmet} {page}"


#: All other states are those of runs that started and ended.
SENTENCES: Mapping[RunState, Callable[[RunFacts, Facts], Iterator[str]]] = {
    RunState.SKIPPED: skipped,
    RunState.MISSED: missed,
    RunState.EXCLUDED: excluded,
    RunState.EXPIRED: expired,
    RunState.WAITING: waiting,
    RunState.QUEUED: queued,
    RunState.RUNNING: running,
    RunState.RETRYING: retrying,
}


def of_run(found: RunFacts, facts: Facts) -> Iterator[str]:
    return SENTENCES.get(found.run.state, ended)(found, facts)


# A job as it is now: what keeps it from running.


def obstacles(facts: Facts) -> Iterator[str]:
    """What keeps new ticks of the job from being emitted."""
    job, beat, time = facts.job, facts.beat, facts.local.time
    if job.paused:
        yield pause_words(facts)
    if facts.refusal:
        yield f"nothing starts, since {harmless(facts.refusal)}"
    elif not facts.beat_leads and job.spec.has_schedule:
        last = beat.last_tick_at
        yield f"no beat has led since {time(last)}" if last else "no beat has led yet"
    yield from grace(facts)


def grace(facts: Facts) -> Iterator[str]:
    if facts.grace_until:
        yield f"the server is new: nothing starts before {facts.local.time(facts.grace_until)}"


def pause_words(facts: Facts) -> str:
    """``the job has been paused since 09:00, until 12:00: stocktaking``"""
    job, time = facts.job, facts.local.time
    since = f"has been paused since {time(facts.paused_at)}" if facts.paused_at else "is paused"
    until = f", until {time(job.paused_until)}" if job.paused_until else ""
    return f"the job {since}{until}{because(job.paused_note)}"


def next_tick(facts: Facts) -> str:
    job, spec = facts.job, facts.job.spec
    if not spec.has_schedule and spec.after:
        return f"{spec.name} has no schedule: it runs after {upstream_words(facts.upstreams)}"
    if not spec.has_schedule:
        at_start = "at start, and " if spec.run_at_start else ""
        return f"{spec.name} has no schedule: it runs {at_start}when code or a person asks for it"
    after = facts.calendar.after if facts.calendar else None
    if after is None:
        return "there are no more ticks"
    is_excluded = job.paused and (job.paused_until is None or after < job.paused_until)
    fate = "; the pause excludes it" if is_excluded else ""
    return f"the next tick is at {facts.local.time(after)}, {ahead(after, facts.now)}{fate}"


# Times without a record: not a tick, still to come, not emitted, or long ago.


def without_record(at: datetime, facts: Facts) -> Iterator[str]:
    calendar, spec, time = facts.calendar, facts.job.spec, facts.local.time(at)
    if calendar is None:
        yield f"{spec.name} has no schedule, and no run for {time}"
        return
    if not calendar.is_tick:
        zone = f" {spec.timezone}" if spec.every is None and spec.timezone != "UTC" else ""
        schedule = f"its schedule is {spec.schedule}{zone}"
        cause = "`exclude` removes it" if calendar.excluded else schedule
        yield f"{time} is not a tick of {spec.name}: {cause}"
    elif at > facts.now:
        yield f"{time} is still to come, {ahead(at, facts.now)}"
        yield from obstacles(facts)
    elif facts.watermark is None or at > facts.watermark:
        yield f"{time} was due {facts.local.since(at)} ago and has not been emitted yet"
        yield from obstacles(facts)
    else:
        kept = f"the last {spec.history} runs are kept, for up to seven days"
        yield f"there is no record of {time}: {kept}; or the job was loaded or edited after it"
    if calendar.clock_change:
        yield f"clocks change on {clock_change_text(calendar.clock_change)}"
    if not calendar.is_tick and calendar.after:
        yield f"the next tick after it is {facts.local.time(calendar.after)}"
