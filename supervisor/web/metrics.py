"""The metrics, computed from the ledger at scrape. docs/reference/metrics.md explains each.

Counters live in Redis, written by the functions, so they survive the restart of every process. All
series of a loaded job are there from the start: a counter that first appears as 1 never increased.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import accumulate, chain
from operator import add, itemgetter, sub
from threading import Lock, Thread

from prometheus_client.exposition import choose_encoder
from redis.exceptions import RedisError

from supervisor.errors import InvalidRequest, NotConfigured
from supervisor.job.fields import LABEL_PATTERN, MOST_LABELS
from supervisor.job.spec import JobSpec
from supervisor.ledger.functions import BOUNDS
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.queues import Queues
from supervisor.ledger.reads import chunks
from supervisor.ledger.replies import ms_of
from supervisor.logs import get_logger
from supervisor.web.access_file import AccessFile
from supervisor.web.metrics_scrape import EVERYTHING, MOST_REMOVED, Job, Scrape, Scraper, Shard
from supervisor.web.metrics_table import (
    ACCESS_FILE,
    BUILD,
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    JOB,
    JOBS_GAUGES,
    KEY_COUNTERS,
    LABELS,
    SERVICE,
    UP,
    JobCounter,
    JobGauge,
    JobHistogram,
    JobsGauge,
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
            if part := "\n".join(filter(None, map(itemgetter(number_of_family), some))):
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
    """The job's labels, as kube-state-metrics has them: ``label_tenant="acme"``; or nothing."""
    found = {f"label_{name}": spec.labels[name] for name in names if name in spec.labels}
    if not found:
        return ""
    return f"{PREFIX}{LABELS[0]}{{{labels_of(job=spec.name, **found)}}} 1.0"


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


# Series summed by a label of jobs, for more jobs than Prometheus is to have series of.
#
# The counters of a group of jobs cannot be the sum of theirs: it would fall when a job is removed,
# and Prometheus would take that for a reset, and count all of the rest again. So they are of this
# process, as those of most programs: from when it first saw the ledger they count what the jobs
# count from scrape to scrape.


def label_pair(label: str, value: str) -> str:
    return labels_of(**{f"label_{label}": value})


