"""Thousands of jobs that are due in the same second: how long until the last one is queued."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from tools.bench.ratios import ratio
from tools.bench.sides import Process, Side, cpu_seconds, sides, until
from tools.bench.sizes import Sizes

PEERS = ("redbeat", "django", "apscheduler")


def measure(directory: Path, url: str, sizes: Sizes) -> dict[str, float]:
    rounds: dict[str, list[dict[str, float]]] = defaultdict(list)
    with sides("due", ("ours", *PEERS), directory, url) as taking_part:
        for _ in range(sizes.rounds):
            for side in taking_part:
                few = side.name not in ("ours", "redbeat")
                jobs = sizes.jobs_of_slow_peers if few else sizes.jobs
                took = emitted(side, jobs)
                rounds[side.name].append({what: took[what] / jobs for what in took})
                if side.name == "ours":
                    rounds["raw"].append({"seconds": raw_limit(side) / jobs})
                side.client.flushdb()

    def each(name: str, what: str = "seconds") -> list[float]:
        return [one_round[what] for one_round in rounds[name]]

    figures = {
        "emission_per_s": 1 / median(each("ours")),
        "emission_last_queued_s": sizes.jobs * median(each("ours")),
        "emission_last_queued_s_max": sizes.jobs * max(each("ours")),
    }
    for what in ("beat", "server"):
        figures[f"emission_{what}_us"] = 1e6 * median(each("ours", what))
        figures[f"emission_redbeat_{what}_us"] = 1e6 * median(each("redbeat", what))
    for name in (*PEERS, "raw"):
        figures |= ratio(f"emission_vs_{name}", each("ours"), each(name))
        figures[f"emission_{name}_per_s"] = 1 / median(each(name))
    return figures


def emitted(side: Side, jobs: int, slack: int = 1) -> dict[str, float]:
    """Seconds from the time at which all are due until the last is queued.

    And the processor time that beat and the server used until then.

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
    until(lambda: time.time() > due - 0.2, 120)  # it may be summing up the day before
    before = used_by(beat, side)
    with side.queued() as queued:
        last = until(lambda: queued() >= jobs, due - time.time() + 120, every=0.002)
    used = {what: used - before[what] for what, used in used_by(beat, side).items()}
    side.end(beat)
    return {"seconds": last - due, **used}


def used_by(beat: Process, side: Side) -> dict[str, float]:
    """Seconds of a processor."""
    server = side.client.info("cpu")
    return {
        "beat": cpu_seconds(beat.pid),
        "server": server["used_cpu_user"] + server["used_cpu_sys"],
    }


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
