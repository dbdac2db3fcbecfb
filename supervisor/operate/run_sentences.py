"""The sentences about one run: how it ended or what it is doing, and then the causes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from supervisor.job.policies import OnCrash
from supervisor.job.run import Run, RunState
from supervisor.job.run_ids import start_id
from supervisor.operate.question import Question, RunView, Upstreams, is_tick
from supervisor.operate.words import harmless, lasted, listed, plural, span

#: Up to so many steps are listed in a sentence.
MOST_STEPS = 5

#: A shorter delay on the way to a worker is not mentioned.
WORTH_MENTIONING = timedelta(seconds=2)


# Words that many sentences share.


def subject(run: Run, question: Question) -> str:
    """The run at the beginning of a sentence: ``09:05``, or the id of one that is not a tick's."""
    time = question.local.time(run.nominal_at)
    if run.id == start_id(run.job, run.nominal_at):
        return f"the run at start of {time}"
    return time if is_tick(run) else run.id


def named(run: Run, job: str, question: Question) -> str:
    """The run within a sentence about a run of `job`: ``the run of 09:00``."""
    of = "the run" if run.job == job else f"{run.job}'s run"
    return f"{of} of {question.local.time(run.nominal_at)}" if is_tick(run) else f"the run {run.id}"


def went(state: RunState) -> str:
    """``is running``, ``failed``, ``was skipped``"""
    if state.is_open:
        return f"is {state.words}"
    verbs = (RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT, RunState.EXPIRED)
    return state.words if state in verbs else f"was {state.words}"


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def because(reason: str | None) -> str:
    return f": {harmless(reason)}" if reason else ""


def on_worker(worker: str | None) -> str:
    """Empty for a run of several steps, each of which has a worker of its own."""
    return f" on worker {worker}" if worker else ""


def in_queue(view: RunView) -> str:
    return f" in {view.queue}" if view.queue else ""


def usual(view: RunView) -> str:
    return f", usually finishes within {span(view.usual)}" if view.usual else ""


def since_words(start: datetime | None, question: Question) -> str:
    """`` since 09:00:01, 7m12s``"""
    return f" since {question.local.time(start)}, {question.local.since(start)}" if start else ""


def no_beat_words(view: RunView, question: Question) -> str:
    if view.no_beat is None:
        return ""
    start, end = view.no_beat
    time = question.local.time
    return f"no beat led from {time(start)} to {time(end)}, {lasted(start, end)}"


def grace(question: Question) -> Iterator[str]:
    if question.grace_until:
        ready_at = question.local.time(question.grace_until)
        yield f"the server is new: nothing starts before {ready_at}"


def pause_words(question: Question) -> str:
    """``the job has been paused since 09:00, until 12:00: stocktaking``"""
    job, time = question.job, question.local.time
    since = (
        f"has been paused since {time(question.paused_at)}" if question.paused_at else "is paused"
    )
    until = f", until {time(job.paused_until)}" if job.paused_until else ""
    return f"the job {since}{until}{because(job.paused_note)}"


# Runs that started.


def ended(view: RunView, question: Question) -> Iterator[str]:
    run, spec, how = view.run, question.job.spec, ""
    last = run.attempts[-1] if run.attempts else None
    if run.finished_at:
        how = f" at {question.local.time(run.finished_at)}, before it started"
    if run.finished_at and last:
        took = lasted(last.started_at, last.finished_at or run.finished_at)
        how = f" at {question.local.time(run.finished_at)}, after {took}{on_worker(last.worker)}"
    yield f"{subject(run, question)} {went(run.state)}{how}{because(run.reason)}"
    if run.state is RunState.LOST:
        limit = f"max_crashes: {spec.max_crashes}"
        limit = "on_crash: fail" if spec.on_crash is OnCrash.FAIL else limit
        yield f"its workers died {times(run.crashes)}, and it is not run again: `{limit}`"
    elif run.state in (RunState.FAILED, RunState.TIMED_OUT) and last and not run.has_steps:
        tried = times(last.number - run.crashes)
        yield f"it was tried {tried}; `max_retries` is {spec.max_retries}"
    yield from story(view, question)


def running(view: RunView, question: Question) -> Iterator[str]:
    run, since = view.run, since_words(view.run.started_at or view.run.queued_at, question)
    yield f"{subject(run, question)} has been running{on_worker(run.worker)}{since}{usual(view)}"
    yield from story(view, question)
    yield from of_its_steps(view, question)


