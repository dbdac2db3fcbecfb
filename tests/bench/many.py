"""As many jobs as a ledger takes, and a tenth of them: what a deployment does with all of them.

``python -m tests.bench.many 10000 100000`` prints the table of docs/explanation/scaling.md. It
takes minutes, on a server of its own. ``--only files,serve`` measures some of it.
"""

from __future__ import annotations

import argparse
import math
import os
import pickle
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import redis
from celery import Celery

from supervisor import process
from supervisor.beat.entries import Entries
from supervisor.beat.load import Edited, load, load_edited
from supervisor.deploy.embedded import EmbeddedServer, free_port
from supervisor.files.schedule_files import load as read_files
from supervisor.job.spec import GuardedTaskSpec
from supervisor.ticks.audit import audit
from tests.bench import machine
from tests.bench.fleet import LATER, cpu_seconds, loads_of, resident_mib
from tests.bench.sides import Process, Side, sides, until

Figures = Iterator[tuple[str, float]]

IDLE_SECONDS = 15
OPENMETRICS = {"Accept": "application/openmetrics-text"}


def files(ours: Side, jobs: int) -> Figures:
    """First load, edits of one file, rest; then what others see of them."""
    empty = server_mib(ours)
    ours.asked(f"fill('due.nothing', [{time.time() + LATER}] * {jobs})")
    beat = ours.celery("beat", "-l", "info")
    started = time.time()
    yield "first load, from beat's start, s", until(lambda: loads_of(ours), 300, 0.05) - started
    yield "first load, as logged, s", loads_of(ours)[0]
    yield "beat after it, MiB", resident_mib(beat.pid)
    yield "Redis, bytes a job", (server_mib(ours) - empty) * 2**20 / jobs
    edited = ours.directory / "schedules" / "jobs-0.yaml"
    took = []
    for hours in (2, 3, 4):
        time.sleep(3)
        before, text = len(loads_of(ours)), edited.read_text()
        edited.write_text(text.replace(f"every: {hours - 1}h", f"every: {hours}h", 1))
        at = time.time()
        took.append(until(lambda n=before: len(loads_of(ours)) > n, 300, 0.02) - at)
    yield "reload of one edited file, from its write, s", median(took)
    yield "reload, as logged, s", median(loads_of(ours)[1:])
    yield from rest(beat)


def loading(ours: Side, jobs: int) -> Figures:
    """What beat's child does, by its time on the processor: others may be at work beside it."""
    ledger, empty = ours.ledger, server_mib(ours)
    ours.asked(f"fill('due.nothing', [{time.time() + LATER}] * {jobs})")
    schedules = ours.directory / "schedules"
    process.collect_rarely()
    started = time.process_time()
    wanted = read_files(schedules)
    yield "files read, s of a processor", time.process_time() - started
    entries = Entries(Celery("bench", broker=ours.url), ledger)
    busy, at = server_seconds(ours), time.process_time()
    now = ledger.now()
    load(ledger, entries, wanted.specs, wanted.digest, now, places=wanted.sources)
    yield "and loaded, s of a processor", time.process_time() - at
    yield "and loaded, s of the server", server_seconds(ours) - busy
    yield "Redis, bytes a job", (server_mib(ours) - empty) * 2**20 / jobs
    edited = schedules / "jobs-0.yaml"
    edited.write_text(edited.read_text().replace("every: 1h", "every: 2h", 1))
    at = time.process_time()
    again = read_files(schedules, since=wanted.listing)
    before, after = wanted.listing.but(again.listing), again.listing.but(wanted.listing)
    names = {name for name in after if before.get(name) != after[name]}
    jobs_edited = {name: again.specs[name] for name in names}
    places = {name: again.sources[name] for name in names}
    news = Edited(jobs_edited, places, wanted.digest)
    assert load_edited(ledger, entries, news, again.digest, ledger.now())
    yield "one edited file read and loaded, s of a processor", time.process_time() - at
    yield "listing that beat keeps, MB", len(pickle.dumps(again.listing)) / 1e6


