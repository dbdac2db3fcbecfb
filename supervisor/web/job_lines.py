"""What a scrape found of the jobs -> their lines.

The lines of a job are one template, made once for all jobs: its numbers are put in together, and
then its label everywhere. Ten thousand jobs have 750,000 lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from supervisor.job.spec import JobSpec
from supervisor.ledger.readings import chunks
from supervisor.ledger.scripts import BOUNDS
from supervisor.web.exposition import PREFIX, Format, info, labels_of, number
from supervisor.web.rows import JobCounter, JobGauge, JobHistogram
from supervisor.web.scrape import Job
from supervisor.web.table import COUNTERS, GAUGES, HISTOGRAMS, JOB

BUCKETS = tuple(f'le="{bound}"' for bound in (*map(float, BOUNDS), "+Inf"))

#: Where in the template the label `job` goes, the time since when is counted, and a family ends.
LABEL, CREATED, END = "\0", "\1", "\2"

FAMILIES: tuple[JobCounter | JobHistogram | JobGauge, ...] = (*COUNTERS, *HISTOGRAMS, *GAUGES)

#: Of a job's hash, in the order of their lines.
COUNTED = tuple(field for row in COUNTERS for field in row.fields)

#: Where in them one is counted in smaller units than it is told in, and how many make one.
SCALES = tuple(
    (at, scale)
    for at, scale in enumerate(row.scale for row in COUNTERS for _ in row.fields)
    if scale != 1
)

#: What the line of each gauge begins with, and its value.
GAUGE_LINES = tuple((f"{PREFIX}{row.name}{{{LABEL}}} ", row.value) for row in GAUGES)

#: Of so many a family's lines are put together at a time: megabytes, and not a hundred of them.
JOBS_PER_PART = 2_000

#: Lines of one job, a text for each of: its info, FAMILIES. Empty where it has none.
Texts = Sequence[str]


def of_jobs(form: Format, texts: Sequence[Texts]) -> Iterator[str]:
    heads = [form.head(JOB[0], "info", JOB[1])]
    heads += [form.head(row.name, kind_of(row), row.help) for row in FAMILIES]
    for number_of_family, head in enumerate(heads):
        yield head
        for some in chunks(texts, JOBS_PER_PART):
            if part := "\n".join(filter(None, [of_job[number_of_family] for of_job in some])):
                yield part


def kind_of(row: JobCounter | JobHistogram | JobGauge) -> str:
    match row:
        case JobCounter():
            return "counter"
        case JobHistogram():
            return "histogram"
        case JobGauge():
            return "gauge"


def job_texts(form: Format, job: Job, info_line: str | None = None) -> Texts:
    """`info_line`: that of the job's spec, if it is known already."""
    created = job.status.created
    template = WITH_CREATED if form.has_created and created else PLAIN
    numbers = (*counts(job), *observations(job), *gauges(job))
    text = (template % numbers).replace(LABEL, labels_of(job=job.spec.name))
    if created:
        text = text.replace(CREATED, number(created / 1000))
    return info_line or info(JOB, facts_of(job.spec)), *text.split(END)


def facts_of(spec: JobSpec) -> Mapping[str, str]:
    return {
        "job": spec.name,
        "task": spec.work,
        "schedule": spec.schedule,
        "timezone": spec.timezone,
        "overlap": spec.overlap.value,
        "queue": spec.routed_queue or "",
    }


def counts(job: Job) -> Sequence[float]:
    counted: list[float] = [*job.counters]
    for at, scale in SCALES:
        counted[at] /= scale
    return counted


def observations(job: Job) -> Iterator[float]:
    for row in HISTOGRAMS:
        observed = row.value(job)
        yield from accumulate(observed.counts)
        yield observed.observations
        yield observed.sum_seconds


def gauges(job: Job) -> Iterator[str]:
    for beginning, value_of in GAUGE_LINES:
        value = value_of(job)
        yield "" if value is None else beginning + number(value)


def template(*, has_created: bool) -> str:
    """For the numbers of counts(), observations() and gauges(), in this order."""
    lines = [counter_lines(row, has_created) for row in COUNTERS]
    lines += [histogram_lines(row, has_created) for row in HISTOGRAMS]
    lines += [["%s"] for _ in GAUGES]
    return END.join("\n".join(of_family) for of_family in lines)


def counter_lines(row: JobCounter, has_created: bool) -> list[str]:
    shape = "%d.0" if row.scale == 1 else "%r"
    lines = []
    for label in row.labels:
        lines.append(f"{PREFIX}{row.name}_total{{{LABEL}{label}}} {shape}")
        lines += created(row.name, label) if has_created else []
    return lines


def histogram_lines(row: JobHistogram, has_created: bool) -> list[str]:
    name = PREFIX + row.name
    return [
        *(f"{name}_bucket{{{LABEL},{bucket}}} %d.0" for bucket in BUCKETS),
        f"{name}_count{{{LABEL}}} %d.0",
        f"{name}_sum{{{LABEL}}} %r",
        *(created(row.name) if has_created else []),
    ]


def created(name: str, label: str = "") -> list[str]:
    return [f"{PREFIX}{name}_created{{{LABEL}{label}}} {CREATED}"]


PLAIN, WITH_CREATED = template(has_created=False), template(has_created=True)
