"""Calls that do nothing, a worker with two children and no results: what the guard costs a run."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import median

from tools.bench.ratios import ratio
from tools.bench.sides import Process, cpu_seconds, sides
from tools.bench.sizes import Sizes

WARM_UP = 200

#: Of each side in a round: what keeps the machine busy beside us comes and goes in seconds.
TURNS = 2
OTHERS = ("plain", "singleton", "once")


def measure(directory: Path, url: str, sizes: Sizes) -> dict[str, float]:
    seconds: dict[str, list[float]] = defaultdict(list)
    sending: dict[str, list[float]] = defaultdict(list)
    scripts: list[float] = []
    of_children: dict[str, list[float]] = defaultdict(list)
    calls = sizes.calls // TURNS
    with sides("noop", ("guarded", *OTHERS), directory, url) as taking_part:
        workers = {}
        for side in taking_part:
            [workers[side.name]] = side.workers("first")
            side.asked(f"turn({WARM_UP})")
        for _ in range(sizes.rounds_of_guarded):
            for name in ("guarded", *OTHERS):
                seconds[name].append(0)
            for turn in range(TURNS):
                taking_part.append(taking_part.pop(0))  # the next begins
                for side in taking_part if turn % 2 else taking_part[::-1]:
                    before = cpu_of_children(workers[side.name])
                    sent, worked = side.asked(f"turn({calls})")
                    of_children[side.name].append(cpu_of_children(workers[side.name]) - before)
                    seconds[side.name][-1] += worked["seconds"]
                    sending[side.name].append(sent)
                    if side.name == "guarded":
                        scripts.append(worked["scripts"])
    figures = {
        "round_trips_per_run": median(scripts),
        "child_cpu_vs_plain": median(of_children["guarded"]) / median(of_children["plain"]),
    }
    for name in OTHERS:
        figures |= ratio(f"guarded_vs_{name}", seconds["guarded"], seconds[name])
        figures |= {f"calling_vs_{name}": median(sending[name]) / median(sending["guarded"])}
    return figures | {f"{n}_runs_per_s": sizes.calls / median(s) for n, s in seconds.items()}


def cpu_of_children(worker: Process) -> float:
    """Seconds that they have had of a processor so far."""
    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
    return sum(cpu_seconds(int(child)) for child in children)
