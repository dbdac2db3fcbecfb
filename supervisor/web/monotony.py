"""Counters that never go down, though Redis may lose its last second of writes.

Prometheus takes a counter that fell from 100 to 99 for one that began anew and counted to 99. So
what was served once is served again until the ledger has counted on past it. A job that is counted
anew is told by its `created_at`: then the counters begin anew as well.

This is remembered by the process that serves; one that was started in between serves what is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from supervisor.ledger.histograms import Histogram
from supervisor.ledger.records import JobRecord

#: Counted in the ledger beside the others, and shown as a gauge.
GAUGES = frozenset({"unaccounted"})


class Monotony:
    def __init__(self) -> None:
        self._served: dict[str, JobRecord] = {}

    def held(self, record: JobRecord) -> JobRecord:
        before = self._served.get(record.spec.name)
        if before is not None and before.created_at == record.created_at:
            record = replace_counts(record, before)
        self._served[record.spec.name] = record
        return record


def replace_counts(record: JobRecord, before: JobRecord) -> JobRecord:
    """The record with nothing in it counted lower than before."""
    counters = highest(record.counters, before.counters)
    durations = highest_of(record.durations, before.durations)
    start_delays = highest_of(record.start_delays, before.start_delays)
    if (counters, durations, start_delays) == (
        record.counters,
        record.durations,
        record.start_delays,
    ):
        return record
    return replace(record, counters=counters, durations=durations, start_delays=start_delays)


def highest(counters: Mapping[str, int], before: Mapping[str, int]) -> Mapping[str, int]:
    fell = {
        what: count
        for what, count in before.items()
        if counters.get(what, 0) < count and what not in GAUGES
    }
    return {**counters, **fell} if fell else counters


def highest_of(histogram: Histogram, before: Histogram) -> Histogram:
    if histogram == before:
        return histogram
    return Histogram(
        histogram.bounds,
        tuple(map(max, histogram.counts, before.counts)),
        max(histogram.sum_seconds, before.sum_seconds),
    )
