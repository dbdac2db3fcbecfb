"""The table of metrics: name, help, labels, and how the value is taken from a scrape.

A new metric is a row here and a line in docs/reference/metrics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from supervisor.job.policies import Catchup, OnCrash, OverlapPolicy, SkipReason
from supervisor.job.run import EXCLUDED_REASONS, MISSED_REASONS, OUTCOMES, RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.presence import WorkerFacts
from supervisor.ledger.queues import Queue
from supervisor.ledger.records import Histogram
from supervisor.ticks.expectations import MAY_WAIT
from supervisor.web.metrics_scrape import Job, Scrape

# Which series a job has. Prometheus sees no increase in a counter that begins at 1. So what a job's
# policies make likely is there from the start, at 0; what is rare or takes a person is there from
# its first event on, and no alert needs it before.


def always(spec: JobSpec, value: str) -> bool:
    return True


def never(spec: JobSpec, value: str) -> bool:
    return False


def may_end(spec: JobSpec, outcome: str) -> bool:
    match outcome:
        case RunState.SUCCEEDED | RunState.FAILED:
            return True
        case RunState.TIMED_OUT:
            limits = [spec.time_limit, spec.soft_time_limit]
            limits += [limit for s in spec.steps for limit in (s.time_limit, s.soft_time_limit)]
            return any(limits)
        case RunState.LOST:
            return spec.on_crash is OnCrash.FAIL
        case RunState.REPLACED:
            return spec.overlap is OverlapPolicy.REPLACE
        case _:
            return False


def may_skip(spec: JobSpec, reason: str) -> bool:
    match reason:
        case SkipReason.OVERLAP:
            return spec.overlap in (OverlapPolicy.SKIP, OverlapPolicy.QUEUE_ONE)
        case SkipReason.BUFFER_FULL:
            return spec.overlap is OverlapPolicy.QUEUE_ALL
        case SkipReason.REQUEUES_EXHAUSTED:
            return spec.overlap is OverlapPolicy.REQUEUE
        case SkipReason.REPLACED:
            return spec.overlap is OverlapPolicy.REPLACE
        case SkipReason.WAIT_EXPIRED:
            return spec.max_wait is not None
        case SkipReason.UPSTREAM:
            return bool(spec.after)
        case _:
            return False


def may_miss(spec: JobSpec, reason: str) -> bool:
    """One reason each, so that the sum over all of them begins at 0."""
    return reason == ("window" if spec.catchup is Catchup.ALL else "catchup")


def may_requeue(spec: JobSpec, value: str) -> bool:
    return spec.overlap is OverlapPolicy.REQUEUE


def may_retry(spec: JobSpec, value: str) -> bool:
    return any([spec.max_retries, *(step.max_retries for step in spec.steps)])


def may_wait(spec: JobSpec) -> bool:
    return spec.overlap in MAY_WAIT or bool(spec.serial)


@dataclass(frozen=True, slots=True)
class JobCounter:
    """A counter of each job; with `label`, a series for each of `values`.

    starts_at_zero: whether a job has the series, of this value, before anything was counted.
    scale: how many of what the job's hash counts make one.
    """

    name: str
    field: str
    help: str
    starts_at_zero: Callable[[JobSpec, str], bool] = never
    label: str | None = None
    values: tuple[str, ...] = ("",)
    scale: int = 1

    def field_of(self, value: str) -> str:
        """The field of a job's hash that counts what has this value."""
        return f"n:{self.field}:{value}" if self.label else f"n:{self.field}"


@dataclass(frozen=True, slots=True)
class JobHistogram:
    """bounds: the upper ones that are shown, in seconds; the ledger counts finer ones."""

    name: str
    help: str
    value: Callable[[Job], Histogram]
    bounds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class JobGauge:
    """A gauge of each job; None leaves the series out."""

    name: str
    help: str
    value: Callable[[Job], float | None]


#: Values of a metric by what its label says; None leaves the series out.
Values = Iterable[tuple[str, float | None]]


@dataclass(frozen=True, slots=True)
class ServiceMetric:
    """A metric of each queue or process, or without a label of the whole service."""

    name: str
    help: str
    values: Callable[[Scrape], Values]
    label: str | None = None
    is_counter: bool = False


