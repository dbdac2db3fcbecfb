"""`why`: the sentences of an answer; the outcome first, then its causes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import chain

from supervisor.job.run import Run, RunState
from supervisor.operate.planning import excluded
from supervisor.operate.plans import clock_change_text
from supervisor.operate.question import Question, is_tick
from supervisor.operate.run_sentences import (
    grace,
    of_run,
    pause_words,
    upstream_words,
    with_causes,
)
from supervisor.operate.words import ahead, harmless, plural
from supervisor.schedule import schedule_of
from supervisor.schedule.clock_changes import clock_changes
from supervisor.schedule.deadlines import due_at
from supervisor.times import DAY, INSTANT


def answer(question: Question) -> list[str]:
    """The chain of causes, a sentence each, the outcome first; none of them twice."""
    if question.at is None:
        sentences = of_job(question)
    elif question.run is None:
        sentences = without_record(question.at, question)
    else:
        sentences = chain(of_run(question.run, question), deadline_of(question.run.run, question))
    return list(dict.fromkeys(sentences))


def of_job(question: Question) -> Iterator[str]:
    """The open runs, or else the newest run; and what keeps newer ones from starting."""
    before: set[str] = set()
    for view in question.open_runs:
        heading, *causes = of_run(view, question)
        yield from with_causes(heading, causes, before)
    if (more := question.open_count - len(question.open_runs)) > 0:
        yield f"and {plural(more, 'more run')}, waiting, queued or running"
    if question.run is None:
        yield f"{question.job.spec.name} has no runs yet"
    elif not question.run.run.state.is_open:
        yield from of_run(question.run, question)
    due = question.job.deadline
    if due and due.tick <= question.now:
        yield deadline(due.tick, due.at, question)
    yield from obstacles(question)
    yield next_tick(question)


def deadline_of(run: Run, question: Question) -> Iterator[str]:
    """The deadline of a tick's run that is open, or succeeded too late."""
    due = due_at(question.job.spec, run.nominal_at) if is_tick(run) else None
    if due is None or question.job.paused:
        return
    is_late = run.state is RunState.SUCCEEDED and run.finished_at and run.finished_at > due
    if run.state.is_open or is_late:
        yield deadline(run.nominal_at, due, question)


def deadline(tick: datetime, due: datetime, question: Question) -> str:
    """``02:00 had to succeed by 06:00 UTC, 4m ago``"""
    time, by = question.local.time, f"{question.local.time(due)} {question.job.spec.timezone}"
    if question.now > due:
        return f"{time(tick)} had to succeed by {by}, {question.local.since(due)} ago"
    return f"{time(tick)} has to succeed by {by}, {ahead(due, question.now)}"


# A job as it is now: what keeps it from running.


def obstacles(question: Question) -> Iterator[str]:
    """What keeps new ticks of the job from being emitted."""
    job, beat, time = question.job, question.beat, question.local.time
    if job.paused:
        yield pause_words(question)
    if question.refusal:
        yield f"nothing starts, since {harmless(question.refusal)}"
    elif not question.beat_leads and job.spec.has_schedule:
        last = beat.last_tick_at
        yield f"no beat has led since {time(last)}" if last else "no beat has led yet"
    yield from grace(question)


def next_tick(question: Question) -> str:
    job, spec = question.job, question.job.spec
    if not spec.has_schedule and spec.after:
        return f"{spec.name} has no schedule: it runs after {upstream_words(question.upstreams)}"
    if not spec.has_schedule:
        at_start = "at start, and " if spec.run_at_start else ""
        return f"{spec.name} has no schedule: it runs {at_start}when code or a person asks for it"
    after = schedule_of(spec).next_after(question.now)
    if after is None:
        return "there are no more ticks"
    is_excluded = job.paused and (job.paused_until is None or after < job.paused_until)
    fate = "; the pause excludes it" if is_excluded else ""
    return f"the next tick is at {question.local.time(after)}, {ahead(after, question.now)}{fate}"


# Times without a record: not a tick, still to come, not emitted, or long ago.


def without_record(at: datetime, question: Question) -> Iterator[str]:
    spec, time = question.job.spec, question.local.time(at)
    if not spec.has_schedule:
        yield f"{spec.name} has no schedule, and no run for {time}"
        return
    following = schedule_of(spec).next_after(at - INSTANT)
    if following != at:
        zone = f" {spec.timezone}" if spec.every is None and spec.timezone != "UTC" else ""
        is_excluded = at in excluded(spec, at - INSTANT, at)
        cause = "`exclude` removes it" if is_excluded else f"its schedule is {spec.schedule}{zone}"
        yield f"{time} is not a tick of {spec.name}: {cause}"
    elif at > question.now:
        yield f"{time} is still to come, {ahead(at, question.now)}"
        yield from obstacles(question)
    elif question.watermark is None or at > question.watermark:
        yield f"{time} was due {question.local.since(at)} ago and has not been emitted yet"
        yield from obstacles(question)
    else:
        kept = f"the last {spec.history} runs are kept, for up to seven days"
        yield f"there is no record of {time}: {kept}; or the job was loaded or edited after it"
    clock = at.astimezone(spec.zone).replace(tzinfo=None, fold=0)
    for change in clock_changes(spec, at - DAY, at + DAY):
        if clock in (*change.times, *change.runs_at):
            yield f"clocks change on {clock_change_text(change)}"
    if following and following != at:
        yield f"the next tick after it is {question.local.time(following)}"
