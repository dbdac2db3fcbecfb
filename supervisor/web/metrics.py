"""The metrics, computed from the ledger at scrape. docs/metrics.md explains each.

Counters live in Redis, written by the functions, so they survive the restart of every process. All
series of a loaded job are there from the start: a counter that first appears as 1 never increased.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate, chain
from threading import Lock

from prometheus_client.exposition import choose_encoder
from redis.exceptions import RedisError

from supervisor.errors import NotConfigured
from supervisor.job.fields import LABEL_PATTERN, MOST_LABELS
from supervisor.job.spec import JobSpec
from supervisor.ledger.functions import BOUNDS
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.queues import Queues
from supervisor.ledger.reads import chunks
from supervisor.logs import get_logger
from supervisor.web.metrics_scrape import Job, Scrape, Scraper
from supervisor.web.metrics_table import (
    BUILD,
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    JOB,
    KEY_COUNTERS,
    LABELS,
    SERVICE,
    UP,
    JobCounter,
    JobGauge,
    JobHistogram,
    KeyCounter,
    ServiceMetric,
)

# Lines of Prometheus' text format, or of OpenMetrics. Written by hand, not by the client library,
# which makes several objects of each sample: 10,000 jobs have 750,000. The tests read the text with
# the library's parsers and with promtool.

PREFIX = "supervisor_"


@dataclass(frozen=True, slots=True)
class Format:
    """has_created: with the time since when each counter and histogram counts; OpenMetrics only."""

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


def service_lines(form: Format, row: ServiceMetric, scrape: Scrape) -> Iterator[str]:
    values = {name: value for name, value in row.values(scrape) if value is not None}
    if not values and row.label is None:
        return
    yield form.head(row.name, row.kind, row.help)
    for name, value in values.items():
        labels = f"{{{labels_of(**{row.label: name})}}}" if row.label else ""
        total = "_total" if row.kind == "counter" else ""
        yield f"{PREFIX}{row.name}{total}{labels} {number(value)}"


# The lines of a job are one template, made once for all jobs: its numbers are put in together, and
# then its label everywhere.

BUCKETS = tuple(f'le="{bound}"' for bound in (*map(float, BOUNDS), "+Inf"))

#: Places in the template: of the label `job`, of the time since when it counts, of a family's end.
LABEL, CREATED, END = "\0", "\1", "\2"

FAMILIES: tuple[JobCounter | JobHistogram | JobGauge | KeyCounter, ...] = (
    *COUNTERS,
    *HISTOGRAMS,
    *GAUGES,
    *KEY_COUNTERS,
)

#: Fields of a job's hash: those that each job has, in the order of their lines, then the others.
COUNTED_OF_ALL = tuple(field for row in COUNTERS for field in row.fields)
COUNTED = (*COUNTED_OF_ALL, *(row.field for row in KEY_COUNTERS))

#: Places of those that count in smaller units than they are reported in, and how many make one.
SCALES = tuple(
    (at, scale)
    for at, scale in enumerate(row.scale for row in COUNTERS for _ in row.fields)
    if scale != 1
)

#: What the line of each gauge begins with, and its value.
GAUGE_LINES = tuple((f"{PREFIX}{row.name}{{{LABEL}}} ", row.value) for row in GAUGES)

#: A family's lines are sent in parts of that many jobs: a few megabytes each.
JOBS_PER_PART = 2_000

#: Lines of one job, a text for each of: its info, its labels, FAMILIES. Empty where it has none.
Texts = Sequence[str]


def of_jobs(form: Format, texts: Sequence[Texts]) -> Iterator[str]:
    heads = [form.head(JOB[0], "info", JOB[1]), form.head(LABELS[0], "gauge", LABELS[1])]
    heads += [form.head(row.name, row.kind, row.help) for row in FAMILIES]
    for number_of_family, head in enumerate(heads):
        yield head
        for some in chunks(texts, JOBS_PER_PART):
            if part := "\n".join(filter(None, [of_job[number_of_family] for of_job in some])):
                yield part


def job_texts(
    form: Format, job: Job, labels: Sequence[str] = (), infos: Texts | None = None
) -> Texts:
    """`labels`: names of those to show. `infos`: of the spec, where they are known already."""
    created = job.status.created
    template = WITH_CREATED if form.has_created and created else PLAIN
    numbers = (*counts(job), *observations(job), *gauges(job), *key_counters(form, job))
    text = (template % numbers).replace(LABEL, labels_of(job=job.spec.name))
    if created:
        text = text.replace(CREATED, number(created / 1000))
    infos = infos or (info(JOB, facts_of(job.spec)), labels_line(job.spec, labels))
    return *infos, *text.split(END)


def labels_line(spec: JobSpec, names: Sequence[str]) -> str:
    """As kube-state-metrics has them: ``label_tenant="acme"``. Empty for a job that has none."""
    found = {f"label_{name}": spec.labels[name] for name in names if name in spec.labels}
    if not found:
        return ""
    return f"{PREFIX}{LABELS[0]}{{{labels_of(job=spec.name, **found)}}} 1.0"


def label_names(text: str) -> tuple[str, ...]:
    """Those that SUPERVISOR_METRIC_LABELS names: ``tenant,team``. Raises NotConfigured."""
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
    counted: list[float] = [*job.counters[: len(COUNTED_OF_ALL)]]
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


def key_counters(form: Format, job: Job) -> Iterator[str]:
    has_created = form.has_created and bool(job.status.created)
    for row, count in zip(KEY_COUNTERS, job.counters[len(COUNTED_OF_ALL) :], strict=True):
        has_key = getattr(job.spec, row.key) is not None
        lines = [f"{PREFIX}{row.name}_total{{{LABEL}}} {number(count)}"]
        lines += created(row.name) if has_created else []
        yield "\n".join(lines) if has_key else ""


def template(*, has_created: bool) -> str:
    """For the numbers of counts(), observations(), gauges() and key_counters(), in this order."""
    lines = [counter_lines(row, has_created) for row in COUNTERS]
    lines += [histogram_lines(row, has_created) for row in HISTOGRAMS]
    lines += [["%s"] for _ in (*GAUGES, *KEY_COUNTERS)]
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


TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

log = get_logger("supervisor.metrics")

VERSION = version("celery-beat-supervisor")


@dataclass(frozen=True, slots=True)
class Kept:
    """A job's lines in the last scrape."""

    job: Job
    form: Format
    texts: Texts


