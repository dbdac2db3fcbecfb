"""Thousands of jobs, none of them due: what beat costs, and a scrape; and how that grows."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import linear_regression

from tools.bench.emission import emitted
from tools.bench.ratios import medians
from tools.bench.sides import Process, Side, cpu_seconds, sides, until
from tools.bench.sizes import Sizes

#: What is measured at each size.
GROWING = ("emission", "scrape", "scrape_first", "load", "reload")

#: The jobs are due so much later, in seconds.
LATER = 1800


def measure(directory: Path, url: str, sizes: Sizes) -> dict[str, float]:
    seen: dict[int, list[dict[str, float]]] = defaultdict(list)
    at_rest: list[dict[str, float]] = []
    with sides("due", ("ours", "redbeat"), directory, url) as [ours, redbeat]:
        for jobs in sizes.in_turns():
            seconds = emitted(ours, jobs)["seconds"]
            beat, loads = loaded(ours, jobs)
            seen[jobs].append(
                {"emission": seconds, **loads, **ours.asked_alone(f"scraped({jobs})")}
            )
            if jobs == sizes.jobs:
                redbeat.asked(f"fill('due.nothing', [{time.time() + LATER}] * {jobs})")
                other = redbeat.celery("beat", "-l", "info")
                until(lambda: "Acquired lock" in redbeat.log(), 30, every=0.1)
                at_rest.append(idle(beat, other, sizes.idle_seconds))
                redbeat.stop()
                redbeat.client.flushdb()
                (redbeat.directory / "log").write_text("")
            ours.stop()
    by_jobs = {jobs: medians(rounds) for jobs, rounds in seen.items()}
    figures = medians(at_rest)
    figures |= {f"{what}_10k_s": seconds for what, seconds in by_jobs[sizes.jobs].items()}
    figures["scrape_10k_block_ms"] = 1000 * figures.pop("scrape_block_10k_s")
    figures["scrape_10k_block_max_ms"] = 1000 * figures.pop("scrape_block_max_10k_s")
    for what in GROWING:
        seconds = {jobs: at_size[what] for jobs, at_size in by_jobs.items()}
        figures |= {f"growth_{what}_{jobs}_s": took for jobs, took in seconds.items()}
        figures[f"growth_{what}_slope"] = slope(seconds)
    return figures


def slope(seconds: Mapping[int, float]) -> float:
    """The exponent with which it grows with the jobs, fitted: 1 is linear, less is better."""
    jobs, took = (list(map(math.log, numbers)) for numbers in (seconds.keys(), seconds.values()))
    return linear_regression(jobs, took).slope


def loaded(ours: Side, jobs: int) -> tuple[Process, dict[str, float]]:
    """A beat that has loaded the jobs, and has taken over an edit of one of them."""
    ours.client.flushdb()
    ours.ledger.acknowledge_server()
    (ours.directory / "log").write_text("")
    ours.asked(f"fill('due.nothing', [{time.time() + LATER}] * {jobs})")
    beat = ours.celery("beat", "-l", "info")
    until(lambda: len(loads_of(ours)) == 1, 180, every=0.1)
    edited = ours.directory / "schedules" / "jobs-0.yaml"
    edited.write_text(edited.read_text().replace("every: 1h", "every: 2h", 1))
    until(lambda: len(loads_of(ours)) == 2, 120, every=0.1)
    load, reload = loads_of(ours)
    return beat, {"load": load, "reload": reload}


def loads_of(ours: Side) -> list[float]:
    """Seconds that each loading of the files took, as beat says."""
    lines = [line for line in ours.log().splitlines() if '"schedule files loaded"' in line]
    return [float(json.loads(line)["seconds"]) for line in lines if line.endswith("}")]


def idle(beat: Process, other: Process, seconds: float) -> dict[str, float]:
    """CPU of a core and memory of ours and of stock RedBeat, in the same seconds."""
    time.sleep(5)  # after loading
    before, since = [cpu_seconds(p.pid) for p in (beat, other)], time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - since
    after = [cpu_seconds(p.pid) for p in (beat, other)]
    ours, theirs = [(b - a) / took for a, b in zip(before, after, strict=True)]
    our_mib, their_mib = resident_mib(beat.pid), resident_mib(other.pid)
    return {
        "beat_10k_cpu": ours,
        "beat_10k_cpu_redbeat": theirs,
        "beat_10k_cpu_vs_redbeat": ours / theirs,
        "beat_10k_mib": our_mib,
        "beat_10k_mib_redbeat": their_mib,
        "beat_10k_mib_vs_redbeat": our_mib / their_mib,
    }


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    [kib] = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(kib) / 1024
