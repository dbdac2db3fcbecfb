"""The table of metrics: name, help, labels, and how the value is taken from a scrape.

A new metric is a row here and a line in docs/reference/metrics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from supervisor.job.policies import SkipReason
from supervisor.job.run import EXCLUDED_REASONS, MISSED_REASONS, OUTCOMES
from supervisor.ledger.functions import SKIPS_IN_A_ROW
from supervisor.ledger.presence import WorkerFacts
from supervisor.ledger.queues import Queue
from supervisor.ledger.records import Histogram
from supervisor.web.metrics_scrape import Job, Scrape, in_seconds


@dataclass(frozen=True, slots=True)
class JobCounter:
    """A counter of each job; with `label`, a series for each of `values`.

    scale: how many of what the job's hash counts make one.
    """

    kind: ClassVar = "counter"
    name: str
    help: str
    field: str
    label: str | None = None
    values: tuple[str, ...] = ()
    scale: float = 1

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a job's hash, one for each series."""
        return tuple(f"n:{self.field}:{value}" for value in self.values) or (f"n:{self.field}",)

    @property
    def labels(self) -> tuple[str, ...]:
        """What each series has after the label `job`."""
        return tuple(f',{self.label}="{value}"' for value in self.values) or ("",)


@dataclass(frozen=True, slots=True)
class KeyCounter:
    """A counter of the jobs that have a key of a schedule file; the others have no series."""

    kind: ClassVar = "counter"
    name: str
    help: str
    field: str
    key: str


@dataclass(frozen=True, slots=True)
class JobGauge:
    """A gauge of each job; None leaves the series out."""

    kind: ClassVar = "gauge"
    name: str
    help: str
    value: Callable[[Job], float | None]


@dataclass(frozen=True, slots=True)
class JobHistogram:
    kind: ClassVar = "histogram"
    name: str
    help: str
    value: Callable[[Job], Histogram]


#: Values of a metric by what its label says; None leaves the series out.
Values = Iterable[tuple[str, float | None]]


@dataclass(frozen=True, slots=True)
class ServiceMetric:
    """A metric of each queue or process, or without a label of the whole service."""

    name: str
    help: str
    values: Callable[[Scrape], Values]
    label: str | None = None
    kind: str = "gauge"


def at(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None


def seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()


def queue_gauge(name: str, help: str, value: Callable[[Queue], float | None]) -> ServiceMetric:
    def values(scrape: Scrape) -> Values:
        return ((queue.name, value(queue)) for queue in scrape.queues)

    return ServiceMetric(name, help, values, "queue")


def single(
    name: str, help: str, value: Callable[[Scrape], float | None], kind: str = "gauge"
) -> ServiceMetric:
    return ServiceMetric(name, help, lambda scrape: [("", value(scrape))], kind=kind)


COUNTERS = (
    JobCounter("runs_started", "Runs whose first attempt began.", "started"),
    JobCounter("runs_finished", "Runs that ended, by outcome.", "finished", "outcome", OUTCOMES),
    JobCounter(
        "runs_skipped",
        "Runs dropped because they would have overlapped, by reason.",
        "skipped",
        "reason",
        tuple(SkipReason),
    ),
    JobCounter("runs_requeued", "Times that a run that would overlap was postponed.", "requeued"),
    JobCounter("runs_retried", "Failed attempts that are followed by another.", "retried"),
    JobCounter("runs_rescued", "Runs queued again because their worker died.", "rescued"),
    JobCounter("runs_triggered", "Runs asked for by hand, or after others.", "triggered"),
    JobCounter(
        "runs_restored",
        "Running runs that were recorded again after the server lost its data.",
        "restored",
    ),
    JobCounter("ticks", "Nominal times that have been handled.", "ticks"),
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
        "overlaps",
        "Runs found running at the same time as another of their lock or serial queue.",
        "overlaps",
    ),
    JobCounter("overlap_seconds", "Length of those overlaps.", "overlap_ms", scale=1000),
    JobCounter("leases_lost", "Ends reported by runs whose lease was gone.", "leases_lost"),
    JobCounter(
        "leases_reasserted",
        "Leases renewed after they had run out, before another run began.",
        "reasserted",
    ),
    JobCounter(
        "lease_renew_delay_seconds",
        "How long those leases had run out.",
        "renew_delay_ms",
        scale=1000,
    ),
    JobCounter("duplicates_dropped", "Second deliveries of a tick or a message.", "duplicates"),
)

