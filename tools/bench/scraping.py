"""A scrape of thousands of jobs: how long it takes, and what it keeps Redis from."""

from __future__ import annotations

import time
from statistics import median

from supervisor import process
from supervisor.ledger.job_record import HISTOGRAM_FIELDS
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.reader import chunks
from supervisor.store.connection import Client
from supervisor.web.metrics import Metrics

#: Calls of Redis that took longer, in microseconds, are remembered, the last so many of them.
LONG_US = 200
LONG_CALLS = 20_000

#: What Prometheus 3 prefers.
ACCEPTED = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8"


def scraped(ledger: Ledger, jobs: int) -> dict[str, float]:
    """The first scrape, the next ones, and what kept the server longest. All jobs have run."""
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
        text, _ = metrics.written(metrics.read(), ACCEPTED)
        took = time.monotonic() - started
        assert len(text) > 1000 * jobs
        longest.append(longest_call(client, since))
        return took

    first, following = seconds(), median(seconds() for _ in range(3))
    client.config_set("slowlog-log-slower-than", 10_000)
    return {
        "scrape_first": first,
        "scrape": following,
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


def let_all_have_run(ledger: Ledger) -> None:
    """Each as a job of the default policy after a day: what it has and counts."""
    now = int(time.time() * 1000)
    fields = {"n:started": 288, "n:finished:succeeded": 288}
    fields |= {field: 24 for names in HISTOGRAM_FIELDS.values() for field in names}
    fields |= {"last_success": now, "last_start": now}
    for names in chunks(ledger.scheduled_names()):
        with ledger.client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hset(ledger.keys.job(name), mapping=fields)
            pipe.execute()
