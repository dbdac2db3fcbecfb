"""The table of docs/internals/benchmarks.md: what is to be reached, and whether it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    what: str

    figure: str
    """Its name in benchmarks.json; it is to be `at_least` or at most the `target`."""

    target: float
    unit: str = ""
    at_least: bool = False

    def is_reached(self, figures: Mapping[str, float]) -> bool:
        value = figures[self.figure]
        return value >= self.target if self.at_least else value <= self.target

    def lead(self, figures: Mapping[str, float]) -> float:
        """How many times better than the target; below 1 it is missed."""
        value = max(figures[self.figure], 1e-9)
        return value / self.target if self.at_least else self.target / value

    def goal(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {self.target:g}{self.unit}"


ROWS = (
    Row(
        "emission: due entries a second, times stock RedBeat's", "emission_vs_redbeat", 20, "", True
    ),
    Row("emission: the last of 10,000 is queued after", "emission_last_queued_s", 1.5, " s"),
    Row("emission: beat's processor time for a tick", "emission_beat_us", 100, " µs"),
    Row("emission: the server's processor time for a tick", "emission_server_us", 200, " µs"),
    Row("lateness, p99", "lateness_p99_ms", 10, " ms"),
    Row("lateness, p99: stock RedBeat's, times ours", "lateness_vs_redbeat", 5, "", True),
    Row("guarded no-op throughput, times plain Celery's", "guarded_vs_plain", 1, "", True),
    Row("guarded no-op throughput, times celery-singleton's", "guarded_vs_singleton", 1, "", True),
    Row("guarded no-op throughput, times celery-once's", "guarded_vs_once", 1, "", True),
    Row(
        "calls of a guarded task a second, times celery-singleton's",
        "calling_vs_singleton",
        0.8,
        "",
        True,
    ),
    Row("guarded no-op: CPU of the children, times plain Celery's", "child_cpu_vs_plain", 1.5),
    Row("round trips that the guard adds to a run", "round_trips_per_run", 2.05),
    Row("hand-over, p50", "handover_p50_ms", 3, " ms"),
    Row("hand-over, p99", "handover_p99_ms", 50, " ms"),
    Row("hand-over, p50, times a plain message's", "handover_vs_plain_p50", 1.1),
    Row("hand-over, p99, times a plain message's", "handover_vs_plain_p99", 1.5),
    Row("a due retry begins late by, p50", "retry_late_p50_ms", 10, " ms"),
    Row("a due retry begins late by, p99", "retry_late_p99_ms", 50, " ms"),
    Row("recovery of a run whose child was killed", "recovery_child_s", 1, " s"),
    Row("recovery of a run whose worker was killed", "recovery_worker_s", 3, " s"),
    Row("recovery by the lease alone (lease_ttl 10s)", "recovery_worker_unseen_s", 12, " s"),
    Row("a rescue begins after the end of the lease by", "rescue_late_ms", 20, " ms"),
    Row("batch of 10,000: items a second, times plain Celery's", "batch_vs_plain", 0.8, "", True),
    Row("batch of 10,000: items a second, times a chord's", "batch_vs_chord", 1, "", True),
    Row("scrape of 10,000 jobs", "scrape_10k_s", 3, " s"),
    Row("longest call of a scrape in Redis", "scrape_10k_block_ms", 5, " ms"),
    Row("beat with 10,000 idle jobs: CPU, times stock RedBeat's", "beat_10k_cpu_vs_redbeat", 1.2),
    Row(
        "beat with 10,000 idle jobs: memory, times stock RedBeat's", "beat_10k_mib_vs_redbeat", 1.2
    ),
    Row("growth of emission, exponent", "growth_emission_slope", 1),
    Row("growth of a scrape, exponent", "growth_scrape_slope", 1),
    Row("growth of the first scrape, exponent", "growth_scrape_first_slope", 1),
    Row("growth of the first load, exponent", "growth_load_slope", 1),
    Row("growth of a reload of one file, exponent", "growth_reload_slope", 1),
)


def measured(figures: Mapping[str, float]) -> list[Row]:
    return [row for row in ROWS if row.figure in figures]
