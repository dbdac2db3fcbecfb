"""Ten thousand jobs: how long beat loads them, what it costs while nothing is due, and a scrape."""

from __future__ import annotations

import os
import time
from pathlib import Path

from supervisor.ledger.readings import chunks
from supervisor.ledger.records import HISTOGRAM_FIELDS
from supervisor.ledger.runs import Ledger
from supervisor.web.metrics import Metrics
from supervisor.web.table import COUNTERS
from tests.acceptance.project import Project
from tests.waiting import wait_until

JOBS = 10_000
FILES = 10
IDLE_SECONDS = 20.0


def measure(project: Project) -> dict[str, float]:
    for number in range(FILES):
        project.schedule(jobs_of(number), f"jobs-{number}.yaml")
    started = time.monotonic()
    beat = project.beat()
    ledger = project.ledger
    wait_until(lambda: ledger.client.hlen(ledger.keys.jobs) == JOBS, 120)
    loaded = time.monotonic()

    project.schedule(jobs_of(0).replace("}", ", description: edited}", 1), "jobs-0.yaml")
    edited = time.monotonic()
    wait_until(lambda: ledger.spec("job-0-0").description == "edited", 60)
    reloaded = time.monotonic()

    loads = wait_until(lambda: project.events("beat", "schedule files loaded")[1:], 30)
    idle_from, cpu_from = time.monotonic(), cpu_seconds(beat.pid)
    wait_until(lambda: time.monotonic() - idle_from > IDLE_SECONDS, 60, every=0.5)
    idle = (cpu_seconds(beat.pid) - cpu_from) / (time.monotonic() - idle_from)
    return {
        "load_10k_s": loaded - started,
        "edit_takes_effect_s": reloaded - edited,
        "reload_10k_s": float(str(loads[0]["seconds"])),
        "beat_10k_mib": resident_mib(beat.pid),
        "beat_10k_cpu": idle,
        **scraped(ledger),
    }


def scraped(ledger: Ledger) -> dict[str, float]:
    """The first scrape, the next, one after all jobs ran, and what kept the server longest."""
    let_all_have_run(ledger)
    metrics, client = Metrics(ledger), ledger.client
    client.config_set("slowlog-log-slower-than", 0)
    client.config_set("slowlog-max-len", 8 * JOBS)
    client.slowlog_reset()

    def seconds() -> float:
        started = time.monotonic()
        metrics.exposed("application/openmetrics-text")
        return time.monotonic() - started

    first, unchanged = seconds(), min(seconds() for _ in range(3))
    let_all_have_run(ledger, times=2)
    changed = seconds()
    scraping = [
        entry["duration"]
        for entry in client.slowlog_get(8 * JOBS)
        if not entry["command"].startswith((b"HSET", b"SLOWLOG", b"CONFIG"))
    ]
    longest = max(scraping)
    return {
        "scrape_10k_first_s": first,
        "scrape_10k_s": unchanged,
        "scrape_10k_all_ran_s": changed,
        "scrape_10k_block_ms": longest / 1000,
    }


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


def jobs_of(number: int) -> str:
    """A thousand daily jobs, none of them due in the hours of a measurement."""
    hour = (time.gmtime().tm_hour + 12) % 24
    lines = (
        f'  job-{number}-{i}: {{task: team.work, cron: "{i % 60} {hour} * * *"}}'
        for i in range(JOBS // FILES)
    )
    return "jobs:\n" + "\n".join(lines)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    [kib] = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(kib) / 1024