def retrying(view: RunView, question: Question) -> Iterator[str]:
    run, most = view.run, question.job.spec.max_retries + 1 + view.run.crashes
    due = f" at {question.local.time(run.due_at)}" if run.due_at else ""
    failed = f"attempt {run.attempt} of {most} failed{because(run.reason)}"
    yield f"{subject(run, question)} is to be retried{due}: {failed}"


def story(view: RunView, question: Question) -> Iterator[str]:
    """What there is to say of a run that has started."""
    run, most = view.run, span(view.run.rules.max_duration_ms / 1000)
    if run.duration_fault == "max_duration" or run.is_too_long(question.now):
        yield f"an attempt took longer than `max_duration`, {most}"
    elif run.duration_fault == "min_duration":
        least = span(run.rules.min_duration_ms / 1000)
        yield f"it took less than `min_duration`, {least}: it may have found nothing to do"
    for step in view.steps:
        if step.run and step.run.state not in (RunState.SUCCEEDED, RunState.QUEUED):
            how = f"{went(step.run.state)}{on_worker(step.run.worker)}"
            yield f"step {step.name} {how}{because(step.run.reason)}"
    if len(run.attempts) > 1:
        before = run.attempts[-2]
        how = f"{went(RunState(before.outcome or RunState.LOST))}{on_worker(before.worker)}"
        yield f"attempt {before.number} {how}{because(before.reason)}"
    yield from lateness(view, question)
    if run.overlapped_with:
        yield f"it ran at the same time as {run.overlapped_with}"


def lateness(view: RunView, question: Question) -> Iterator[str]:
    """Why a run started late: each part of its way to a worker that took long."""
    run = view.run
    if not run.attempts or run.attempts_dropped:
        return
    started_at, admitted_at = run.attempts[0].started_at, view.admitted_at or run.nominal_at
    due = admitted_at if run.is_follower else run.nominal_at
    if started_at - due < WORTH_MENTIONING:
        return
    yield f"it started {lasted(due, started_at)} late, at {question.local.time(started_at)}"
    if admitted_at - due >= WORTH_MENTIONING:
        late = f"beat emitted it {lasted(due, admitted_at)} after its time"
        yield no_beat_words(view, question) or late
    if run.queued_at > started_at:  # for another attempt
        return
    if run.queued_at - admitted_at >= WORTH_MENTIONING:
        other = named(view.blocker.run, run.job, question) if view.blocker else run.blocked_by
        yield f"it waited {lasted(admitted_at, run.queued_at)} for {other or 'what it follows'}"
    if started_at - run.queued_at >= WORTH_MENTIONING:
        waited = lasted(run.queued_at, started_at)
        yield f"it was queued{in_queue(view)} for {waited} until a worker started it"


# Ticks that never ran: skipped, missed, excluded, expired.


def skipped(view: RunView, question: Question) -> Iterator[str]:
    run, spec = view.run, question.job.spec
    who = f"{subject(run, question)} was skipped: "
    waited = lasted(view.admitted_at or run.queued_at, run.finished_at or run.queued_at)
    if run.reason == "upstream":
        other = view.blocker.run if view.blocker else None
        name = named(other, run.job, question) if other else run.blocked_by
        how = f"{went(other.state)}{because(other.reason)}" if other else "did not succeed"
        yield f"{who}{name}, which it follows, {how}"
    elif run.waits_for_others and run.reason == "wait_expired":
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
        yield f"{who}{cause}{blocker_then(view, question)}"
        yield from blocker_now(view, question)


def blocker_then(view: RunView, question: Question) -> str:
    """What the blocker was doing: ``the run of 09:00 was still running on worker w3, 7m12s``."""
    run, blocker = view.run, view.blocker
    if blocker is None:
        return f"{run.blocked_by or 'another run'} blocked it, and its record is gone"
    name, at = named(blocker.run, run.job, question), run.finished_at or run.queued_at
    last = next((a for a in reversed(blocker.run.attempts) if a.started_at <= at), None)
    started_at = last.started_at if last else blocker.run.started_at
    if started_at is None or started_at > at:
        return f"{name} came first"
    if last and last.finished_at and last.finished_at <= at:
        return f"{name} was between attempts"
    worker = on_worker(last.worker if last else None)
    return f"{name} was still running{worker}, {lasted(started_at, at)}{usual(blocker)}"


