"""The table of metrics: name, help, labels, and how the value is taken from a scrape.

A new counter or gauge of a job is an entry in COUNTERS or GAUGES, one of a queue in QUEUE_GAUGES;
all else is made in of_jobs() and of_service(). Each has a line in docs/reference/metrics.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)

from supervisor.job.durations import Histogram
from supervisor.job.policies import Catchup, OnCrash, OverlapPolicy, SkipReason
from supervisor.job.run import EXCLUDED_REASONS, MISSED_REASONS, OUTCOMES
from supervisor.job.spec import JobSpec
from supervisor.job.step_spec import StepSpec
from supervisor.ledger.presence import WorkerProcess
from supervisor.ledger.queues import Queue
from supervisor.schedule.expectations import MAY_WAIT
from supervisor.web.metric_families import PREFIX, at, counter, gauge, seconds, single
from supervisor.web.metrics_scrape import Scrape, ScrapedJob

# Counters of each job.


@dataclass(frozen=True, slots=True)
class JobCounter:
    name: str

    counted: str
    """Its name among JobRecord.counters; with `label`, before ``:`` and one of `values`."""

    help: str
    label: str | None = None
    values: tuple[str, ...] = ()

    scale: int = 1
    """How many of what is counted make one."""

    @property
    def series(self) -> list[tuple[str, list[str]]]:
        """The names among JobRecord.counters, each with the values of the labels."""
        if self.label is None:
            return [(self.counted, [])]
        return [(f"{self.counted}:{value}", [value]) for value in self.values]


COUNTERS = (
    JobCounter("runs_started", "started", "Runs whose first attempt began."),
    JobCounter("runs_finished", "finished", "Runs that ended, by outcome.", "outcome", OUTCOMES),
    JobCounter(
        "runs_skipped", "skipped", "Runs that were dropped, by reason.", "reason", tuple(SkipReason)
    ),
    JobCounter("runs_requeued", "requeued", "Times that a run that would overlap was postponed."),
    JobCounter("runs_retried", "retried", "Failed attempts that are followed by another."),
    JobCounter("runs_rescued", "rescued", "Runs queued again because their worker died."),
    JobCounter("runs_triggered", "triggered", "Runs triggered by hand, by code, or after others."),
    JobCounter(
        "ticks_missed", "missed", "Nominal times that were missed.", "reason", MISSED_REASONS
    ),
    JobCounter(
        "ticks_excluded", "excluded", "Times passed over on purpose.", "reason", EXCLUDED_REASONS
    ),
    JobCounter("overlaps", "overlaps", "Runs that were running at the same time as another."),
    JobCounter("overlap_seconds", "overlap_ms", "Length of those overlaps.", scale=1000),
    JobCounter("leases_lost", "leases_lost", "Ends reported by runs whose lease was gone."),
    JobCounter("leases_reasserted", "reasserted", "Leases renewed after they had run out."),
    JobCounter("duplicates_dropped", "duplicates", "Second deliveries of a tick or a message."),
    JobCounter("runs_over_max_duration", "over_max_duration", "Runs longer than `max_duration`."),
    JobCounter(
        "runs_under_min_duration", "under_min_duration", "Runs shorter than `min_duration`."
    ),
)

SKIPPED_BY = {
    OverlapPolicy.SKIP: SkipReason.OVERLAP,
    OverlapPolicy.QUEUE_ONE: SkipReason.OVERLAP,
    OverlapPolicy.QUEUE_ALL: SkipReason.BUFFER_FULL,
    OverlapPolicy.REQUEUE: SkipReason.REQUEUES_EXHAUSTED,
    OverlapPolicy.REPLACE: SkipReason.REPLACED,
}


def likely(spec: JobSpec) -> set[str]:
    """The counters that a job has from the start, at 0: what its policies make likely.

    Prometheus sees no increase in a counter that begins at 1. What is rare or takes a person is
    there from its first event on, and no alert needs it before.
    """
    works: tuple[JobSpec | StepSpec, ...] = (spec, *spec.steps)
    overlap = spec.overlap
    possible = {
        "finished:timed_out": any(work.time_limit or work.soft_time_limit for work in works),
        "finished:lost": spec.on_crash is OnCrash.FAIL,
        "finished:replaced": overlap is OverlapPolicy.REPLACE,
        f"skipped:{SKIPPED_BY.get(overlap)}": overlap in SKIPPED_BY,
        f"skipped:{SkipReason.WAIT_EXPIRED}": spec.max_wait is not None,
        f"skipped:{SkipReason.UPSTREAM}": bool(spec.after),
        # One reason of those for which ticks are missed, so that the sum over all begins at 0.
        "missed:window": spec.catchup is Catchup.ALL,
        "missed:catchup": spec.catchup is not Catchup.ALL,
        "requeued": overlap is OverlapPolicy.REQUEUE,
        "retried": any(work.max_retries for work in works),
        "over_max_duration": spec.max_duration is not None,
        "under_min_duration": spec.min_duration is not None,
    }
    always = ("started", "finished:succeeded", "finished:failed", "overlaps", "leases_lost")
    return {*always, *(name for name, is_likely in possible.items() if is_likely)}


# Gauges of each job: their help, and their values; None leaves the series out.

GAUGES = {
    "runs_running": "Runs that are running now.",
    "runs_waiting": "Runs that wait for the job's lock.",
    "unaccounted_ticks": "Nominal times without exactly one outcome in the last audit.",
    "job_paused": "1 while the job is paused.",
    "consecutive_skips": "Runs skipped since the last one that began, whatever their key.",
    "last_success_timestamp_seconds": "When a run last succeeded.",
    "last_failure_timestamp_seconds": "When a run last failed, in whatever way, or expired.",
    "next_run_timestamp_seconds": "The next nominal time.",
    "expected_success_by_timestamp_seconds": "By when a run should have succeeded.",
    "success_due_timestamp_seconds": "By when a run has to have succeeded, as `due_by` says.",
    "job_max_duration_seconds": "How long an attempt may take, as `max_duration` says.",
    "job_interval_seconds": "The shortest distance between the next ten nominal times.",
    "job_late_after_seconds": "How long after its nominal time a start is late.",
    "job_running_limit_seconds": "How long an attempt may run before that is too long.",
    "job_max_consecutive_skips": "How many skips in a row are too many, where the job says it.",
    "job_max_waiting": "How many runs may wait where all of them do.",
    "oldest_queued_timestamp_seconds": "When the oldest run or attempt that has not begun was due.",
    "oldest_running_timestamp_seconds": "When the oldest running attempt began.",
}


def gauges_of(job: ScrapedJob) -> dict[str, float | None]:
    spec, record, runs = job.spec, job.record, job.open_runs
    may_wait = spec.overlap in MAY_WAIT or spec.serial
    do_all_wait = spec.overlap is OverlapPolicy.QUEUE_ALL
    return {
        "runs_running": runs.running,
        "runs_waiting": runs.waiting if may_wait else runs.waiting or None,
        "unaccounted_ticks": record.unaccounted_ticks,
        "job_paused": record.paused or None,
        "consecutive_skips": record.consecutive_skips,
        "last_success_timestamp_seconds": at(record.last_success_at),
        "last_failure_timestamp_seconds": at(record.last_failure_at),
        "next_run_timestamp_seconds": at(record.next_run_at),
        "expected_success_by_timestamp_seconds": at(job.success_by),
        "success_due_timestamp_seconds": at(record.success_due_at),
        "job_max_duration_seconds": seconds(spec.max_duration),
        "job_interval_seconds": seconds(job.interval),
        "job_late_after_seconds": seconds(job.late_after),
        "job_running_limit_seconds": seconds(job.running_limit),
        "job_max_consecutive_skips": spec.max_consecutive_skips,
        "job_max_waiting": spec.max_waiting if do_all_wait else None,
        "oldest_queued_timestamp_seconds": at(runs.oldest_queued_at),
        "oldest_running_timestamp_seconds": at(runs.oldest_running_at),
    }


#: The upper bounds that are shown, in seconds; the ledger counts finer ones.
DURATION_BOUNDS, START_DELAY_BOUNDS = (5, 60, 900, 14400), (1, 60)


def of_jobs(jobs: Sequence[ScrapedJob]) -> Iterator[Metric]:
    yield job_info(jobs)
    at_zero = [likely(job.spec) for job in jobs]
    yield from (job_counter(row, jobs, at_zero) for row in COUNTERS)
    took = ((job, job.record.durations) for job in jobs)
    yield histogram("run_duration_seconds", "How long attempts took.", DURATION_BOUNDS, took)
    late = ((job, job.start_delays) for job in jobs)
    help = "From a run's nominal time to the start of its first attempt."
    yield histogram("start_delay_seconds", help, START_DELAY_BOUNDS, late)
    gauges = [(job.spec.name, gauges_of(job)) for job in jobs]
    for name, help in GAUGES.items():
        yield gauge(name, help, ((job, values[name]) for job, values in gauges), "job")


def job_info(jobs: Sequence[ScrapedJob]) -> Metric:
    help = "How a job is scheduled, in labels."
    family = InfoMetricFamily(f"{PREFIX}job", help, labels=["job"])
    for job in jobs:
        labels = {
            "task": job.spec.work,
            "schedule": job.spec.schedule,
            "timezone": job.spec.timezone,
            "overlap": job.spec.overlap.value,
            "queue": job.spec.routed_queue or "",
        }
        family.add_metric([job.spec.name], labels)
    return family


def job_labels(jobs: Sequence[ScrapedJob], names: Sequence[str]) -> Metric:
    """As kube-state-metrics has them: ``label_tenant="acme"``, of the jobs that have any."""
    family = GaugeMetricFamily(
        f"{PREFIX}job_labels", "Labels of a job, those that SUPERVISOR_METRIC_LABELS names."
    )
    for job in jobs:
        own = job.spec.labels
        if shown := {f"label_{name}": own[name] for name in names if name in own}:
            family.add_sample(family.name, {"job": job.spec.name, **shown}, 1)
    return family


def job_counter(row: JobCounter, jobs: Sequence[ScrapedJob], at_zero: Sequence[set[str]]) -> Metric:
    label = [row.label] if row.label else []
    family = CounterMetricFamily(PREFIX + row.name, row.help, labels=["job", *label])
    for counted, labels in row.series:
        for job, likely_ones in zip(jobs, at_zero, strict=True):
            count = job.record.counters.get(counted, 0)
            if count or counted in likely_ones:
                family.add_metric([job.spec.name, *labels], count / row.scale)
    return family


def histogram(
    name: str, help: str, bounds: Sequence[float], observed: Iterable[tuple[ScrapedJob, Histogram]]
) -> Metric:
    """bounds: some of those that the ledger counts by."""
    family = HistogramMetricFamily(PREFIX + name, help, labels=["job"])
    for job, seen in observed:
        up_to = dict(zip(seen.bounds, accumulate(seen.counts), strict=False))
        buckets = [(str(float(bound)), up_to[bound]) for bound in bounds]
        buckets.append(("+Inf", seen.observations))
        family.add_metric([job.spec.name], buckets, seen.sum_seconds)
    return family


# Of the service: of each queue or process, or of all.

QUEUE_GAUGES: tuple[tuple[str, str, Callable[[Queue], float | None]], ...] = (
    ("queue_length", "Messages that no worker has taken.", lambda queue: queue.length),
    ("queue_consumers", "Workers that consume the queue.", lambda queue: queue.consumers),
    ("queue_is_serial", "1 for a queue of one run at a time.", lambda queue: queue.is_serial),
    ("queue_drained", "1 while nothing begins from it.", lambda queue: bool(queue.drained_at)),
)


def of_service(scrape: Scrape) -> Iterator[Metric]:
    processes, beat = scrape.processes, scrape.beat
    for name, help, value in QUEUE_GAUGES:
        yield gauge(name, help, ((queue.name, value(queue)) for queue in scrape.queues), "queue")
    help = "When a worker last reported that it is there."
    seen = ((name, at(moment)) for name, moment in processes.last_seen.items())
    yield gauge("worker_last_seen_timestamp_seconds", help, seen, "worker")
    help = "0 for a worker that is there and takes no messages."
    workers = [each for each in processes.present if isinstance(each.process, WorkerProcess)]
    healthy = ((worker.process.name, worker.fault is None) for worker in workers)
    yield gauge("worker_healthy", help, healthy, "worker")
    help = "How far the clock of a worker or a beat is ahead of that of Redis."
    offsets = ((each.process.name, seconds(each.clock_offset)) for each in processes.present)
    yield gauge("clock_offset_seconds", help, offsets, "instance")
    # As each reports; one that was replaced may not know it for some seconds.
    leads = ((each.name, each.leads) for each in processes.beats)
    yield gauge("beat_is_leader", "1 for the beat that leads, 0 for others.", leads, "instance")
    help = "When the leading beat last looked for due ticks."
    yield gauge("beat_last_tick_timestamp_seconds", help, single(at(beat.last_tick_at)))
    help = "Times that another beat led than before."
    yield counter("beat_leader_changes", help, single(beat.leader_changes))
    help = "Times that the clock of Redis was set back by more than a second."
    yield counter("redis_clock_set_back", help, single(beat.clock_set_backs))
    help = "0 while the schedule files have problems and are not loaded."
    yield gauge("config_last_reload_successful", help, single(beat.last_reload_successful))
    yield from scrape.of_features
    taken = time.monotonic() - scrape.started
    yield gauge("scrape_duration_seconds", "How long it took to read all of this.", single(taken))
