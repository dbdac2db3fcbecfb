"""Plans, foreseen overlaps and simulations, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from supervisor.job.changes import Changes, edit_text
from supervisor.job.policies import OverlapPolicy
from supervisor.job.spec import JobSpec
from supervisor.operate.shapes import iso_utc
from supervisor.operate.tables import Columns
from supervisor.operate.words import duration, plural, span
from supervisor.ticks.clock_changes import Surprise
from supervisor.ticks.plan import Durations, Foresight, JobPlan, Misfit, Plan
from supervisor.ticks.simulation import JobTally, Lateness, Queue, QueueTally, Tally

# A plan.


#: More times than this are given as their number, the first and the last.
MOST_LISTED = 3


def plan_lines(plan: Plan) -> Iterator[str]:
    """Jobs in order of their names: + added, ~ changed, - removed; then the counts."""
    added = set(plan.changes.added)
    blocks = {
        job.spec.name: job_lines(job, "+" if job.spec.name in added else "~") for job in plan.jobs
    }
    blocks |= {name: iter((f"- {name}",)) for name in plan.changes.removed}
    for name in sorted(blocks):
        yield from blocks[name]
    yield summary(plan.changes)


def summary(changes: Changes) -> str:
    counts = (len(changes.added), len(changes.changed), len(changes.removed), changes.unchanged)
    words = ("added", "changed", "removed", "unchanged")
    return ", ".join(f"{count:,} {word}" for count, word in zip(counts, words, strict=True))


def job_lines(job: JobPlan, sign: str) -> Iterator[str]:
    yield f"{sign} {job.spec.name}  {timed(job.spec)}"
    facts = [(edit.key, edit_text(edit)) for edit in job.edits]
    facts += tick_facts(job)
    facts += [("clocks", surprise_text(surprise)) for surprise in job.surprises]
    if job.durations:
        facts.append(("durations", durations_text(job.durations)))
    if job.durations and job.foresight:
        facts.append(("overlaps", overlaps_text(job.spec, job.durations, job.foresight)))
    facts += [("deadline", misfit_text(job.spec, misfit)) for misfit in job.misfits]
    width, previous = max(len(word) for word, _ in facts), ""
    for word, fact in facts:
        yield f"    {'' if word == previous else word:<{width}}  {fact}"
        previous = word


def timed(spec: JobSpec) -> str:
    return spec.schedule if spec.timezone == "UTC" else f"{spec.schedule} {spec.timezone}"


def tick_facts(job: JobPlan) -> list[tuple[str, str]]:
    after = ticks_text(job.ticks_after, job.spec)
    if job.before is None or job.ticks_before == job.ticks_after:
        return [("next", after)]
    return [("before", ticks_text(job.ticks_before, job.before)), ("after", after)]


def ticks_text(ticks: Sequence[datetime], spec: JobSpec) -> str:
    """The ticks in the job's zone, with the day and the offset where they change."""
    local = [tick.astimezone(spec.zone) for tick in ticks]
    parts, shown = [], ("", "")
    for tick, time in zip(local, clock_times(local), strict=True):
        day, offset = f"{tick:%a %Y-%m-%d} ", f" {tick:%Z}"
        parts.append(
            f"{day if day != shown[0] else ''}{time}{offset if offset != shown[1] else ''}"
        )
        shown = (day, offset)
    return ", ".join(parts) or "none"


def clock_times(times: Sequence[datetime]) -> list[str]:
    """The times, with seconds if any of them has some."""
    exactly = any(time.second for time in times)
    return [f"{time:%H:%M:%S}" if exactly else f"{time:%H:%M}" for time in times]


