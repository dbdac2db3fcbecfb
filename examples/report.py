"""load-report: slower than its interval, on purpose. Every other tick is skipped, and counted."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

from celery import shared_task

from examples.pacing import spread
from examples.storage import database, directory, write_atomically
from examples.witness import witness

MEASURES = ("load", "cpu", "memory")


@shared_task(name="examples.load_report")
def load_report(minutes: float = 10, resamples: int = 2000, seconds: float = 8) -> dict[str, Any]:
    """The 95th percentile of the last minutes, and by bootstrap how far it is to be trusted."""
    with witness("load-report"):
        report = {
            "written_at": time.time(),
            "minutes": minutes,
            "p95": bootstrap(_recent(minutes), resamples, seconds),
        }
        text = json.dumps(report, indent=2) + "\n"
        write_atomically(directory() / "load-report.json", text.encode())
        return report


def bootstrap(
    samples: dict[str, Sequence[float]], resamples: int, seconds: float
) -> dict[str, dict[str, float]]:
    """Percentiles of `resamples` random redraws of the samples: their middle and their spread."""
    measures = [measure for measure, values in samples.items() if len(values) > 1]
    found: dict[str, list[float]] = {measure: [] for measure in measures}
    for _ in spread(range(resamples), seconds):
        for measure in measures:
            redrawn = random.choices(samples[measure], k=len(samples[measure]))
            found[measure].append(statistics.quantiles(redrawn, n=20, method="inclusive")[-1])
    return {measure: _middle_and_spread(found[measure]) for measure in measures}


def _middle_and_spread(values: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=40, method="inclusive")
    return {"low": cuts[0], "middle": statistics.median(values), "high": cuts[-1]}


def _recent(minutes: float) -> dict[str, Sequence[float]]:
    with database() as db:
        rows = db.execute(
            "SELECT load, cpu, memory FROM samples WHERE sampled_at > ? ORDER BY id DESC LIMIT 600",
            (time.time() - minutes * 60,),
        ).fetchall()
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    return {
        measure: [value for value in column if value is not None]
        for measure, column in zip(MEASURES, columns, strict=True)
    }
