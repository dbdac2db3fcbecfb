"""A batch of ten thousand items that do nothing, beside the same with Celery alone.

A chord of so many does not end in minutes: it has fewer, and the seconds of an item are compared.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import median

from tools.bench.ratios import ratio
from tools.bench.sides import sides
from tools.bench.sizes import Sizes

WARM_UP = 200
OTHERS = ("plain", "chord")


def measure(directory: Path, url: str, sizes: Sizes) -> dict[str, float]:
    seconds: dict[str, list[float]] = defaultdict(list)
    with sides("noop", ("batch", *OTHERS), directory, url) as taking_part:
        for side in taking_part:
            side.workers("first")
            if side.name == "batch":
                side.celery("beat", "-l", "warning")
            side.asked(f"DRIVERS[SIDE]({WARM_UP})")
        for number in range(sizes.rounds):
            for side in taking_part if number % 2 else taking_part[::-1]:
                items = sizes.items_of_a_chord if side.name == "chord" else sizes.items
                seconds[side.name].append(side.asked(f"DRIVERS[SIDE]({items})") / items)
    figures: dict[str, float] = {}
    for name in OTHERS:
        figures |= ratio(f"batch_vs_{name}", seconds["batch"], seconds[name])
    return figures | {f"{n}_items_per_s": 1 / median(s) for n, s in seconds.items()}
