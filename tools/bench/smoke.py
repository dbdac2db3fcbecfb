"""`make bench-smoke`: fails where a ratio to a peer has fallen by half since `make bench` wrote it.

Ours and a peer take turns in the same minute, or work at the same time, and most is counted by what
they use of processors: seconds say little where other things keep these busy. What has fallen is
measured once more before that is a failure.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from supervisor.deploy.embedded import EmbeddedServer
from tools.bench.guarded import cpu_of_children
from tools.bench.sides import Process, cpu_seconds, sides, until
from tools.bench.sizes import Sizes

FIGURES = Path(__file__).parents[2] / "docs" / "internals" / "benchmarks.json"

#: Of what `make bench` measured: less is a failure.
LEAST = 0.5

CALLS, TURNS = 250, 7
JOBS = {"ours": 4_000, "redbeat": 1_000}


def measure(directory: Path, url: str, sizes: Sizes) -> dict[str, float]:
    """How many times faster than a peer's is ours, of a run, of a call and of a due entry."""
    return {**of_runs(directory, url), "smoke_emission_cpu_vs_redbeat": of_entries(directory, url)}


def of_runs(directory: Path, url: str) -> dict[str, float]:
    """Of a run, what its worker uses of processors; and the seconds of a call."""
    ratios: dict[str, list[float]] = defaultdict(list)
    with sides("noop", ("guarded", "plain"), directory, url) as taking_part:
        workers = {}
        for side in taking_part:
            [workers[side.name]] = side.workers("first")
            side.asked(f"turn({CALLS})")
        for turn in range(TURNS):
            calling, running = {}, {}
            for side in taking_part if turn % 2 else taking_part[::-1]:
                before = cpu_of_worker(workers[side.name])
                calling[side.name], _ = side.asked(f"turn({CALLS})")
                running[side.name] = cpu_of_worker(workers[side.name]) - before
            for what, seconds in (("running_cpu", running), ("calling", calling)):
                ratios[f"smoke_{what}_vs_plain"].append(seconds["plain"] / seconds["guarded"])
    return {name: median(found) for name, found in ratios.items()}


def cpu_of_worker(worker: Process) -> float:
    return cpu_seconds(worker.pid) + cpu_of_children(worker)


def of_entries(directory: Path, url: str, slack: int = 1) -> float:
    """Of a due entry, what beat uses of a processor since it has loaded them, both at a time."""
    with sides("due", tuple(JOBS), directory, url) as [ours, redbeat]:
        due = math.ceil(time.time()) + 12 * slack
        beats = {}
        for side in (ours, redbeat):
            side.asked(f"fill('due.nothing', [{due}] * {JOBS[side.name]})")
            beats[side.name] = side.celery("beat", "-l", "info")
        jobs = ours.ledger.keys.jobs
        until(lambda: ours.client.hlen(jobs) == JOBS["ours"], 120, every=0.1)
        last = max(ours.ledger.scheduled_names())  # messages are made in the order of the names
        until(lambda: ours.client.exists(ours.ledger.keys.message(last)), 120, every=0.1)
        until(lambda: "Acquired lock" in redbeat.log(), 120, every=0.1)
        before = {name: cpu_seconds(beat.pid) for name, beat in beats.items()}
        if time.time() < due - 1:
            used = {}
            for side in (redbeat, ours):
                until(lambda side=side: side.client.llen("celery") == JOBS[side.name], 120)  # type: ignore[misc]
                cpu = cpu_seconds(beats[side.name].pid) - before[side.name]
                used[side.name] = cpu / JOBS[side.name]
            return used["redbeat"] / used["ours"]
        ours.stop()
        redbeat.stop()
    return of_entries(directory, url, 2 * slack)


def main() -> None:
    committed = {
        name: least
        for name, least in json.loads(FIGURES.read_text()).items()
        if name.startswith("smoke_")
    }
    best: dict[str, float] = {}
    for _ in range(2):
        with tempfile.TemporaryDirectory() as place, EmbeddedServer(Path(place) / "server") as own:
            figures = measure(Path(place) / "sides", own.url, Sizes())
        best = {name: max(value, best.get(name, 0)) for name, value in figures.items()}
        fallen = [name for name in committed if best[name] < LEAST * committed[name]]
        for name, value in figures.items():
            sys.stdout.write(f"{name:<30}{value:6.2f}, {committed.get(name, 0):6.2f} committed\n")
        if not fallen:
            return
    sys.exit(f"fallen by half: {', '.join(fallen)}")


if __name__ == "__main__":
    main()
