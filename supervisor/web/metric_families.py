"""How a metric is made of its values."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

PREFIX = "supervisor_"

#: Values by what the label says; None leaves the series out.
Values = Iterable[tuple[str, float | None]]


def single(value: float | None) -> Values:
    """For a metric without a label."""
    return [("", value)]


def filled(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    help: str,
    values: Values,
    label: str = "",
) -> Metric:
    family = kind(PREFIX + name, help, labels=[label] if label else [])
    for named, value in values:
        if value is not None:
            family.add_metric([named] if named else [], value)
    return family


gauge = partial(filled, GaugeMetricFamily)
counter = partial(filled, CounterMetricFamily)


def at(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None


def seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()