def at(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None


def seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()


def in_seconds(instant: int) -> float | None:
    """Seconds from milliseconds; None for 0."""
    return instant / 1000 if instant else None


def queue_gauge(name: str, help: str, value: Callable[[Queue], float | None]) -> ServiceMetric:
    def values(scrape: Scrape) -> Values:
        return ((queue.name, value(queue)) for queue in scrape.queues)

    return ServiceMetric(name, help, values, "queue")


def single(
    name: str, help: str, value: Callable[[Scrape], float | None], *, is_counter: bool = False
) -> ServiceMetric:
    return ServiceMetric(name, help, lambda scrape: [("", value(scrape))], is_counter=is_counter)


COUNTERS = (
    JobCounter("runs_started", "started", "Runs whose first attempt began.", always),
    JobCounter(
        "runs_finished", "finished", "Runs that ended, by outcome.", may_end, "outcome", OUTCOMES
    ),
    JobCounter(
        "runs_skipped",
        "skipped",
        "Runs dropped because they would have overlapped, by reason.",
        may_skip,
        "reason",
        tuple(SkipReason),
    ),
    JobCounter(
        "runs_requeued",
        "requeued",
        "Times that a run that would overlap was postponed.",
        may_requeue,
    ),
    JobCounter(
        "runs_retried", "retried", "Failed attempts that are followed by another.", may_retry
    ),
    JobCounter("runs_rescued", "rescued", "Runs queued again because their worker died."),
    JobCounter("runs_triggered", "triggered", "Runs asked for by hand, or after others."),
    JobCounter(
        "ticks_missed",
        "missed",
        "Nominal times that passed while nothing could emit them and were not caught up.",
        may_miss,
        "reason",
        MISSED_REASONS,
    ),
    JobCounter(
        "ticks_excluded",
        "excluded",
        "Nominal times passed over on purpose.",
        never,
        "reason",
        EXCLUDED_REASONS,
    ),
    JobCounter(
        "overlaps",
        "overlaps",
        "Runs found running at the same time as another of their lock or serial queue.",
        always,
    ),
    JobCounter("overlap_seconds", "overlap_ms", "Length of those overlaps.", scale=1000),
    JobCounter("leases_lost", "leases_lost", "Ends reported by runs whose lease was gone.", always),
    JobCounter(
        "leases_reasserted",
        "reasserted",
        "Leases renewed after they had run out, before another run began.",
    ),
    JobCounter("duplicates_dropped", "duplicates", "Second deliveries of a tick or a message."),
    JobCounter(
        "runs_over_max_duration",
        "over_max_duration",
        "Runs with an attempt that took longer than `max_duration`.",
        lambda spec, _: spec.max_duration is not None,
    ),
    JobCounter(
        "runs_under_min_duration",
        "under_min_duration",
        "Runs that succeeded sooner after their start than `min_duration`.",
        lambda spec, _: spec.min_duration is not None,
    ),
)

HISTOGRAMS = (
    JobHistogram(
        "run_duration_seconds",
        "How long attempts took.",
        lambda job: job.durations,
        (5, 60, 900, 14400),
    ),
    JobHistogram(
        "start_delay_seconds",
        "From a run's nominal time to the start of its first attempt.",
        lambda job: job.start_delays,
        (1, 60),
    ),
)

GAUGES = (
    JobGauge("runs_running", "Runs that are running now.", lambda job: job.open_runs.running),
    JobGauge(
        "runs_waiting",
        "Runs that wait for the job's lock.",
        lambda job: job.open_runs.waiting if may_wait(job.spec) else job.open_runs.waiting or None,
    ),
    JobGauge(
        "unaccounted_ticks",
        "Nominal times not counted exactly once, or without an outcome, in the last audit.",
        lambda job: job.unaccounted_ticks,
    ),
    JobGauge("job_paused", "1 while the job is paused.", lambda job: job.numbers["paused"] or None),
    JobGauge(
        "consecutive_skips",
        "Runs skipped since the last one that began, whatever their key.",
        lambda job: job.numbers["consecutive_skips"],
    ),
    JobGauge(
        "last_success_timestamp_seconds",
        "When a run last succeeded.",
        lambda job: in_seconds(job.numbers["last_success"]),
    ),
    JobGauge(
        "last_failure_timestamp_seconds",
        "When a run last failed, exceeded its time limit, was lost, or expired.",
        lambda job: in_seconds(job.numbers["last_failure"]),
    ),
    JobGauge(
        "next_run_timestamp_seconds",
        "The next nominal time.",
        lambda job: in_seconds(job.numbers["next"]),
    ),
    JobGauge(
        "expected_success_by_timestamp_seconds",
        "By when a run should have succeeded.",
        lambda job: at(job.success_by),
    ),
    JobGauge(
        "success_due_timestamp_seconds",
        "By when a run has to have succeeded, as `due_by` says.",
        lambda job: at(job.success_due_at),
    ),
    JobGauge(
        "job_max_duration_seconds",
        "How long an attempt may take, as `max_duration` says.",
        lambda job: seconds(job.spec.max_duration),
    ),
    JobGauge(
        "job_interval_seconds",
        "The shortest distance between the next ten nominal times.",
        lambda job: seconds(job.interval),
    ),
    JobGauge(
        "job_late_after_seconds",
        "How long after its nominal time a start is late.",
        lambda job: seconds(job.late_after),
    ),
    JobGauge(
        "job_running_limit_seconds",
        "How long an attempt may run before that is too long.",
        lambda job: seconds(job.running_limit),
    ),
    JobGauge(
        "job_max_consecutive_skips",
        "How many skips in a row are too many, where the job says it.",
        lambda job: job.spec.max_consecutive_skips,
    ),
    JobGauge(
        "job_max_waiting",
        "How many runs may wait where all of them do.",
        lambda job: job.spec.max_waiting if job.spec.overlap is OverlapPolicy.QUEUE_ALL else None,
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
        is_counter=True,
    ),
    single(
        "redis_clock_set_back",
        "Times that the clock of Redis was set back by more than a second.",
        lambda scrape: scrape.beat.clock_set_backs,
        is_counter=True,
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
        is_counter=True,
    ),
    ServiceMetric(
        "outbound_dropped",
        "The same that was given up: refused, or not taken for a day.",
        lambda scrape: scrape.outbound.dropped.items(),
        "kind",
        is_counter=True,
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
