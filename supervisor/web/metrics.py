"""The metrics, computed from the ledger at scrape. docs/reference/metrics.md explains each.

Counters live in Redis, written by the functions, so they survive the restart of every process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

from supervisor.errors import NotConfigured
from supervisor.job.fields import LABEL_PATTERN, MOST_LABELS
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.queues import Queues
from supervisor.ledger.records import Histogram
from supervisor.logs import get_logger
from supervisor.web.access_file import AccessFile
from supervisor.web.metrics_scrape import Job, Scrape, Scraper
from supervisor.web.metrics_table import (
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    SERVICE,
    JobCounter,
    JobGauge,
    JobHistogram,
    ServiceMetric,
)

PREFIX = "supervisor_"

VERSION = version("celery-beat-supervisor")

log = get_logger("supervisor.metrics")


class Metrics:
    """All metrics of one ledger; only ``supervisor_up 0`` while the ledger is unavailable.

    queues: of the app's broker; without it, as the ledger and the workers report them. labels:
    names of those of jobs that are shown. access_file: of this server, if it has one.
    """

    def __init__(
        self,
        ledger: Ledger,
        queues: Queues | None = None,
        *,
        labels: Sequence[str] = (),
        access_file: AccessFile | None = None,
    ) -> None:
        counted = (row.field_of(value) for row in COUNTERS for value in row.values)
        self._scraper = Scraper(ledger, queues, counted)
        self._labels = labels
        self._access_file = access_file

    def read(self) -> Scrape | None:
        """None while the ledger is unavailable. By one thread at a time."""
        try:
            return self._scraper.scrape()
        except (RedisError, OSError) as error:
            log.warning("scrape failed", error=str(error))
            return None

    def written(self, scrape: Scrape | None, accept: str = "") -> tuple[bytes, str]:
        """The text and its content type, as the header of a request asks for it."""
        families = [up(is_up=False)] if scrape is None else self._families(scrape)
        encode: Callable[[Collector], bytes]
        encode, content_type = choose_encoder(accept)
        return encode(Families(families)), content_type

    def _families(self, scrape: Scrape) -> Iterator[Metric]:
        """One after the other: the samples of all jobs are never in memory at once."""
        yield up(is_up=True)
        yield InfoMetricFamily(
            f"{PREFIX}build", "The version that serves this.", {"version": VERSION}
        )
        if self._access_file:
            yield GaugeMetricFamily(
                f"{PREFIX}access_file_valid",
                "1 while the access file is in force, 0 while it has problems and an earlier "
                "version is.",
                self._access_file.is_valid,
            )
        yield from of_jobs(scrape.jobs)
        if self._labels:
            yield job_labels(scrape.jobs, self._labels)
        yield from (of_service(row, scrape) for row in SERVICE)


@dataclass(frozen=True, slots=True)
class Families(Collector):
    """What the client library's encoders take."""

    families: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


def up(*, is_up: bool) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}up", "1 when the ledger answered this scrape.", is_up)


def of_jobs(jobs: Sequence[Job]) -> Iterator[Metric]:
    yield job_info(jobs)
    yield from (counter(row, jobs) for row in COUNTERS)
    yield from (histogram(row, jobs) for row in HISTOGRAMS)
    yield from (gauge(row, jobs) for row in GAUGES)


def job_info(jobs: Sequence[Job]) -> Metric:
    family = InfoMetricFamily(f"{PREFIX}job", "How a job is scheduled, in labels.", labels=["job"])
    for job in jobs:
        family.add_metric([job.spec.name], described(job.spec))
    return family


def described(spec: JobSpec) -> dict[str, str]:
    return {
        "task": spec.work,
        "schedule": spec.schedule,
        "timezone": spec.timezone,
        "overlap": spec.overlap.value,
        "queue": spec.routed_queue or "",
    }


def job_labels(jobs: Sequence[Job], names: Sequence[str]) -> Metric:
    """As kube-state-metrics has them: ``label_tenant="acme"``, of the jobs that have any."""
    family = GaugeMetricFamily(
        f"{PREFIX}job_labels", "Labels of a job, those that SUPERVISOR_METRIC_LABELS names."
    )
    for job in jobs:
        own = job.spec.labels
        if shown := {f"label_{name}": own[name] for name in names if name in own}:
            family.add_sample(family.name, {"job": job.spec.name, **shown}, 1)
    return family


def counter(row: JobCounter, jobs: Sequence[Job]) -> Metric:
    label = [row.label] if row.label else []
    family = CounterMetricFamily(PREFIX + row.name, row.help, labels=["job", *label])
    places = [(value, row.field_of(value), [value] if row.label else []) for value in row.values]
    for job in jobs:
        for value, field, labels in places:
            count = job.numbers[field]
            if count or row.starts_at_zero(job.spec, value):
                family.add_metric([job.spec.name, *labels], count / row.scale)
    return family


def histogram(row: JobHistogram, jobs: Sequence[Job]) -> Metric:
    family = HistogramMetricFamily(PREFIX + row.name, row.help, labels=["job"])
    for job in jobs:
        observed = row.value(job)
        family.add_metric([job.spec.name], buckets(observed, row.bounds), observed.sum_seconds)
    return family


def buckets(observed: Histogram, bounds: Sequence[float]) -> list[tuple[str, float]]:
    """How many observations were up to each of these bounds, all of which the ledger counts by."""
    up_to = dict(zip(observed.bounds, accumulate(observed.counts), strict=False))
    shown: list[tuple[str, float]] = [(str(float(bound)), up_to[bound]) for bound in bounds]
    return [*shown, ("+Inf", observed.observations)]


def gauge(row: JobGauge, jobs: Sequence[Job]) -> Metric:
    family = GaugeMetricFamily(PREFIX + row.name, row.help, labels=["job"])
    for job in jobs:
        if (value := row.value(job)) is not None:
            family.add_metric([job.spec.name], value)
    return family


def of_service(row: ServiceMetric, scrape: Scrape) -> Metric:
    kind = CounterMetricFamily if row.is_counter else GaugeMetricFamily
    family = kind(PREFIX + row.name, row.help, labels=[row.label] if row.label else [])
    for name, value in row.values(scrape):
        if value is not None:
            family.add_metric([name] if row.label else [], value)
    return family


def label_names(text: str) -> tuple[str, ...]:
    """The labels that SUPERVISOR_METRIC_LABELS names: ``tenant,team``. Raises NotConfigured."""
    names = tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    wrong = [name for name in names if not re.fullmatch(LABEL_PATTERN, name)]
    if wrong:
        raise NotConfigured(
            f"SUPERVISOR_METRIC_LABELS: {', '.join(map(repr, wrong))} cannot be the name of a "
            "label; write names of labels with commas between, such as tenant,team"
        )
    if len(names) > MOST_LABELS:
        raise NotConfigured(
            f"SUPERVISOR_METRIC_LABELS names {len(names)} labels; {MOST_LABELS} are allowed"
        )
    return names
