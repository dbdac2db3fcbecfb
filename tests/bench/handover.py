"""From the end of a run to the start of the one that waits for it, as the task's code sees it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles

from tests.bench.sides import Side, sides
from tests.bench.sizes import Sizes


def measure(directory: Path, url: str, sizes: Sizes) -> dict[str, float]:
    pairs = {"ours": sizes.handovers, "polled": sizes.handovers // 3, "countdown": 10}
    found: dict[str, float] = {}
    with sides("locked", tuple(pairs), directory, url) as taking_part:
        with ThreadPoolExecutor(len(pairs)) as pool:
            all_gaps = list(pool.map(lambda side: gaps_of(side, pairs[side.name]), taking_part))
        for side, gaps in zip(taking_part, all_gaps, strict=True):
            name = "handover" if side.name == "ours" else f"handover_{side.name}"
            found[f"{name}_p50_ms"] = 1000 * median(gaps)
            found[f"{name}_p99_ms"] = 1000 * quantiles(gaps, n=100, method="inclusive")[98]
    return found


def gaps_of(side: Side, pairs: int) -> list[float]:
    side.worker()
    if side.name == "ours":
        side.celery("beat", "-l", "warning")
    gaps: list[float] = side.asked(f"in_pairs({pairs})")
    return gaps