def surprise_text(surprise: Surprise) -> str:
    """``2027-03-28: 02:30 does not exist in Europe/Berlin, runs at 03:00``"""
    times, several = times_text(surprise.times), len(surprise.times) > 1
    day = f"{surprise.times[0]:%Y-%m-%d}"
    if surprise.is_gap:
        what = f"{'do' if several else 'does'} not exist in {surprise.zone}"
    else:
        what = f"{'come' if several else 'comes'} twice in {surprise.zone}"
    return f"{day}: {times} {what}, {outcome(surprise)}"


def outcome(surprise: Surprise) -> str:
    verb = "run" if len(surprise.times) > 1 else "runs"
    if surprise.is_gap:
        if not surprise.runs_at:
            return "no run of their own" if verb == "run" else "no run of its own"
        one = "one run" if len(surprise.runs_at) < len(surprise.times) else verb
        return f"{one} at {times_text(surprise.runs_at)}"
    match surprise.first, surprise.second:
        case True, True:
            return f"{verb} both times"
        case True, False:
            return f"{verb} the first time"
        case False, True:
            return f"{verb} the second time"
        case _:
            return f"{verb} at neither"


def times_text(times: Sequence[datetime]) -> str:
    words = clock_times(times)
    if len(words) <= MOST_LISTED:
        return ", ".join(words)
    return f"{len(words)} times from {words[0]} to {words[-1]}"


def durations_text(durations: Durations) -> str:
    over = " or more" if durations.over else ""
    attempts = plural(durations.observations, "attempt")
    quantiles = f"p50 {span(durations.p50)}, p95 {span(durations.p95)}, p99 {span(durations.p99)}"
    return f"{quantiles}{over}, of {attempts}"


def misfit_text(spec: JobSpec, misfit: Misfit) -> str:
    """``usually up to 22m, and the run of 05:50 is due by 06:00 (`due_by`)``"""
    lasted = span(misfit.seconds)
    if misfit.deadline:
        tick, at = (m.astimezone(spec.zone) for m in (misfit.deadline.tick, misfit.deadline.at))
        words = clock_times([tick, at])
        return f"usually up to {lasted}, and the run of {words[0]} is due by {words[1]} (`due_by`)"
    bound = getattr(spec, misfit.key).total_seconds()
    if misfit.key == "max_duration":
        return f"usually up to {lasted}, longer than `max_duration`, {span(bound)}"
    return f"half of the runs take up to {lasted}, less than `min_duration`, {span(bound)}"


def plan_shape(plan: Plan) -> dict[str, Any]:
    """`jobs`: the added and changed ones; every instant in UTC."""
    added = set(plan.changes.added)
    return {
        "added": plan.changes.added,
        "changed": plan.changes.changed,
        "removed": plan.changes.removed,
        "unchanged": plan.changes.unchanged,
        "jobs": [job_shape(job, is_added=job.spec.name in added) for job in plan.jobs],
    }


def job_shape(job: JobPlan, *, is_added: bool) -> dict[str, Any]:
    return {
        "job": job.spec.name,
        "change": "added" if is_added else "changed",
        "schedule": job.spec.schedule,
        "timezone": job.spec.timezone,
        "keys": {edit.key: {"old": edit.old, "new": edit.new} for edit in job.edits},
        "ticks_before": [iso_utc(tick) for tick in job.ticks_before],
        "ticks_after": [iso_utc(tick) for tick in job.ticks_after],
        "clock_changes": [surprise_shape(surprise) for surprise in job.surprises],
        "durations": durations_shape(job.durations) if job.durations else None,
        "overlaps": foresight_shape(job.foresight) if job.foresight else None,
        "deadlines": [misfit_shape(job.spec, misfit) for misfit in job.misfits],
    }


def surprise_shape(surprise: Surprise) -> dict[str, Any]:
    """Local times, without an offset."""
    return {
        "timezone": surprise.zone,
        "kind": "gap" if surprise.is_gap else "fold",
        "times": [time.isoformat() for time in surprise.times],
        "runs_at": [time.isoformat() for time in surprise.runs_at],
        "runs_first_time": surprise.first,
        "runs_second_time": surprise.second,
        "text": surprise_text(surprise),
    }


