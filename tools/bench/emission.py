"""Thousands of jobs that are due in the same second: how long until the last one is queued."""

from __future__ import annotations

import math
import time
from pathlib import Path
from statistics import median

from tools.bench.ratios import ratio
from tools.bench.sides import Side, sides, until
from tools.bench.sizes import Sizes

PEERS = ("redbeat", "django", "apscheduler")


def measure(directory: Path, url: str, sizes: Sizes) -> dict[str, float]:
    seconds: dict[str, list[float]] = {}
    with sides("due", ("ours", *PEERS), directory, url) as taking_part:
        for _ in range(sizes.rounds):
            for side in taking_part:
                few = side.name not in ("ours", "redbeat")
                jobs = sizes.jobs_of_slow_peers if few else sizes.jobs
                seconds.setdefault(side.name, []).append(emitted(side, jobs) / jobs)
                if side.name == "ours":
                    seconds.setdefault("raw", []).append(raw_limit(side) / jobs)
                side.client.flushdb()
    ours = seconds["ours"]
    found = {
        "emission_per_s": 1 / median(ours),
        "emission_last_queued_s": sizes.jobs * median(ours),
        "emission_last_queued_s_max": sizes.jobs * max(ours),
    }
    for name in (*PEERS, "raw"):
        found |= ratio(f"emission_vs_{name}", ours, seconds[name])
        found[f"emission_{name}_per_s"] = 1 / median(seconds[name])
    return found


def emitted(side: Side, jobs: int, slack: int = 1) -> float:
    """Seconds from the time at which all are due until the last is queued.

    slack: how many times longer than on a quiet machine it may take to prepare.
    """
    side.empty()
    # Time to write them down, to load them, and to come to rest afterwards.
    needs = 8 + jobs // (1500 if side.name == "ours" else 1000)
    due = math.ceil(time.time()) + slack * needs
    side.asked(f"fill('due.nothing', [{due}] * {jobs})")
    beat = (
        side.python("due.py") if side.name == "apscheduler" else side.celery("beat", "-l", "info")
    )
    ledger = side.ledger
    if side.name == "ours":
        until(lambda: ledger.client.hlen(ledger.keys.jobs) == jobs, 120, every=0.2)
        last_job = max(ledger.scheduled_names())  # messages are made in the order of the names
        client = ledger.client
        message, job = ledger.keys.message(last_job), ledger.keys.job(last_job)
        # Made once, or said to be made by Celery for each run, as where the broker is elsewhere.
        until(lambda: client.exists(message) or client.hexists(job, "apart"), 120, every=0.2)
    if time.time() > due - 1:
        side.stop()
        return emitted(side, jobs, 2 * slack)
    with side.queued() as queued:
        last = until(lambda: queued() >= jobs, due - time.time() + 120, every=0.002)
    side.end(beat)
    return last - due


def raw_limit(side: Side) -> float:
    """Seconds in which the same messages are pushed to another list, as fast as can be."""
    client = side.client
    messages = client.lrange("celery", 0, -1)
    started = time.perf_counter()
    for start in range(0, len(messages), 500):
        with client.pipeline(transaction=False) as pipe:
            for message in messages[start : start + 500]:
                pipe.lpush("raw", message)
            pipe.execute()
    return time.perf_counter() - started
