"""A scrape of thousands of jobs: how long it takes, and what it keeps Redis from."""

from __future__ import annotations

import os
import time
from statistics import median

from supervisor import process
from supervisor.ledger.connection import Client
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.reads import chunks
from supervisor.ledger.records import HISTOGRAM_FIELDS
from supervisor.web.metrics import Metrics
from supervisor.web.metrics_table import COUNTERS

#: Calls of Redis that took longer, in microseconds, are remembered, the last so many of them.
LONG_US = 200
LONG_CALLS = 20_000


def scraped(ledger: Ledger, jobs: int) -> dict[str, float]:
    """The first scrape, the next, one after all jobs ran, and what kept the server longest.

    The work of the first is its time on the processor outside the kernel, which gives it memory.
    """
    process.collect_rarely()  # as serve does
    metrics, client = Metrics(ledger), ledger.client
    client.slowlog_reset()  # not right before a scrape, whose first call would wait for it
    let_all_have_run(ledger)
    client.config_set("slowlog-log-slower-than", LONG_US)
    client.config_set("slowlog-max-len", LONG_CALLS)

    longest: list[float] = []

    def seconds() -> float:
        since = last_slow_call(client)
        started = time.monotonic()
        text, _ = metrics.exposed("application/openmetrics-text")
        sent = sum(len(part.encode()) for part in text)
        assert sent > 1000 * jobs
        took = time.monotonic() - started
        longest.append(longest_call(client, since))
        return took

    worked = os.times().user
    first, first_work = seconds(), os.times().user - worked
    times = 3 if jobs <= 10_000 else 1  # of many more, each takes its time
    unchanged = median(seconds() for _ in range(times))

    def once_all_ran(runs: int) -> float:
        let_all_have_run(ledger, runs)
        return seconds()

    changed = median(once_all_ran(2 + number) for number in range(times))
    client.config_set("slowlog-log-slower-than", 10_000)
    return {
        "scrape_first": first,
        "scrape_first_work": first_work,
        "scrape": unchanged,
        "scrape_all_ran": changed,
        "scrape_block": median(longest) / 1e6,
        "scrape_block_max": max(longest) / 1e6,
    }


def last_slow_call(client: Client) -> int:
    return max((entry["id"] for entry in client.slowlog_get(1)), default=-1)


def longest_call(client: Client, since: int) -> float:
    """In microseconds, of those that came after this one; LONG_US if none took longer."""
    return max(
        (
            entry["duration"]
            for entry in client.slowlog_get(LONG_CALLS)
            if entry["id"] > since and not entry["command"].startswith(b"SLOWLOG")
        ),
        default=LONG_US,
    )


def let_all_have_run(ledger: Ledger, times: int = 1) -> None:
    """Each with all its counters and buckets: a scrape that finds little is no measurement."""
    fields = {f"n:{row.field}": times for row in COUNTERS if row.label is None}
    fields |= {f"n:{row.field}:{value}": times for row in COUNTERS for value in row.values}
    fields |= {field: times for names in HISTOGRAM_FIELDS.values() for field in names}
    fields |= {"last_success": int(time.time() * 1000), "last_start": int(time.time() * 1000)}
    for names in chunks(ledger.scheduled_names()):
        with ledger.client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hset(ledger.keys.job(name), mapping=fields)
            pipe.execute()
