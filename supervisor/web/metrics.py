"""The metrics, computed from the ledger at scrape. docs/metrics.md explains each.

Counters live in Redis, written by the scripts, so they survive the restart of every process. All
series of a loaded job are there from the start: a counter that first appears as 1 never increased.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

from supervisor.ledger.records import BeatRecord, JobRecord
from supervisor.ledger.runs import Ledger
from supervisor.web.table import (
    BEAT_GAUGES,
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    JOB,
    UP,
    BeatGauge,
    JobCounter,
    JobGauge,
    JobHistogram,
)


class LedgerCollector(Collector):
    """All metrics of one ledger. With the ledger away only ``supervisor_up 0`` is left."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def describe(self) -> Iterable[Metric]:
        return ()  # nothing is asked of Redis when the collector is registered

    def collect(self) -> Iterator[Metric]:
        try:
            jobs, beat = self._ledger.jobs(), self._ledger.beat()
        except (RedisError, OSError):
            yield GaugeMetricFamily(f"supervisor_{UP[0]}", UP[1], value=0)
            return
        yield GaugeMetricFamily(f"supervisor_{UP[0]}", UP[1], value=1)
        yield info(jobs)
        for counter in COUNTERS:
            yield counted(counter, jobs)
        for histogram in HISTOGRAMS:
            yield observed(histogram, jobs)
        for gauge in GAUGES:
            yield gauged(gauge, jobs)
        for beat_gauge in BEAT_GAUGES:
            yield from of_beat(beat_gauge, beat)


def counted(row: JobCounter, jobs: Iterable[JobRecord]) -> Metric:
    labels = ["job", row.label] if row.label else ["job"]
    family = CounterMetricFamily(f"supervisor_{row.name}", row.help, labels=labels)
    for job in jobs:
        if row.label is None:
            family.add_metric([job.spec.name], job.counters.get(row.field, 0) / row.scale)
        for value in row.values:
            count = job.counters.get(f"{row.field}:{value}", 0)
            family.add_metric([job.spec.name, value], count)
    return family


def observed(row: JobHistogram, jobs: Iterable[JobRecord]) -> Metric:
    family = HistogramMetricFamily(f"supervisor_{row.name}", row.help, labels=["job"])
    for job in jobs:
        histogram = row.value(job)
        bounds = [*(str(float(bound)) for bound in histogram.bounds), "+Inf"]
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip(bounds, histogram.counts, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric([job.spec.name], buckets, histogram.sum_seconds)
    return family


def gauged(row: JobGauge, jobs: Iterable[JobRecord]) -> Metric:
    family = GaugeMetricFamily(f"supervisor_{row.name}", row.help, labels=["job"])
    for job in jobs:
        value = row.value(job)
        if value is not None:
            family.add_metric([job.spec.name], value)
    return family


def of_beat(row: BeatGauge, beat: BeatRecord) -> Iterator[Metric]:
    value = row.value(beat)
    if value is None:
        return
    labels = ["instance"] if row.instance else []
    family = GaugeMetricFamily(f"supervisor_{row.name}", row.help, labels=labels)
    family.add_metric([str(row.instance(beat))] if row.instance else [], value)
    yield family


def info(jobs: Iterable[JobRecord]) -> Metric:
    family = InfoMetricFamily(f"supervisor_{JOB[0]}", JOB[1], labels=["job"])
    for job in jobs:
        spec = job.spec
        facts = {
            "task": spec.work,
            "schedule": spec.schedule,
            "timezone": spec.timezone,
            "overlap": spec.overlap.value,
            "queue": spec.routed_queue or "",
        }
        family.add_metric([spec.name], facts)
    return family
