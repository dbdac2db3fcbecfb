"""Rows of the table and what a scrape found -> lines of Prometheus' text format, or of OpenMetrics.

Written by hand and not by the client library, which makes several objects of each sample: 10,000
jobs are 750,000 of them. The tests read it with the library's parsers, and promtool does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from supervisor.execution.consumption import Queue
from supervisor.web.rows import ProcessGauge, QueueGauge, Single
from supervisor.web.scrape import Scrape
from supervisor.web.table import BUILD

PREFIX = "supervisor_"


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
