"""How soon what waits is begun, as the task's code sees it.

- A run that waits for another: from the end of that to its start. Beside it a message of plain
  Celery, from its push to the start: no hand-over can be faster.
- A retry: from the time that was asked for to its start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles

from tools.bench.ratios import spreads
from tools.bench.sides import Side, sides, until
from tools.bench.sizes import Sizes


def measure(directory: Path, url: str, sizes: Sizes) -> dict[str, float]:
    number = sizes.handovers
    handovers = {
        "ours": f"in_pairs({number})",
        "plain": f"pushed({number})",
        "polled": f"in_pairs({number // 3})",
        "countdown": "in_pairs(10)",
    }
    retries = dict.fromkeys(("ours", "plain"), f"retried({number})")
    with (
        sides("locked", tuple(handovers), directory, url) as taking_part,
        ThreadPoolExecutor(len(handovers)) as pool,
    ):
        list(pool.map(staffed, taking_part))
        return spreads(
            [
                compared(asked(pool, taking_part, "handover", handovers))
                | asked(pool, taking_part, "retry_late", retries)
                for _ in range(sizes.rounds)
            ]
        )


def staffed(side: Side) -> None:
    side.workers("first")
    if side.name == "ours":
        side.celery("beat", "-l", "warning")
        until(lambda: side.ledger.beat().last_tick_at, 60)


def asked(
    pool: Executor, taking_part: Sequence[Side], what: str, expressions: Mapping[str, str]
) -> dict[str, float]:
    """All at the same time: they wait for most of it."""
    figures: dict[str, float] = {}
    those = [side for side in taking_part if side.name in expressions]
    all_gaps = pool.map(lambda side: side.asked(expressions[side.name]), those)
    for side, gaps in zip(those, all_gaps, strict=True):
        name = what if side.name == "ours" else f"{what}_{side.name}"
        figures[f"{name}_p50_ms"] = 1000 * median(gaps)
        figures[f"{name}_p99_ms"] = 1000 * quantiles(gaps, n=100, method="inclusive")[98]
    return figures


def compared(figures: Mapping[str, float]) -> dict[str, float]:
    ratios = {
        f"handover_vs_plain_{part}": figures[f"handover_{part}_ms"]
        / figures[f"handover_plain_{part}_ms"]
        for part in ("p50", "p99")
    }
    return {**figures, **ratios}
