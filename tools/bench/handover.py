"""From the end of a run to the start of the one that waits for it, as the task's code sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles

from tools.bench.ratios import spreads
from tools.bench.sides import Side, sides
from tools.bench.sizes import Sizes


def measure(directory: Path, url: str, sizes: Sizes) -> dict[str, float]:
    pairs = {"ours": sizes.handovers, "polled": sizes.handovers // 3, "countdown": 10}
    with (
        sides("locked", tuple(pairs), directory, url) as taking_part,
        ThreadPoolExecutor(len(pairs)) as pool,
    ):
        list(pool.map(staffed, taking_part))
        return spreads([one_round(pool, taking_part, pairs) for _ in range(sizes.rounds)])


def staffed(side: Side) -> None:
    side.workers("first")
    if side.name == "ours":
        side.celery("beat", "-l", "warning")


def one_round(
    pool: Executor, taking_part: Sequence[Side], pairs: Mapping[str, int]
) -> dict[str, float]:
    """All at the same time: they wait for most of it."""
    found: dict[str, float] = {}
    all_gaps = pool.map(lambda side: side.asked(f"in_pairs({pairs[side.name]})"), taking_part)
    for side, gaps in zip(taking_part, all_gaps, strict=True):
        name = "handover" if side.name == "ours" else f"handover_{side.name}"
        found[f"{name}_p50_ms"] = 1000 * median(gaps)
        found[f"{name}_p99_ms"] = 1000 * quantiles(gaps, n=100, method="inclusive")[98]
    return found