KEY_COUNTERS = (
    KeyCounter(
        "runs_over_max_duration",
        "Runs with an attempt that took longer than `max_duration`.",
        "n:over_max_duration",
        "max_duration",
    ),
    KeyCounter(
        "runs_under_min_duration",
        "Runs that succeeded sooner after their start than `min_duration`.",
        "n:under_min_duration",
        "min_duration",
    ),
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
    JobGauge("runs_running", "Runs that are running now.", lambda job: job.open_runs.running),
    JobGauge(
        "runs_waiting", "Runs that wait for the job's lock.", lambda job: job.open_runs.waiting
    ),
    JobGauge(
        "unaccounted_ticks",
        "Nominal times not counted exactly once, or without an outcome, in the last audit.",
        lambda job: job.status.unaccounted_ticks,
    ),
    JobGauge("job_paused", "1 while the job is paused.", lambda job: job.status.paused),
    JobGauge(
        "consecutive_skips",
        "Runs skipped since the last one that began, whatever their key.",
        lambda job: job.status.consecutive_skips,
    ),
    JobGauge(
        "last_success_timestamp_seconds",
        "When a run last succeeded.",
        lambda job: in_seconds(job.status.last_success),
    ),
    JobGauge(
        "last_failure_timestamp_seconds",
        "When a run last failed, exceeded its time limit, was lost, or expired.",
        lambda job: in_seconds(job.status.last_failure),
    ),
    JobGauge(
        "last_start_timestamp_seconds",
        "When an attempt last began.",
        lambda job: in_seconds(job.status.last_start),
    ),
    JobGauge(
        "next_run_timestamp_seconds",
        "The next nominal time.",
        lambda job: in_seconds(job.status.next),
    ),
    JobGauge(
        "expected_success_by_timestamp_seconds",
        "By when a run should have succeeded.",
        lambda job: at(job.expected.success_by),
    ),
    JobGauge(
        "success_due_timestamp_seconds",
        "By when a run has to have succeeded, as `due_by` says.",
        lambda job: at(job.expected.success_due_at),
    ),
    JobGauge(
        "job_max_duration_seconds",
        "How long an attempt may take, as `max_duration` says.",
        lambda job: seconds(job.spec.max_duration),
    ),
    JobGauge(
        "job_min_duration_seconds",
        "How long a run takes at least, as `min_duration` says.",
        lambda job: seconds(job.spec.min_duration),
    ),
    JobGauge(
        "job_interval_seconds",
        "The shortest distance between the next ten nominal times.",
        lambda job: seconds(job.expected.interval),
    ),
    JobGauge(
        "job_late_after_seconds",
        "How long after its nominal time a start is late.",
        lambda job: seconds(job.expected.late_after),
    ),
    JobGauge(
        "job_running_limit_seconds",
        "How long an attempt may run before that is too long.",
        lambda job: seconds(job.expected.running_limit),
    ),
    JobGauge(
        "job_max_consecutive_skips",
        "How many skips in a row are too many.",
        lambda job: job.spec.max_consecutive_skips or SKIPS_IN_A_ROW,
    ),
    JobGauge(
        "job_max_waiting",
        "How many runs may wait where all of them do.",
        lambda job: job.spec.max_waiting,
    ),
    JobGauge(
        "oldest_queued_timestamp_seconds",
        "The nominal time of the oldest run that is queued or waits and has not begun.",
        lambda job: at(job.open_runs.oldest_queued_at),
    ),
    JobGauge(
        "oldest_running_timestamp_seconds",
        "When the oldest running attempt began.",
        lambda job: at(job.open_runs.oldest_running_at),
    ),
)


@dataclass(frozen=True, slots=True)
class JobsGauge:
    """A gauge of several jobs: the sum, or with `is_least` the least, of what each of them has.

    value: of a job, at this time since 1970 in seconds.
    """

    name: str
    help: str
    value: Callable[[Job, float], float | None]
    is_least: bool = False


def is_past(due: datetime | None, now: float, allowed: timedelta | None = timedelta()) -> bool:
    return due is not None and allowed is not None and now > (due + allowed).timestamp()


