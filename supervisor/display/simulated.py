"""What a simulation came to, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from supervisor.display.shapes import instant
from supervisor.display.tables import Columns
from supervisor.display.words import duration, span
from supervisor.simulation.parts import Queue
from supervisor.simulation.tally import JobTally, Lateness, QueueTally, Tally

JOB_COLUMNS = Columns(
    (
        *("job", "duration", "ticks", "started", "skipped", "not started", "waited"),
        *("requeued", "late p50", "late max"),
    ),
    folds=("skipped", "not started", "waited"),
    drops=("requeued", "late p50", "duration", "late max"),
)
QUEUE_COLUMNS = Columns(
    ("queue", "slots", "busy", "longest", "late p50", "late max"), drops=("late p50", "late max")
)


def job_rows(tally: Tally, durations: Mapping[str, str]) -> Iterator[Sequence[str]]:
    """`durations`: by job, what its runs were taken to last."""
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
    """Where there is no bound, what would have been enough."""
    given = Queue.named(name, slots).slots
    return f"{queue.most_busy} needed" if given is None else str(given)


def busy_share(name: str, queue: QueueTally, slots: int | None, seconds: float) -> float:
    used = Queue.named(name, slots).slots or queue.most_busy
    return queue.busy_seconds / (used * seconds) if used and seconds else 0.0


def by_reason(counts: Mapping[Any, int]) -> str:
    """``14 overlap, 2 wait_expired``, or 0."""
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items())) or "0"


def not_started(job: JobTally) -> dict[str, int]:
    """With those started and skipped, these are all ticks."""
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
        "from": instant(tally.started_at),
        "to": instant(tally.ended_at),
        "jobs": [
            {"job": name, "duration_seconds": lasts, **job_shape(tally.jobs.get(name, JobTally()))}
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


def job_shape(job: JobTally) -> dict[str, Any]:
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