class Totals:
    """By the value of one label, empty for jobs without it. Not thread-safe."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._since: int | None = None
        self._counted: dict[str, Job] = {}
        self._sums: dict[str, list[float]] = {}

    def add(self, scrape: Scrape) -> dict[str, list[Job]]:
        """What the jobs have counted since the last scrape; gives them by the value."""
        if self._since is None:
            self._since = ms_of(scrape.at)
        groups: dict[str, list[Job]] = {}
        for job in scrape.jobs:
            value = job.spec.labels.get(self._label, "")
            groups.setdefault(value, []).append(job)
            known = self._counted.get(job.spec.name)
            if known is not job:
                self._count(value, job, known)
        if len(self._counted) > 2 * len(scrape.jobs) + MOST_REMOVED:
            names = {job.spec.name for job in scrape.jobs}
            self._counted = {n: seen for n, seen in self._counted.items() if n in names}
        return dict(sorted(groups.items()))

    def _count(self, value: str, job: Job, known: Job | None) -> None:
        self._counted[job.spec.name] = job
        sums = self._sums.setdefault(value, [0.0] * SUMMED_NUMBERS)
        if known and known.status.created == job.status.created:
            if known.counted != job.counted:
                sums[:] = map(add, sums, map(sub, summed(job), summed(known)))
        elif known or job.status.created > (self._since or 0):
            sums[:] = map(add, sums, summed(job))

    def lines(self, form: Format, scrape: Scrape) -> Iterator[str]:
        groups, now = self.add(scrape), scrape.at.timestamp()
        texts = [self._text(value) for value in groups]
        for place, row in enumerate(SUMMED_FAMILIES):
            yield form.head(row.name, row.kind, row.help)
            yield from (text[place] for text in texts)
        for gauge_row in JOBS_GAUGES:
            yield form.head(gauge_row.name, "gauge", gauge_row.help)
            for value, jobs in groups.items():
                if (found := of_several(gauge_row, jobs, now)) is not None:
                    pair = label_pair(self._label, value)
                    yield f"{PREFIX}{gauge_row.name}{{{pair}}} {number(found)}"

    def _text(self, value: str) -> Texts:
        found = SUMMED % tuple(self._sums[value])
        return found.replace(LABEL, label_pair(self._label, value)).split(END)


def of_several(row: JobsGauge, jobs: Sequence[Job], now: float) -> float | None:
    values = (row.value(job, now) for job in jobs)
    if row.is_least:
        return min((value for value in values if value is not None), default=None)
    return sum(value or 0 for value in values)


def summed(job: Job) -> Sequence[float]:
    return (*counts(job), *observations(job), *job.counters[len(COUNTED_OF_ALL) :])


SUMMED_FAMILIES: tuple[JobCounter | JobHistogram | KeyCounter, ...] = (
    *COUNTERS,
    *HISTOGRAMS,
    *KEY_COUNTERS,
)

SUMMED = END.join(
    [
        *("\n".join(counter_lines(row, has_created=False)) for row in COUNTERS),
        *("\n".join(histogram_lines(row, has_created=False)) for row in HISTOGRAMS),
        *(f"{PREFIX}{row.name}_total{{{LABEL}}} %d.0" for row in KEY_COUNTERS),
    ]
)

#: How many numbers of a job are summed.
SUMMED_NUMBERS = SUMMED.count("%")

#: Up to this many jobs, the first scrape makes the text of all of them. A ledger with more is
#: scraped in shards, or summed.
MOST_TEXTS_AHEAD = 20_000


@dataclass(frozen=True, slots=True)
class View:
    """The part of the metrics that is asked for. by: sums by this label, without series of jobs."""

    shard: Shard = EVERYTHING
    by: str | None = None


def view_of(query: Mapping[str, str], by: str | None = None) -> View:
    """``shard=2&total_shards=8``, counted from 0, or ``by=tenant``. by: what it is by default.

    Raises InvalidRequest.
    """
    if "by" in query:
        by = query["by"] or None
    number, of = query.get("shard", "0"), query.get("total_shards", "1")
    are_numbers = all(text.isdecimal() and len(text) <= 4 for text in (number, of))
    is_shard = are_numbers and int(number) < int(of) <= MOST_SHARDS
    if not is_shard or ("shard" in query) != ("total_shards" in query):
        raise InvalidRequest(
            "shard and total_shards: say ?shard=0&total_shards=8 and so on to shard=7; there may be"
            f" {MOST_SHARDS}"
        )
    if by is not None and not re.fullmatch(LABEL_PATTERN, by):
        raise InvalidRequest(f"by: {by[:100]!r} cannot be the name of a label")
    if "shard" in query and by is not None:
        raise InvalidRequest("sums are of all jobs: ask either for a shard or by a label")
    return View(Shard(int(number), int(of)), by)


MOST_SHARDS = 1_000

#: Labels of which sums are kept at a time: those of 100,000 jobs by one label take 70 MB.
MOST_SUMS = 5

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

log = get_logger("supervisor.metrics")

VERSION = version("celery-beat-supervisor")


#: A scrape of sums waits this long for them: less than it may take (server.SCRAPE_SECONDS).
SUMS_SECONDS = 2.0


@dataclass(slots=True)
class Sums:
    """The text of the sums by a label, as last computed, and the thread that computes it."""

    found: Sequence[str] = ()
    thread: Thread | None = None


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
    names of those of jobs that are shown. access_file: of this server, if it has one. by: the label
    by which series are summed unless a scrape says otherwise.
    """

    def __init__(
        self,
        ledger: Ledger,
        queues: Queues | None = None,
        *,
        has_created: bool = True,
        labels: Sequence[str] = (),
        access_file: AccessFile | None = None,
        by: str | None = None,
    ) -> None:
        self.by = by
        self._totals: dict[str, Totals] = {}
        self._sums: dict[tuple[str, Format], Sums] = {}
        self._sums_lock = Lock()
        self._access_file = access_file
        self._ledger = ledger
        self._scraper = Scraper(ledger, queues, COUNTED)
        self._has_created = has_created
        self._labels = labels
        self._texts: dict[str, Kept] = {}
        self._lock = Lock()

    def exposed(self, accept: str = "", view: View | None = None) -> tuple[Iterator[str], str]:
        """The text and its content type, as the header of a request asks for it.

        The text comes in parts of whole lines: for thousands of jobs it has tens of megabytes,
        which would be in memory twice while they are sent.
        """
        form, view = self._form(accept), view or View(by=self.by)
        try:
            if view.by is not None:
                sums = self._sums_by(view.by, form)
                return whole(form, sums) if sums else self.without_ledger(accept)
            with self._lock:
                scrape = self._scraper.scrape(view.shard)
                jobs = of_jobs(form, self._texts_of(form, scrape))
        except (RedisError, OSError) as error:
            log.warning("scrape failed", error=str(error))
            return self.without_ledger(accept)
        service = self._of_service(form, scrape) if view.shard.is_first else ()
        return whole(form, chain(gauge(form, UP, 1), jobs, service))

    def _sums_by(self, label: str, form: Format) -> Sequence[str]:
        """Computed in a thread of its own. What takes longer than a scrape waits is for the next
        one; this one has what was found before. Empty if the ledger was unavailable."""
        with self._sums_lock:
            sums = self._sums.setdefault((label, form), Sums())
            if sums.thread is None or not sums.thread.is_alive():
                compute = partial(self._compute_sums, sums, label, form)
                sums.thread = Thread(target=compute, name="sums", daemon=True)
                sums.thread.start()
        thread = sums.thread
        thread.join(SUMS_SECONDS if sums.found else None)
        if thread.is_alive():
            self._ledger.now()  # raises what an unavailable ledger raises
        return sums.found

    def _compute_sums(self, sums: Sums, label: str, form: Format) -> None:
        found: Sequence[str] = ()
        try:
            with self._lock:
                scrape = self._scraper.scrape()
                lines = "\n".join(self._totals_by(label).lines(form, scrape))
                found = (*gauge(form, UP, 1), lines, *self._of_service(form, scrape))
        except (RedisError, OSError) as error:
            log.warning("scrape failed", error=str(error))
        finally:
            sums.found = found

    def _totals_by(self, label: str) -> Totals:
        """Those asked for longest ago are forgotten: their counters begin again at 0."""
        self._totals[label] = totals = self._totals.pop(label, None) or Totals(label)
        if len(self._totals) > MOST_SUMS:
            oldest = next(iter(self._totals))
            del self._totals[oldest]
            with self._sums_lock:
                self._sums = {key: sums for key, sums in self._sums.items() if key[0] != oldest}
        return totals

    def _of_service(self, form: Format, scrape: Scrape) -> Iterator[str]:
        yield from build(form, VERSION)
        if file := self._access_file:
            yield from gauge(form, ACCESS_FILE, file.is_valid)
        yield "\n".join(chain.from_iterable(service_lines(form, row, scrape) for row in SERVICE))

    def without_ledger(self, accept: str = "") -> tuple[Iterator[str], str]:
        """``supervisor_up 0``, without a call to Redis."""
        form = self._form(accept)
        return whole(form, gauge(form, UP, 0))

    def scrape_first(self) -> None:
        """Computes what later scrapes remember, so that no request has to wait for it."""
        try:
            with self._lock:
                scrape = self._scraper.scrape()
            if self.by is not None or scrape.loaded <= MOST_TEXTS_AHEAD:
                self.exposed(OPENMETRICS)
        except Exception:  # the next request reports it
            log.exception("first scrape failed")

    def _form(self, accept: str) -> Format:
        _, chosen = choose_encoder(accept)
        is_openmetrics = chosen.startswith("application/openmetrics-text")
        return Format(is_openmetrics, has_created=is_openmetrics and self._has_created)

    def _texts_of(self, form: Format, scrape: Scrape) -> list[Texts]:
        known, found = self._texts, []
        for job in scrape.jobs:
            name = job.spec.name
            kept = known.pop(name, None)  # so that the old text is freed first
            if kept is None or kept.job is not job or kept.form != form:
                is_same_spec = kept is not None and kept.job.spec is job.spec
                infos = kept.texts[:2] if kept and is_same_spec else None
                kept = Kept(job, form, job_texts(form, job, self._labels, infos))
            known[name] = kept
            found.append(kept.texts)
        if len(known) > scrape.loaded:
            self._texts = {job.spec.name: known[job.spec.name] for job in scrape.jobs}
        return found


def whole(form: Format, parts: Iterable[str]) -> tuple[Iterator[str], str]:
    """Lines up to the end, and their content type."""
    end = ["# EOF"] if form.is_openmetrics else []
    lines = (f"{part}\n" for part in chain(parts, end))
    return lines, OPENMETRICS if form.is_openmetrics else TEXT


def gauge(form: Format, row: tuple[str, str], value: float) -> Iterator[str]:
    name, text = row
    yield form.head(name, "gauge", text)
    yield f"{PREFIX}{name} {number(value)}"
