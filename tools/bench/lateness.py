"""From the time at which a job is due to the first line of its task, with an idle worker."""

from __future__ import annotations

import math
import time
from pathlib import Path
from statistics import median, quantiles

from tools.bench.ratios import spreads
from tools.bench.sides import sides, until
from tools.bench.sizes import Sizes


def measure(directory: Path, url: str, sizes: Sizes) -> dict[str, float]:
    rounds = range(sizes.rounds)
    return spreads([one_round(directory / str(number), url, sizes) for number in rounds])


def one_round(directory: Path, url: str, sizes: Sizes, slack: int = 1) -> dict[str, float]:
    """Both in the same minutes: whatever else the machine does happens to both.

    slack: how many times longer than on a quiet machine it may take to prepare.
    """
    with sides("due", ("ours", "redbeat"), directory, url) as taking_part:
        for side in taking_part:
            side.workers("first")
        first = math.ceil(time.time()) + 15 * slack
        times = [
            round(first + number * sizes.spread_seconds / sizes.spread_jobs, 3)
            for number in range(sizes.spread_jobs)
        ]
        for side in taking_part:
            side.asked(f"fill('due.stamp', {times})")
            side.celery("beat", "-l", "warning")
        ours = taking_part[0].ledger
        until(lambda: ours.client.hlen(ours.keys.jobs) == sizes.spread_jobs, 120, every=0.2)
        if time.time() > first - 3:
            for side in taking_part:
                side.stop()
            return one_round(directory / "again", url, sizes, 2 * slack)
        late = {}
        for side in taking_part:
            until(
                lambda side=side: side.client.llen("late") >= sizes.spread_jobs,  # type: ignore[misc]
                first - time.time() + sizes.spread_seconds + 60,
                every=0.5,
            )
            late[side.name] = [1000 * float(text) for text in side.client.lrange("late", 0, -1)]
    p99 = {name: quantiles(values, n=100)[98] for name, values in late.items()}
    return {
        "lateness_p50_ms": median(late["ours"]),
        "lateness_p99_ms": p99["ours"],
        "lateness_redbeat_p50_ms": median(late["redbeat"]),
        "lateness_redbeat_p99_ms": p99["redbeat"],
        "lateness_vs_redbeat": p99["redbeat"] / p99["ours"],
    }