def blocker_now(view: RunView, question: Question) -> Iterator[str]:
    """One level deeper: how the blocker went on."""
    if view.blocker is None:
        return
    run = view.blocker.run
    when = f"at {question.local.time(run.finished_at)}" if run.finished_at else "now"
    yield f"{named(run, view.run.job, question)} {went(run.state)} {when}"


def missed(view: RunView, question: Question) -> Iterator[str]:
    run, spec = view.run, question.job.spec
    window = span(spec.catchup_window.total_seconds())
    cause = {
        "window": f"when beat looked again, more than `catchup_window` had passed, {window}",
        "catchup": f"left out by `catchup: {spec.catchup.value}`",
        "edited": "the job's schedule was edited, or the job removed, while no beat led",
    }.get(run.reason or "", run.reason or "no reason is recorded")
    yield f"{of_range(run, question)} missed: {cause}"
    unseen = f"no beat looked at the job until {question.local.time(run.queued_at)}"
    yield no_beat_words(view, question) or unseen


def excluded(view: RunView, question: Question) -> Iterator[str]:
    note = f" ({view.run.note})" if view.run.note else ""
    yield f"{of_range(view.run, question)} excluded: the job was paused{note}"
    if question.job.paused:
        yield pause_words(question)


def of_range(run: Run, question: Question) -> str:
    """``09:05 was``, or ``09:05 is one of 12 ticks from 09:00 to 09:55 that were``."""
    time = question.local.time
    at = time(question.at or run.nominal_at)
    if run.ticks == 1:
        return f"{at} was"
    first, last = time(run.first_nominal_at or run.nominal_at), time(run.nominal_at)
    return f"{at} is one of {run.ticks:,} ticks from {first} to {last} that were"


def expired(view: RunView, question: Question) -> Iterator[str]:
    run, time = view.run, question.local.time
    at = run.finished_at or run.queued_at
    limit = f"within {span(question.job.spec.start_deadline.total_seconds())} (`start_deadline`)"
    if run.expires_at and run.expires_at <= at and not run.attempt:
        limit = f"until {time(run.expires_at)} (`expires` of its call)"
    queued = f"it was queued{in_queue(view)} at {time(run.queued_at)}"
    yield f"{subject(run, question)} expired at {time(at)}: no worker started it {limit}; {queued}"
    yield from unsuited(view)
    yield from kept_from_starting(run, question)
    if not run.sent_at:
        yield "the broker never accepted its message"


# Runs that have not started: waiting, queued.


def waiting(view: RunView, question: Question) -> Iterator[str]:
    run, time = view.run, question.local.time
    since = view.admitted_at or run.queued_at
    who = f"{subject(run, question)} has been waiting{since_words(since, question)}, for "
    if run.waits_for_others:
        most = timedelta(milliseconds=run.rules.max_wait_ms)
        until = f", until {time(since + most)} (`max_wait`)" if most >= timedelta() else ""
        yield f"{who}{run.after or upstream_words(view.upstreams)}{until}"
    elif run.due_at:
        count = f"was re-queued {times(run.requeues)}" if run.requeues else "is not to start"
        blocked = blocked_words(view, question)
        yield f"{subject(run, question)} {count} until {time(run.due_at)}{blocked}"
    else:
        yield f"{who}the lock {run.rules.lock or run.job!r}{blocked_words(view, question)}"


def blocked_words(view: RunView, question: Question) -> str:
    """``: the run of 09:00 has been running on worker w3 since 09:00:01, 7m12s``"""
    run, blocker = view.run, view.blocker
    if blocker is None:
        return f": {run.blocked_by} blocked it" if run.blocked_by else ""
    other = blocker.run
    name = named(other, run.job, question)
    if not other.state.is_open:
        return f": {name} blocked it and has ended; others may come before it"
    is_running = other.state is RunState.RUNNING
    since = since_words(other.started_at if is_running else other.queued_at, question)
    worker = on_worker(other.worker if is_running else None)
    return f": {name} has been {other.state.words}{worker}{since}{usual(blocker)}"


def upstream_words(upstreams: Upstreams) -> str:
    """``extract (succeeded) and load (not yet)``"""
    return " and ".join(
        f"{name} ({went(state) if state else 'not yet'})" for name, state in upstreams.items()
    )


def queued(view: RunView, question: Question) -> Iterator[str]:
    since = since_words(view.run.queued_at, question)
    yield f"{subject(view.run, question)} has been queued{in_queue(view)}{since}"
    if view.run.has_steps:
        yield from of_its_steps(view, question)
    else:
        yield from what_it_waits_for(view, question)