def durations_shape(durations: Durations) -> dict[str, Any]:
    return {
        "observations": durations.observations,
        "p50_seconds": durations.p50,
        "p95_seconds": durations.p95,
        "p99_seconds": durations.p99,
        "is_beyond_buckets": durations.over,
    }


def misfit_shape(spec: JobSpec, misfit: Misfit) -> dict[str, Any]:
    due = misfit.deadline
    return {
        "key": misfit.key,
        "usual_seconds": misfit.seconds,
        "tick": iso_utc(due.tick) if due else None,
        "due_at": iso_utc(due.at) if due else None,
        "text": misfit_text(spec, misfit),
    }


# Expected overlaps.


#: A frequency is given by the first of these periods, in days, in which it is one or more.
PERIODS = (("day", 1), ("week", 7), ("month", 30), ("year", 365))


def overlaps_text(spec: JobSpec, durations: Durations, foresight: Foresight) -> str:
    """``p99 is 6m12s, every 5m: about 14 skips a day; a safe interval is 7m``"""
    distance = span(foresight.distance.total_seconds())
    apart = spec.schedule if spec.every else f"ticks {distance} apart"
    p99 = f"p99 is {'over ' if durations.over else ''}{span(durations.p99)}"
    advice = ""
    if foresight.safe_interval and foresight.safe_interval > foresight.distance:
        advice = f"; a safe interval is {span(foresight.safe_interval.total_seconds())}"
    return f"{p99}, {apart}: {', '.join(consequences(spec, foresight))}{advice}"


def consequences(spec: JobSpec, foresight: Foresight) -> Iterator[str]:
    if foresight.replacements:
        yield often(foresight.replacements, "replaced run")
    if foresight.growth and spec.overlap is OverlapPolicy.QUEUE_ALL:
        growth = often(foresight.growth, "run")
        most = f"{spec.max_waiting:,}"
        yield f"the backlog grows by {growth} until {most} wait, then runs are skipped"
        return
    if foresight.requeues:
        yield often(foresight.requeues, "re-queue")
    elif foresight.waits:
        yield f"{often(foresight.waits, 'wait')} of up to {span(foresight.longest_wait)}"
    if foresight.skips:
        yield often(foresight.skips, "skip")
    if spec.most_running is None:
        yield f"up to {foresight.most_running} runs at once"


def often(a_day: float, noun: str) -> str:
    """``about 14 skips a day``, ``about 1 skip a month``"""
    period, days = next((p for p in PERIODS if a_day * p[1] >= 1), PERIODS[-1])
    count = round(a_day * days)
    if not count:
        return f"less than one {noun} a {period}"
    return f"about {plural(count, noun)} a {period}"


def foresight_shape(foresight: Foresight) -> dict[str, Any]:
    safe = foresight.safe_interval
    return {
        "distance_seconds": foresight.distance.total_seconds(),
        "skips_a_day": round(foresight.skips, 2),
        "waits_a_day": round(foresight.waits, 2),
        "longest_wait_seconds": round(foresight.longest_wait, 3),
        "requeues_a_day": round(foresight.requeues, 2),
        "replacements_a_day": round(foresight.replacements, 2),
        "growth_a_day": round(foresight.growth, 2),
        "most_running": foresight.most_running,
        "safe_interval_seconds": safe.total_seconds() if safe else None,
    }


# A simulation.


SIMULATED_COLUMNS = Columns.named(
    "job, duration, ticks, started, skipped, not started, waited, requeued, late p50, late max",
    folds="skipped, not started, waited",
    drops="requeued, late p50, duration, late max",
)


QUEUE_COLUMNS = Columns.named(
    "queue, slots, busy, longest, late p50, late max", drops="late p50, late max"
)