class Metrics:
    """All metrics of one ledger; only ``supervisor_up 0`` while the ledger is unavailable.

    queues: of the app's broker; without it, as the ledger and the workers report them.
    has_created: in OpenMetrics, each counter comes with the time since when it counts. labels:
    names of those of jobs that are shown.
    """

    def __init__(
        self,
        ledger: Ledger,
        queues: Queues | None = None,
        *,
        has_created: bool = True,
        labels: Sequence[str] = (),
    ) -> None:
        self._scraper = Scraper(ledger, queues, COUNTED)
        self._has_created = has_created
        self._labels = labels
        self._texts: dict[str, Kept] = {}
        self._lock = Lock()

    def exposed(self, accept: str = "") -> tuple[Iterator[str], str]:
        """The text and its content type, as the header of a request asks for it.

        The text comes in parts of whole lines: for thousands of jobs it has tens of megabytes,
        which would be in memory twice while they are sent.
        """
        form = self._form(accept)
        try:
            with self._lock:
                scrape = self._scraper.scrape()
                texts = self._texts_of(form, scrape.jobs)
        except (RedisError, OSError) as error:
            log.warning("scrape failed", error=str(error))
            return self.without_ledger(accept)
        parts = chain(
            up(form, is_up=True),
            build(form, VERSION),
            of_jobs(form, texts),
            ["\n".join(chain.from_iterable(service_lines(form, row, scrape) for row in SERVICE))],
        )
        return whole(form, parts)

    def without_ledger(self, accept: str = "") -> tuple[Iterator[str], str]:
        """``supervisor_up 0``, without a call to Redis."""
        form = self._form(accept)
        return whole(form, up(form, is_up=False))

    def scrape_first(self) -> None:
        """Computes what later scrapes remember, so that no request has to wait for it."""
        try:
            self.exposed(OPENMETRICS)
        except Exception:  # the next request reports it
            log.exception("first scrape failed")

    def _form(self, accept: str) -> Format:
        _, chosen = choose_encoder(accept)
        is_openmetrics = chosen.startswith("application/openmetrics-text")
        return Format(is_openmetrics, has_created=is_openmetrics and self._has_created)

    def _texts_of(self, form: Format, jobs: Sequence[Job]) -> list[Texts]:
        known, self._texts = self._texts, {}
        for job in jobs:
            name = job.spec.name
            kept = known.pop(name, None)  # so that the old text is freed first
            if kept is None or kept.job is not job or kept.form != form:
                is_same_spec = kept is not None and kept.job.spec is job.spec
                infos = kept.texts[:2] if kept and is_same_spec else None
                kept = Kept(job, form, job_texts(form, job, self._labels, infos))
            self._texts[name] = kept
        return [kept.texts for kept in self._texts.values()]


def whole(form: Format, parts: Iterable[str]) -> tuple[Iterator[str], str]:
    """Lines up to the end, and their content type."""
    end = ["# EOF"] if form.is_openmetrics else []
    lines = (f"{part}\n" for part in chain(parts, end))
    return lines, OPENMETRICS if form.is_openmetrics else TEXT


def up(form: Format, *, is_up: bool) -> Iterator[str]:
    name, text = UP
    yield form.head(name, "gauge", text)
    yield f"{PREFIX}{name} {number(is_up)}"
