"""The metrics, computed from the ledger at scrape. docs/reference/metrics.md explains each.

Counters live in Redis, written by the functions, so they survive the restart of every process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from redis.exceptions import RedisError

from supervisor.errors import NotConfigured
from supervisor.job.fields import LABEL_PATTERN
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.queues import Queues
from supervisor.logs import get_logger
from supervisor.web.access_file import AccessFile
from supervisor.web.metric_families import PREFIX, gauge, single
from supervisor.web.metrics_scrape import Scrape, Scraper
from supervisor.web.metrics_table import (
    COUNTERS,
    job_labels,
    of_jobs,
    of_service,
)

VERSION = version("celery-beat-supervisor")

UP = "1 when the ledger answered this scrape."

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
        counters = (name for row in COUNTERS for name, _ in row.series)
        self._scraper = Scraper(ledger, queues, counters)
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
        families = [gauge("up", UP, single(False))] if scrape is None else self._families(scrape)
        encode: Callable[[Any], bytes]
        encode, content_type = choose_encoder(accept)
        return encode(SimpleNamespace(collect=lambda: families)), content_type

    def _families(self, scrape: Scrape) -> Iterator[Metric]:
        """One after the other: the samples of all jobs are never in memory at once."""
        yield gauge("up", UP, single(True))
        yield InfoMetricFamily(
            f"{PREFIX}build", "The version that serves this.", {"version": VERSION}
        )
        if self._access_file:
            help = "1 while the access file is in force, 0 while an earlier version of it is."
            yield gauge("access_file_valid", help, single(self._access_file.is_valid))
        yield from of_jobs(scrape.jobs)
        if self._labels:
            yield job_labels(scrape.jobs, self._labels)
        yield from of_service(scrape)


def label_names(text: str) -> tuple[str, ...]:
    """The labels that SUPERVISOR_METRIC_LABELS names: ``tenant,team``. Raises NotConfigured."""
    names = tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    wrong = [name for name in names if not re.fullmatch(LABEL_PATTERN, name)]
    if wrong:
        raise NotConfigured(
            f"SUPERVISOR_METRIC_LABELS: {', '.join(map(repr, wrong))} cannot be the name of a "
            "label; write names of labels with commas between, such as tenant,team"
        )
    return names