def server_seconds(ours: Side) -> float:
    return float(ours.client.info("cpu")["used_cpu_user"])


def rest(beat: Process) -> Figures:
    time.sleep(10)
    before, since = cpu_seconds(beat.pid), time.monotonic()
    time.sleep(IDLE_SECONDS)
    yield (
        "beat at rest, % of a processor",
        100 * (cpu_seconds(beat.pid) - before) / (time.monotonic() - since),
    )
    yield "beat at rest, MiB", resident_mib(beat.pid)


def serve(ours: Side, jobs: int) -> Figures:
    port = free_port()
    environment = {**ours.environment, "SUPERVISOR_REDIS_URL": ours.url}
    serving = subprocess.Popen(
        [str(Path(sys.executable).with_name("supervisor")), "serve", "--port", str(port)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    ours.processes.append(serving)
    at = f"http://127.0.0.1:{port}"

    def asked(path: str) -> tuple[float, int]:
        started, size = time.monotonic(), 0
        with urllib.request.urlopen(
            urllib.request.Request(at + path, headers=OPENMETRICS), timeout=120
        ) as answer:
            first = None
            while part := answer.read(1 << 20):
                first = first or time.monotonic()
                size += len(part)
        return time.monotonic() - started, size

    def succeeds(path: str) -> bool:
        with suppress(OSError):
            asked(path)
            return True
        return False

    until(lambda: succeeds("/healthz"), 60)
    started = time.monotonic()
    until(lambda: succeeds("/"), 300, 0.5)
    yield "page after the start of serve, s", time.monotonic() - started
    until(lambda: succeeds("/metrics?by=tenant"), 300, 0.5)
    yield "scrape after the start of serve, s", time.monotonic() - started
    seconds, _ = asked("/")
    yield "page's first screen, the first time, s", seconds
    yield "serve after it, MiB", resident_mib(serving.pid)
    for name, path in {
        "page's first screen, s": "/",
        "page, failing, by last, s": "/?state=failing&sort=last",
        "page, searched, s": "/?search=job-77",
        "API, a hundred jobs, s": "/api/v1/jobs?limit=100",
    }.items():
        before = cpu_seconds(serving.pid)
        yield name, median(asked(path)[0] for _ in range(5))
        yield f"{name} of a processor", (cpu_seconds(serving.pid) - before) / 5
    for name, path in SCRAPED.items():
        if not succeeds(path):  # within the budget of an answer
            continue
        took = [asked(path) for _ in range(4)]
        yield f"{name}, the first, s", took[0][0]
        yield f"{name}, nothing new, s", median(t for t, _ in took[1:])
        before = cpu_seconds(serving.pid)
        _, size = asked(path)
        yield f"{name}, nothing new, s of a processor", cpu_seconds(serving.pid) - before
        yield f"{name}, MB", size / 1e6
    yield "serve, MiB", resident_mib(serving.pid)
    serving.terminate()
    serving.wait(20)


SCRAPED = {
    "scrape of a shard of eight": "/metrics?shard=3&total_shards=8",
    "scrape of sums by a label": "/metrics?by=tenant",
    "scrape of all": "/metrics",
}


def verbs(ours: Side, jobs: int) -> Figures:
    program = str(Path(sys.executable).with_name("supervisor"))
    for words in (
        ["jobs"],
        ["jobs", "--json"],
        ["jobs", "--prefix", "job-77"],
        ["audit"],
        ["doctor"],
    ):
        started, busy = time.monotonic(), server_seconds(ours)
        child = subprocess.Popen(
            [program, *words],
            env={**ours.environment, "SUPERVISOR_REDIS_URL": ours.url},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, _, usage = os.wait4(child.pid, 0)
        name = f"supervisor {' '.join(words)}"
        yield f"{name}, s", time.monotonic() - started
        yield f"{name}, s of a processor", usage.ru_utime + usage.ru_stime
        yield f"{name}, s of the server", server_seconds(ours) - busy
        yield f"{name}, MiB", usage.ru_maxrss / 1024


def audited(ours: Side, jobs: int) -> Figures:
    """What beat spreads over many turns, in one go."""
    ledger = ours.ledger
    names, worked, busy = ledger.scheduled_names(), time.process_time(), server_seconds(ours)
    ledger.audit_spans.jobs_to_audit(names, timedelta(minutes=5), timedelta(hours=1))
    yield "which of all are to be audited, s of a processor", time.process_time() - worked
    yield "which of all are to be audited, s of the server", server_seconds(ours) - busy
    specs, worked, busy = ledger.scheduled(), time.process_time(), server_seconds(ours)
    audit(ledger, specs.values(), ledger.now())
    yield "audit of all jobs, s of a processor", time.process_time() - worked
    yield "audit of all jobs, s of the server", server_seconds(ours) - busy


def emission(ours: Side, jobs: int) -> Figures:
    ours.stop()
    ours.empty()
    (ours.directory / "log").write_text("")
    due = math.ceil(time.time()) + 10 + jobs // 400  # of a busy machine
    ours.asked(f"fill('due.nothing', [{due}] * {jobs})")
    beat, ledger = ours.celery("beat", "-l", "info"), ours.ledger
    until(lambda: loads_of(ours), due - time.time(), every=0.2)
    until(lambda: time.time() > due - 1, 600)
    worked, busy = cpu_seconds(beat.pid), server_seconds(ours)
    with ours.queued() as queued:
        last = until(lambda: queued() >= jobs, 600, every=0.02)
    yield "emission of all due in one second, s", last - due
    yield "emission, s of a processor", cpu_seconds(beat.pid) - worked
    yield "emission, s of the server", server_seconds(ours) - busy
    yield "beat after it, MiB", resident_mib(beat.pid)
    yield "Redis with all of them queued, bytes a job", server_mib(ours) * 2**20 / jobs
    assert ledger.beat().leader_changes == 0
    ours.end(beat)


def run_time(ours: Side, jobs: int) -> Figures:
    """Put at run time, a thousand at a time."""
    ours.empty()
    busy = server_seconds(ours)
    seconds, worked = ours.asked(f"put({jobs})")
    yield "put at run time, all of them, s", seconds
    yield "put at run time, all of them, s of a processor", worked
    yield "put at run time, all of them, s of the server", server_seconds(ours) - busy
    yield "put at run time, one more, s", ours.asked("put_one()")


def guarded(ours: Side, jobs: int) -> Figures:
    ours.empty()
    ledger, worked, busy = ours.ledger, time.process_time(), server_seconds(ours)
    for number in range(jobs):
        ledger.register(GuardedTaskSpec(name=f"task-{number}", task="due.nothing"))
    yield "guarded tasks registered, s of a processor", time.process_time() - worked
    yield "guarded tasks registered, s of the server", server_seconds(ours) - busy
    yield from ((f"guarded: {name}", value) for name, value in serve(ours, jobs))


def server_mib(ours: Side) -> float:
    return float(ours.client.info("memory")["used_memory"]) / 2**20


PARTS: dict[str, Any] = {
    "loading": loading,
    "files": files,
    "serve": serve,
    "verbs": verbs,
    "audited": audited,
    "emission": emission,
    "run_time": run_time,
    "guarded": guarded,
}


def say(jobs: int, name: str, value: float) -> None:
    sys.stdout.write(f"{jobs:>7} {name:<54} {value:10.3f}   load {machine.load()}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", type=int, nargs="+")
    parser.add_argument("--only", default=",".join(PARTS))
    options = parser.parse_args()
    for jobs in options.jobs:
        with (
            tempfile.TemporaryDirectory() as directory,
            EmbeddedServer(Path(directory) / "server") as server,
        ):
            redis.Redis.from_url(server.url).config_set("auto-aof-rewrite-percentage", 0)
            with sides("due", ("ours",), Path(directory) / "sides", server.url) as [ours]:
                for part in options.only.split(","):
                    for name, value in PARTS[part](ours, jobs):
                        say(jobs, name, value)


if __name__ == "__main__":
    main()
