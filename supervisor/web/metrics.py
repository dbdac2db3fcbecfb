"""The metrics, computed from the ledger at scrape. docs/metrics.md explains each.

Counters live in Redis, written by the scripts, so they survive the restart of every process. All
series of a loaded job are there from the start: a counter that first appears as 1 never increased.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from threading import Lock

import structlog
from prometheus_client.exposition import choose_encoder
from redis.exceptions import RedisError

from supervisor.execution.consumption import Queues
from supervisor.ledger.runs import Ledger
from supervisor.web import exposition, job_lines
from supervisor.web.exposition import Format
from supervisor.web.scrape import Job, Scrape, Scraper
from supervisor.web.table import PROCESS_GAUGES, QUEUE_GAUGES, SINGLES, UP

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

log = structlog.get_logger("supervisor.metrics")

VERSION = version("celery-beat-supervisor")


@dataclass(frozen=True, slots=True)
class Kept:
    """What a job came to in the last scrape."""

    job: Job
    form: Format
    texts: job_lines.Texts


class Metrics:
    """All metrics of one ledger. With the ledger away only ``supervisor_up 0`` is left.

    queues: of the app's broker; without, what the ledger and the workers tell of them. has_created:
    in OpenMetrics, each counter comes with the time since when it counts.
    """

    def __init__(
        self, ledger: Ledger, queues: Queues | None = None, *, has_created: bool = True
    ) -> None:
        self._scraper = Scraper(ledger, queues, job_lines.COUNTED)
        self._has_created = has_created
        self._texts: dict[str, Kept] = {}
        self._lock = Lock()

    def exposed(self, accept: str = "") -> tuple[Iterator[str], str]:
        """The text and its content type, as the header of a request asks for it.

        The text comes in parts of whole lines, all of one scrape: of thousands of jobs it has
        tens of megabytes, which would be in memory twice while they are sent.
        """
        form = self._form(accept)
        try:
            with self._lock:
                scrape = self._scraper.scrape()
                texts = self._texts_of(form, scrape.jobs)
        except (RedisError, OSError) as error:
            log.warning("not scraped", error=str(error))
            return self.without_ledger(accept)
        parts = chain(
            up(form, is_up=True),
            exposition.build(form, VERSION),
            job_lines.of_jobs(form, texts),
            ["\n".join(of_service(form, scrape))],
        )
        return whole(form, parts)

    def without_ledger(self, accept: str = "") -> tuple[Iterator[str], str]:
        """``supervisor_up 0``, without asking for anything."""
        form = self._form(accept)
        return whole(form, up(form, is_up=False))

    def scrape_first(self) -> None:
        """Works out what the scrapes to come remember, so that none of them takes longest."""
        try:
            self.exposed(OPENMETRICS)
        except Exception:  # whoever asks first will hear of it
            log.exception("first scrape failed")

    def _form(self, accept: str) -> Format:
        _, chosen = choose_encoder(accept)
        is_openmetrics = chosen.startswith("application/openmetrics-text")
        return Format(is_openmetrics, has_created=is_openmetrics and self._has_created)

    def _texts_of(self, form: Format, jobs: Sequence[Job]) -> list[job_lines.Texts]:
        known, self._texts = self._texts, {}
        for job in jobs:
            name = job.spec.name
            kept = known.pop(name, None)  # what it is not any more makes room for what it is
            if kept is None or kept.job is not job or kept.form != form:
                is_same_spec = kept is not None and kept.job.spec is job.spec
                info_line = kept.texts[0] if kept and is_same_spec else None
                kept = Kept(job, form, job_lines.job_texts(form, job, info_line))
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
    yield f"{exposition.PREFIX}{name} {exposition.number(is_up)}"


def of_service(form: Format, scrape: Scrape) -> Iterator[str]:
    for queue_gauge in QUEUE_GAUGES:
        yield from exposition.queue_gauge(form, queue_gauge, scrape.queues)
    for process_gauge in PROCESS_GAUGES:
        yield from exposition.process_gauge(form, process_gauge, scrape)
    for single in SINGLES:
        yield from exposition.single(form, single, scrape)
