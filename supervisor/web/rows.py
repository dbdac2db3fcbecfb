"""The kinds of rows in the table of metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from supervisor.execution.consumption import Queue
from supervisor.ledger.histograms import Histogram
from supervisor.web.scrape import Job, Scrape


@dataclass(frozen=True, slots=True)
class JobCounter:
    """A counter of each job; with `label`, a series for each of `values`."""

    name: str
    help: str
    field: str
    label: str | None = None
    values: tuple[str, ...] = ()
    scale: float = 1

    @property
    def fields(self) -> tuple[str, ...]:
        """Of a job's hash, one for each series."""
        return tuple(f"n:{self.field}:{value}" for value in self.values) or (f"n:{self.field}",)

    @property
    def labels(self) -> tuple[str, ...]:
        """What each series has after the label `job`."""
        return tuple(f',{self.label}="{value}"' for value in self.values) or ("",)


@dataclass(frozen=True, slots=True)
class JobGauge:
    """A gauge of each job; None leaves the series out."""

    name: str
    help: str
    value: Callable[[Job], float | None]


@dataclass(frozen=True, slots=True)
class JobHistogram:
    name: str
    help: str
    value: Callable[[Job], Histogram]


@dataclass(frozen=True, slots=True)
class QueueGauge:
    """A gauge of each queue; None leaves the series out."""

    name: str
    help: str
    value: Callable[[Queue], float | None]


@dataclass(frozen=True, slots=True)
class ProcessGauge:
    """A gauge of each of the processes that are there, or were: (name, value) of them."""

    name: str
    help: str
    label: str
    values: Callable[[Scrape], Iterable[tuple[str, float]]]


@dataclass(frozen=True, slots=True)
class Single:
    """A metric of the whole service; None leaves it out."""

    name: str
    help: str
    value: Callable[[Scrape], float | None]
    is_counter: bool = False