def of_its_steps(view: RunView, question: Question) -> Iterator[str]:
    """The steps that are queued, those alike together, with what they wait for; and later ones."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, step in view.queued_steps.items():
        queued = f"been queued{in_queue(step)}{since_words(step.run.queued_at, question)}"
        alike.setdefault((queued, *what_it_waits_for(step, question)), []).append(name)
    before: set[str] = set()
    for (queued, *causes), names in alike.items():
        verb = "step {} has" if len(names) == 1 else "steps {} have"
        heading = f"{verb.format(listed(names, MOST_STEPS))} {queued}"
        yield from with_causes(heading, causes, before)
    present = [step.name for step in view.steps if step.run and step.run.state.is_open]
    later = [step.name for step in view.steps if not (step.run or step.done)]
    if present and later:
        wait = "waits" if len(later) == 1 else "wait"
        others = listed(present, MOST_STEPS)
        yield f"step {listed(later, MOST_STEPS)} {wait} for the end of {others}"


def with_causes(heading: str, causes: Sequence[str], before: set[str]) -> Iterator[str]:
    """Causes that were named `before` follow within the heading: no sentence comes twice."""
    yield "; ".join((heading, *(cause for cause in causes if cause in before)))
    yield from (cause for cause in causes if cause not in before)
    before.update(causes)


def what_it_waits_for(view: RunView, question: Question) -> Iterator[str]:
    """Of a run, a step or an item that is queued."""
    run = view.run
    if view.drained_at:
        drained = question.local.time(view.drained_at)
        undrain = f"`supervisor undrain {run.queue}`"
        yield f"its queue, {run.queue}, has been drained since {drained}: {undrain}"
    yield from grace(question)
    is_blocked = view.blocker and view.blocker.run.state is RunState.RUNNING
    if is_blocked and question.job.spec.serial:
        yield f"its serial queue is busy{blocked_words(view, question)}"
    workers = view.workers
    if workers and not workers.count:
        yield f"no worker consumes {view.queue}" if view.queue else "no worker is running"
    elif workers:
        count, which = plural(workers.count, "worker"), f" for {view.queue}" if view.queue else ""
        wait = f", where {workers.messages:,} messages wait" if (workers.messages or 0) > 1 else ""
        yield f"{count} with {plural(workers.processes, 'process', 'es')} in all{which}{wait}"
    yield from unsuited(view)
    yield from of_its_message(view, question)
    yield from kept_from_starting(run, question)
    if run.reason:
        yield f"it is to start again: {harmless(run.reason)}"


def of_its_message(view: RunView, question: Question) -> Iterator[str]:
    run = view.run
    if run.sent_at:
        often = f" {run.sends} times, last" if run.sends > 1 else ""
        yield f"its message was sent{often} at {question.local.time(run.sent_at)}"
    else:
        yield "its message has not been sent yet"
    if not question.beat_leads:
        yield "no beat leads: one would send a message that is missing"


def kept_from_starting(run: Run, question: Question) -> Iterator[str]:
    """``it was kept from starting 3 times, last at 09:05:01 by vm:1234: the queue is full``"""
    if obstacle := run.obstacle:
        often = f" {times(obstacle.times)}, last" if obstacle.times > 1 else ""
        at = question.local.time(obstacle.at)
        yield f"it was kept from starting{often} at {at} by {obstacle.by}{because(obstacle.text)}"


def unsuited(view: RunView) -> Iterator[str]:
    """Why the workers that there are do not take it."""
    workers = view.workers
    if workers and workers.unknown_task:
        which = f"that consumes {view.queue} " if view.queue else ""
        yield f"no worker {which}knows the task {workers.unknown_task}"
    if workers and workers.unmet:
        page = "(docs/how-to/adopting.md, Pools)"
        yield f"their pool lacks what its job needs: {workers.unmet} {page}"


#: All other states are those of runs that started and ended.
SENTENCES: Mapping[RunState, Callable[[RunView, Question], Iterator[str]]] = {
    RunState.SKIPPED: skipped,
    RunState.MISSED: missed,
    RunState.EXCLUDED: excluded,
    RunState.EXPIRED: expired,
    RunState.WAITING: waiting,
    RunState.QUEUED: queued,
    RunState.RUNNING: running,
    RunState.RETRYING: retrying,
}


def of_run(view: RunView, question: Question) -> Iterator[str]:
    return SENTENCES.get(view.run.state, ended)(view, question)