def job_rows(tally: Tally, durations: Mapping[str, str]) -> Iterator[Sequence[str]]:
    """`durations`: by job, the assumed duration of its runs."""
    for name, lasts in sorted(durations.items()):
        job = tally.jobs.get(name, JobTally())
        yield (
            name,
            lasts,
            str(job.ticks),
            str(job.started),
            by_reason(job.skipped),
            by_reason(not_started(job)),
            waits_words(job.waits),
            str(job.requeued),
            *lateness_words(job.lateness),
        )


def queue_rows(tally: Tally, slots: int | None) -> Iterator[Sequence[str]]:
    for name, queue in sorted(tally.queues.items()):
        yield (
            name,
            slots_of(name, queue, slots),
            f"{busy_share(name, queue, slots, tally.seconds):.0%}",
            str(queue.longest),
            *lateness_words(queue.lateness),
        )


def slots_of(name: str, queue: QueueTally, slots: int | None) -> str:
    """The slots of the queue; without a limit, how many would have been enough."""
    given = Queue.named(name, slots).slots
    return f"{queue.most_busy} needed" if given is None else str(given)


def busy_share(name: str, queue: QueueTally, slots: int | None, seconds: float) -> float:
    used = Queue.named(name, slots).slots or queue.most_busy
    return queue.busy_seconds / (used * seconds) if used and seconds else 0.0


def by_reason(counts: Mapping[Any, int]) -> str:
    """``14 overlap, 2 wait_expired``, or 0."""
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items())) or "0"


def not_started(job: JobTally) -> dict[str, int]:
    """Together with those started and skipped, these are all ticks."""
    still = {"excluded": job.excluded, "waiting": job.waiting, "queued": job.queued}
    return {
        **{outcome.value: count for outcome, count in job.unstarted.items()},
        **{state: count for state, count in still.items() if count},
    }


def waits_words(waits: Sequence[float]) -> str:
    """``47, mean 1m2s, max 12m12s``, or 0."""
    average = mean(waits)
    if average is None:
        return "0"
    return f"{len(waits)}, mean {span(average)}, max {span(max(waits))}"


def lateness_words(lateness: Lateness) -> tuple[str, str]:
    return duration(lateness.p50), duration(lateness.longest)


def mean(seconds: Sequence[float]) -> float | None:
    return sum(seconds) / len(seconds) if seconds else None


def tally_shape(tally: Tally, durations: Mapping[str, float], slots: int | None) -> dict[str, Any]:
    """`durations`: by job, in seconds."""
    return {
        "from": iso_utc(tally.started_at),
        "to": iso_utc(tally.ended_at),
        "jobs": [
            {
                "job": name,
                "duration_seconds": lasts,
                **simulated_job_shape(tally.jobs.get(name, JobTally())),
            }
            for name, lasts in sorted(durations.items())
        ],
        "queues": [
            {
                "queue": name,
                "slots": Queue.named(name, slots).slots,
                "most_busy": queue.most_busy,
                "busy_share": round(busy_share(name, queue, slots, tally.seconds), 4),
                "longest": queue.longest,
                **lateness_shape(queue.lateness),
            }
            for name, queue in sorted(tally.queues.items())
        ],
    }


def simulated_job_shape(job: JobTally) -> dict[str, Any]:
    return {
        "ticks": job.ticks,
        "excluded": job.excluded,
        "started": job.started,
        "finished": dict(job.finished),
        "skipped": dict(job.skipped),
        "unstarted": dict(job.unstarted),
        "requeued": job.requeued,
        "waited": len(job.waits),
        "wait_mean_seconds": mean(job.waits),
        "wait_max_seconds": max(job.waits, default=None),
        **lateness_shape(job.lateness),
        "waiting": job.waiting,
        "queued": job.queued,
        "running": job.running,
    }


def lateness_shape(lateness: Lateness) -> dict[str, float | None]:
    return {"late_p50_seconds": lateness.p50, "late_max_seconds": lateness.longest}
