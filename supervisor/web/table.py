"""The table of metrics: name, help, labels, and how each is read of a record.

A new metric is a row here and a line in docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from supervisor.ledger.records import BeatRecord, Histogram, JobRecord
from supervisor.overlap import SkipReason
from supervisor.run import EXCLUDED_REASONS, MISSED_REASONS, OUTCOMES


@dataclass(frozen=True, slots=True)
class JobCounter:
    """A counter of each job; with `label`, a series for each of `values`."""

    name: str
    help: str
    field: str
    label: str | None = None
    values: tuple[str, ...] = ()
    scale: float = 1


@dataclass(frozen=True, slots=True)
class JobGauge:
    """A gauge of each job; None leaves the series out."""

    name: str
    help: str
    value: Callable[[JobRecord], float | None]


@dataclass(frozen=True, slots=True)
class JobHistogram:
    name: str
    help: str
    value: Callable[[JobRecord], Histogram]


@dataclass(frozen=True, slots=True)
class BeatGauge:
    """A gauge of the service; `labels` and value come from the record."""

    name: str
    help: str
    value: Callable[[BeatRecord], float | None]
    instance: Callable[[BeatRecord], str | None] | None = None


def at(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None


def outcomes() -> tuple[str, ...]:
    return tuple(outcome.value for outcome in OUTCOMES)


COUNTERS = (
    JobCounter("runs_started", "Runs whose first attempt began.", "started"),
    JobCounter("runs_finished", "Runs that ended, by outcome.", "finished", "outcome", outcomes()),
    JobCounter(
        "runs_skipped",
        "Runs dropped because they would have overlapped, by reason.",
        "skipped",
        "reason",
        tuple(reason.value for reason in SkipReason),
    ),
    JobCounter("runs_requeued", "Times a run that would overlap was put off.", "requeued"),
    JobCounter("runs_retried", "Failed attempts that are followed by another.", "retried"),
    JobCounter("runs_rescued", "Runs queued again because their worker died.", "rescued"),
    JobCounter("runs_triggered", "Runs asked for by hand.", "triggered"),
    JobCounter(
        "runs_restored", "Runs at work that a server without its data was told of anew.", "restored"
    ),
    JobCounter("ticks", "Nominal times that were dealt with.", "ticks"),
    JobCounter(
        "ticks_missed",
        "Nominal times that passed while nothing could emit them and were not caught up.",
        "missed",
        "reason",
        MISSED_REASONS,
    ),
    JobCounter(
        "ticks_excluded",
        "Nominal times passed over on purpose.",
        "excluded",
        "reason",
        EXCLUDED_REASONS,
    ),
    JobCounter(
        "overlaps", "Runs found at work at the same time as another of their lock.", "overlaps"
    ),
    JobCounter("overlap_seconds", "Length of those overlaps.", "overlap_ms", scale=1000),
    JobCounter("leases_lost", "Ends reported by runs whose lease was gone.", "leases_lost"),
    JobCounter("duplicates_dropped", "Second deliveries of a tick or a message.", "duplicates"),
)

HISTOGRAMS = (
    JobHistogram("run_duration_seconds", "How long attempts took.", lambda job: job.durations),
    JobHistogram(
        "start_delay_seconds",
        "From a run's nominal time to the start of its first attempt.",
        lambda job: job.start_delays,
    ),
)

GAUGES = (
    JobGauge("runs_running", "Runs at work now.", lambda job: job.running),
    JobGauge("runs_waiting", "Runs that wait for the job's lock.", lambda job: job.waiting),
    JobGauge(
        "unaccounted_ticks",
        "Nominal times that were not counted once, or have no outcome; of the last audit.",
        lambda job: job.unaccounted_ticks,
    ),
    JobGauge("job_paused", "1 while the job is paused.", lambda job: int(job.paused)),
    JobGauge(
        "consecutive_skips",
        "Runs skipped since the last one that began.",
        lambda job: job.consecutive_skips,
    ),
    JobGauge(
        "last_success_timestamp_seconds",
        "When a run last succeeded.",
        lambda job: at(job.last_success_at),
    ),
    JobGauge(
        "last_start_timestamp_seconds",
        "When an attempt last began.",
        lambda job: at(job.last_start_at),
    ),
    JobGauge(
        "next_run_timestamp_seconds", "The next nominal time.", lambda job: at(job.next_run_at)
    ),
)

BEAT_GAUGES = (
    BeatGauge(
        "beat_last_tick_timestamp_seconds",
        "When the leading beat last looked.",
        lambda beat: at(beat.last_tick_at),
    ),
    BeatGauge(
        "beat_is_leader",
        "1 for the beat that leads.",
        lambda beat: 1 if beat.leader else None,
        instance=lambda beat: beat.leader,
    ),
    BeatGauge(
        "config_last_reload_successful",
        "0 while the schedule files have problems and an older set is in force.",
        lambda beat: (
            None if beat.last_reload_successful is None else int(beat.last_reload_successful)
        ),
    ),
)

UP = ("up", "1 when the ledger answered this scrape.")
JOB = ("job", "How a job is scheduled, in labels.")
