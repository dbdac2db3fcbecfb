"""The metrics of the service that features add."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import Metric

from supervisor.features.outbound import metrics as outbound
from supervisor.ledger.ledger import Ledger

METRICS: list[Callable[[Ledger], Iterable[Metric]]] = [
    outbound.metrics,
]
