"""Rows of the table and what a scrape found -> lines of Prometheus' text format, or of OpenMetrics.

Written by hand and not by the client library, which makes several objects of each sample: 10,000
jobs are 750,000 of them. The tests read it with the library's parsers, and promtool does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from supervisor.consumption import Queue
from supervisor.ledger.scripts import BOUNDS
from supervisor.spec import JobSpec
from supervisor.web.rows import (
    JobCounter,
    JobGauge,
    JobHistogram,
    ProcessGauge,
    QueueGauge,
    Single,
)
from supervisor.web.scrape import Job, Scrape
from supervisor.web.table import BUILD, COUNTERS, GAUGES, HISTOGRAMS, JOB

PREFIX = "supervisor_"

BUCKETS = tuple(f'le="{bound}"' for bound in (*map(float, BOUNDS), "+Inf"))


@dataclass(frozen=True, slots=True)
class Format:
    """has_created: each counter and histogram says since when it counts; OpenMetrics alone can."""

    is_openmetrics: bool
    has_created: bool

    def head(self, name: str, kind: str, text: str) -> str:
        """`name` is without the suffix of its samples, as OpenMetrics calls the family."""
        if not self.is_openmetrics:
            name, kind = {
                "counter": (f"{name}_total", kind),
                "info": (f"{name}_info", "gauge"),
            }.get(kind, (name, kind))
        return f"# HELP {PREFIX}{name} {text}\n# TYPE {PREFIX}{name} {kind}"

    def created(self, name: str, labels: str, moment: datetime | None) -> list[str]:
        if not self.has_created or moment is None:
            return []
        return [f"{PREFIX}{name}_created{{{labels}}} {moment.timestamp()}"]


def labels_of(**labels: str) -> str:
    return ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def number(value: float) -> str:
    return repr(float(value))


def info(row: tuple[str, str], facts: Mapping[str, str]) -> str:
    return f"{PREFIX}{row[0]}_info{{{labels_of(**facts)}}} 1.0"


def build(form: Format, version: str) -> Iterator[str]:
    yield form.head(BUILD[0], "info", BUILD[1])
    yield info(BUILD, {"version": version})


#: What each job has, in order, after its info.
FAMILIES: tuple[JobCounter | JobHistogram | JobGauge, ...] = (*COUNTERS, *HISTOGRAMS, *GAUGES)


def of_jobs(form: Format, texts: Sequence[Sequence[str]]) -> Iterator[str]:
    """`texts`: of each job its lines of each family, as job_texts() has them."""
    heads = [form.head(JOB[0], "info", JOB[1])]
    heads += [form.head(row.name, kind_of(row), row.help) for row in FAMILIES]
    for number, head in enumerate(heads):
        yield head
        yield from [of_job[number] for of_job in texts if of_job[number]]


def kind_of(row: JobCounter | JobHistogram | JobGauge) -> str:
    match row:
        case JobCounter():
            return "counter"
        case JobHistogram():
            return "histogram"
        case JobGauge():
            return "gauge"


def job_texts(form: Format, job: Job) -> tuple[str, ...]:
    """The job's lines of each family; nothing for a series that is left out."""
    label = labels_of(job=job.record.spec.name)
    return (
        info(JOB, facts_of(job.record.spec)),
        *(counter(form, row, job, label) for row in COUNTERS),
        *(histogram(form, row, job, label) for row in HISTOGRAMS),
        *(gauge(row, job, label) for row in GAUGES),
    )


def facts_of(spec: JobSpec) -> Mapping[str, str]:
    return {
        "job": spec.name,
        "task": spec.work,
        "schedule": spec.schedule,
        "timezone": spec.timezone,
        "overlap": spec.overlap.value,
        "queue": spec.routed_queue or "",
    }


def counter(form: Format, row: JobCounter, job: Job, label: str) -> str:
    parts = [("", row.field)]
    if row.label is not None:
        parts = [(f',{row.label}="{value}"', f"{row.field}:{value}") for value in row.values]
    lines = []
    for part, field in parts:
        value = number(job.record.counters.get(field, 0) / row.scale)
        lines.append(f"{PREFIX}{row.name}_total{{{label}{part}}} {value}")
        lines += form.created(row.name, label + part, job.record.created_at)
    return "\n".join(lines)


def histogram(form: Format, row: JobHistogram, job: Job, label: str) -> str:
    name, observed, total = PREFIX + row.name, row.value(job.record), 0
    lines = []
    for bucket, count in zip(BUCKETS, observed.counts, strict=True):
        total += count
        lines.append(f"{name}_bucket{{{label},{bucket}}} {total}.0")
    lines.append(f"{name}_count{{{label}}} {total}.0")
    lines.append(f"{name}_sum{{{label}}} {number(observed.sum_seconds)}")
    return "\n".join([*lines, *form.created(row.name, label, job.record.created_at)])


def gauge(row: JobGauge, job: Job, label: str) -> str:
    value = row.value(job)
    return "" if value is None else f"{PREFIX}{row.name}{{{label}}} {number(value)}"


def queue_gauge(form: Format, row: QueueGauge, queues: Iterable[Queue]) -> Iterator[str]:
    yield form.head(row.name, "gauge", row.help)
    for queue in queues:
        if (value := row.value(queue)) is not None:
            yield f"{PREFIX}{row.name}{{{labels_of(queue=queue.name)}}} {number(value)}"


def process_gauge(form: Format, row: ProcessGauge, scrape: Scrape) -> Iterator[str]:
    yield form.head(row.name, "gauge", row.help)
    for name, value in dict(row.values(scrape)).items():
        yield f"{PREFIX}{row.name}{{{labels_of(**{row.label: name})}}} {number(value)}"


def single(form: Format, row: Single, scrape: Scrape) -> Iterator[str]:
    value = row.value(scrape)
    if value is None:
        return
    yield form.head(row.name, "counter" if row.is_counter else "gauge", row.help)
    yield f"{PREFIX}{row.name}{'_total' if row.is_counter else ''} {number(value)}"
