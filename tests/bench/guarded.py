"""Calls that do nothing, a worker with two children and no results: what the guard costs a run."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import median

from tests.bench.ratios import ratio
from tests.bench.sides import sides
from tests.bench.sizes import Sizes

WARM_UP = 200

#: Of each side in a round: what keeps the machine busy beside us comes and goes in seconds.
TURNS = 4
OTHERS = ("plain", "singleton", "once")


def measure(directory: Path, url: str, sizes: Sizes) -> dict[str, float]:
    seconds: dict[str, list[float]] = defaultdict(list)
    sending: dict[str, list[float]] = defaultdict(list)
    scripts: list[float] = []
    calls = sizes.calls // TURNS
    with sides("noop", ("guarded", *OTHERS), directory, url) as taking_part:
        for side in taking_part:
            side.worker()
            side.asked(f"[send({WARM_UP}), drained({WARM_UP})]")
        for _ in range(sizes.rounds):
            for name in ("guarded", *OTHERS):
                seconds[name].append(0)
            for turn in range(TURNS):
                taking_part.append(taking_part.pop(0))  # the next begins
                for side in taking_part if turn % 2 else taking_part[::-1]:
                    sent, worked = side.asked(f"[send({calls}), drained({calls})]")
                    seconds[side.name][-1] += worked["seconds"]
                    sending[side.name].append(sent)
                    if side.name == "guarded":
                        scripts.append(worked["scripts"])
    found = {"round_trips_per_run": median(scripts)}
    for name in OTHERS:
        found |= ratio(f"guarded_vs_{name}", seconds["guarded"], seconds[name])
        found |= {f"calling_vs_{name}": median(sending[name]) / median(sending["guarded"])}
    return found | {f"{n}_runs_per_s": sizes.calls / median(s) for n, s in seconds.items()}