#: In place of GAUGES where series are summed by a label of jobs.
JOBS_GAUGES = (
    JobsGauge("jobs", "Jobs that are known.", lambda job, now: 1),
    JobsGauge("jobs_paused", "Jobs that are paused.", lambda job, now: job.status.paused),
    JobsGauge(
        "jobs_failing",
        "Jobs whose last failure is later than their last success.",
        lambda job, now: job.status.last_failure > job.status.last_success,
    ),
    JobsGauge(
        "jobs_overdue",
        "Jobs of which no run has succeeded when one should have.",
        lambda job, now: is_past(job.expected.success_by, now),
    ),
    JobsGauge(
        "jobs_past_due",
        "Jobs that have not succeeded by their `due_by`.",
        lambda job, now: is_past(job.expected.success_due_at, now),
    ),
    JobsGauge(
        "jobs_late",
        "Jobs of which a run has not started in time.",
        lambda job, now: is_past(job.open_runs.oldest_queued_at, now, job.expected.late_after),
    ),
    JobsGauge(
        "jobs_running_too_long",
        "Jobs of which a run has been running for too long.",
        lambda job, now: is_past(job.open_runs.oldest_running_at, now, job.expected.running_limit),
    ),
    JobsGauge(
        "jobs_skipping",
        "Jobs with too many skips in a row.",
        lambda job, now: (
            job.status.consecutive_skips > (job.spec.max_consecutive_skips or SKIPS_IN_A_ROW)
        ),
    ),
    JobsGauge("runs_running", "Runs that are running now.", lambda job, now: job.open_runs.running),
    JobsGauge(
        "runs_waiting",
        "Runs that wait for the lock of their job.",
        lambda job, now: job.open_runs.waiting,
    ),
    JobsGauge(
        "unaccounted_ticks",
        "Nominal times not counted exactly once, or without an outcome, in the last audits.",
        lambda job, now: job.status.unaccounted_ticks,
    ),
    JobsGauge(
        "oldest_queued_timestamp_seconds",
        "The nominal time of the oldest run that is queued or waits and has not begun.",
        lambda job, now: at(job.open_runs.oldest_queued_at),
        is_least=True,
    ),
    JobsGauge(
        "oldest_running_timestamp_seconds",
        "When the oldest running attempt began.",
        lambda job, now: at(job.open_runs.oldest_running_at),
        is_least=True,
    ),
)

SERVICE = (
    queue_gauge("queue_length", "Messages that no worker has taken.", lambda queue: queue.length),
    queue_gauge(
        "queue_consumers", "Workers that consume the queue.", lambda queue: queue.consumers
    ),
    queue_gauge(
        "queue_is_serial",
        "1 for a queue that is worked one run at a time.",
        lambda queue: queue.is_serial,
    ),
    queue_gauge(
        "queue_drained",
        "1 while nothing begins from the queue (supervisor drain).",
        lambda queue: queue.drained_at is not None,
    ),
    ServiceMetric(
        "worker_last_seen_timestamp_seconds",
        "When a worker last reported that it is there.",
        lambda scrape: ((name, at(moment)) for name, moment in scrape.roll.last_seen.items()),
        "worker",
    ),
    ServiceMetric(
        "worker_healthy",
        "0 for a worker that is there and takes no messages, since its main loop hangs.",
        lambda scrape: (
            (p.facts.name, p.fault is None)
            for p in scrape.roll.present
            if isinstance(p.facts, WorkerFacts)
        ),
        "worker",
    ),
    ServiceMetric(
        "clock_offset_seconds",
        "How far the clock of a worker or a beat is ahead of that of Redis.",
        lambda scrape: ((p.facts.name, seconds(p.clock_offset)) for p in scrape.roll.present),
        "instance",
    ),
    ServiceMetric(
        "beat_is_leader",
        "1 for the beat that leads, 0 for those that stand by.",
        # As each reports; one that was replaced may not know it for some seconds.
        lambda scrape: ((beat.name, beat.leads) for beat in scrape.roll.beats),
        "instance",
    ),
    single(
        "beat_last_tick_timestamp_seconds",
        "When the leading beat last looked for due ticks.",
        lambda scrape: at(scrape.beat.last_tick_at),
    ),
    single(
        "beat_leader_changes",
        "Times that another beat led than before.",
        lambda scrape: scrape.beat.leader_changes,
        "counter",
    ),
    single(
        "redis_clock_set_back",
        "Times that the clock of Redis was set back by more than a second.",
        lambda scrape: scrape.beat.clock_set_backs,
        "counter",
    ),
    single(
        "config_last_reload_successful",
        "0 while the schedule files have problems and an older set is in force.",
        lambda scrape: scrape.beat.last_reload_successful,
    ),
    ServiceMetric(
        "outbound_sent",
        "What other servers took: notices, pings, check-ins and revocations.",
        lambda scrape: scrape.outbound.sent.items(),
        "kind",
        "counter",
    ),
    ServiceMetric(
        "outbound_dropped",
        "The same that was given up: refused, or not taken for a day.",
        lambda scrape: scrape.outbound.dropped.items(),
        "kind",
        "counter",
    ),
    single(
        "oldest_unsent_timestamp_seconds",
        "When the oldest of those that wait was to be sent.",
        lambda scrape: at(scrape.outbound.oldest_at),
    ),
    single(
        "scrape_duration_seconds",
        "How long it took to read all of this.",
        lambda scrape: scrape.seconds,
    ),
)

UP = ("up", "1 when the ledger answered this scrape.")
BUILD = ("build", "The version that serves this.")
ACCESS_FILE = (
    "access_file_valid",
    "1 while the access file is in force, 0 while it has problems and an earlier version is.",
)
JOB = ("job", "How a job is scheduled, in labels.")
LABELS = ("job_labels", "Labels of a job, those that SUPERVISOR_METRIC_LABELS names.")
