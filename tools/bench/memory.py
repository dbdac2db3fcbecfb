"""`python -m tools.bench.memory [redis-server]`: what a ledger takes of Redis' memory, in bytes.

Runs are admitted, begun and ended by the ledger's own functions. Of a million ended runs, the rest
are copies of their records, each under an id of its own. A server of its own, or the one that is
named, is started for it, without an append-only file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from uuid import uuid4

from celery import Celery

from supervisor.app import supervise
from supervisor.catalog.entries import Entries
from supervisor.catalog.load import load
from supervisor.deploy.embedded import free_port, server_binary
from supervisor.job.spec import JobSpec
from supervisor.ledger.functions import Call
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.requests import RunRequest, document
from supervisor.schedule.ticks import Tick
from supervisor.settings import Settings
from supervisor.store.connection import Unavailable
from tests.waiting import wait_until
from tools.bench import machine

JOBS, RUNS, MILLION = 1_000, 20, 1_000_000
HISTORY = 200

#: As workers in containers are called, with a proof of life as long as real ones.
WORKER, PROOF = "worker-7d9f8b6c5d-x2x4z:17", f"{uuid4()}.{uuid4().hex[:16]}-1234567"

#: One record of a job's, and its entry in the history, again and again.
COPIES = """
local run, history, job = KEYS[1], KEYS[2], ARGV[1]
for i = 2, ARGV[2] do
  local id = string.format('%s@2027-01-01T%02d:%02d:00Z', job, i / 60, i % 60)
  local copy = string.match(run, '^(.*:run:)') .. id
  redis.call('COPY', run, copy)
  redis.call('PEXPIRE', copy, 600000000)
  redis.call('ZADD', history, 1795466951071 + i, id)
end
"""


@contextmanager
def server(binary: str) -> Iterator[Settings]:
    with tempfile.TemporaryDirectory() as directory:
        port = free_port()
        options = {
            "port": port,
            "bind": "127.0.0.1",
            "dir": directory,
            "save": "",
            "appendonly": "no",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        process = subprocess.Popen([binary, *words], stdout=subprocess.DEVNULL)
        try:
            yield Settings(redis_url=f"redis://127.0.0.1:{port}/0")
        finally:
            process.terminate()
            process.wait()


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


class Measured:
    """How much more is in use after something than before it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._before = self._used()

    def _used(self) -> int:
        return int(self._ledger.client.info("memory")["used_memory"])

    def per(self, number: int, what: str) -> None:
        used, self._before = self._used() - self._before, self._used()
        say(f"{what:60} {used / number:9,.0f}")

    def forget(self) -> None:
        self._before = self._used()


def specs(number: int, name: str = "import-orders", **keys: object) -> list[JobSpec]:
    known = {"task": "proj.tasks.import_orders", "every": "5m", "history": HISTORY, **keys}
    return [JobSpec.model_validate({"name": f"{name}-{n:04}", **known}) for n in range(number)]


def admit(ledger: Ledger, jobs: Sequence[JobSpec], turn: int) -> list[str]:
    """The message goes to a list that is emptied again: it is the broker's, until it is taken."""
    at = ledger.now().replace(second=0, microsecond=0) + timedelta(minutes=5 * turn + 5)
    for spec in jobs:
        message = {"queue:": "celery", "list:": "celery", "text:": "message"}
        message["for:"] = f"{spec.lock}\n{spec.rules_text}"
        ledger.client.hset(ledger.keys.message(spec.name), mapping=message)
    admissions = ledger.admit(Tick(spec, at) for spec in jobs)
    ledger.client.delete("celery", *(ledger.keys.message(spec.name) for spec in jobs))
    return [admission.run_id for admission in admissions]


def do(ledger: Ledger, runs: Sequence[str], outcome: str = "succeeded", reason: str = "") -> None:
    tokens = {run: uuid4().hex for run in runs}
    attempts = [{"run_id": run, "token": token} for run, token in tokens.items()]
    of_worker = {"worker": WORKER, "queue": "celery", "retries": 0}
    begins = [{**of_worker, "process": f"{PROOF} {a['token']}", **a} for a in attempts]
    assert words(ledger, "begin", begins, "verdict") == {"begin"}
    ends = [{"outcome": outcome, "reason": reason, **a} for a in attempts]
    assert words(ledger, "finish", ends, "ending") == {"ended"}


def words(
    ledger: Ledger, function: str, calls: Sequence[Mapping[str, object]], field: str
) -> set[str]:
    """The different values of this field in the replies."""
    replies = ledger.functions.many(function, [Call((document(call),)) for call in calls])
    return {json.loads(reply)[field] for reply in replies}


def measure(ledger: Ledger, entries: Entries) -> None:
    ledger.acknowledge_server()
    warm = specs(1, "warm")
    load(ledger, entries, {spec.name: spec for spec in warm}, "digest", ledger.now())
    do(ledger, admit(ledger, warm, 0))
    measured = Measured(ledger)

    jobs = specs(JOBS)
    load(ledger, entries, {spec.name: spec for spec in (*warm, *jobs)}, "digest", ledger.now())
    measured.per(JOBS, "a job that is loaded and has not run")
    runs = admit(ledger, jobs, 1)
    measured.per(JOBS, "its first run, queued, with the job's counters")
    do(ledger, runs)
    measured.forget()
    for turn in range(2, 2 + RUNS):
        runs = admit(ledger, jobs, turn)
        do(ledger, runs)
    measured.per(JOBS * RUNS, "a kept run that succeeded at once")
    do(ledger, admit(ledger, jobs, 30), "failed", "ValueError: no such file: orders.csv")
    measured.per(JOBS, "a kept run that failed")
    admit(ledger, jobs, 31)
    measured.forget()
    admit(ledger, jobs, 32)
    measured.per(JOBS, "a kept run that was skipped")

    [waits] = specs(1, "waits", overlap="queue_all", max_waiting=5_000)
    ledger.admit_requests(waits, [RunRequest()])
    measured.forget()
    ledger.admit_requests(waits, [RunRequest() for _ in range(JOBS)])
    measured.per(JOBS, "a run that waits for its lock")

    steps = [{"task": "proj.each", "foreach": "files", "priority": 1}]
    [batch] = specs(1, "batch", task=None, steps=steps, params={"files": []})
    files = [f"s3://bucket/2026-03-01/orders-{n:05}.csv" for n in range(10_000)]
    each = f"{ledger.admit_requests(batch, [RunRequest()])[0].run_id}/each"
    measured.forget()
    ledger.steps.expand(each, files)
    while ledger.steps.fill(each):
        pass
    measured.per(10_000, "an item of a batch of 10,000 (1,000 of them queued)")

    alone = specs(1, "alone")
    load(ledger, entries, {s.name: s for s in (*warm, *jobs, *alone)}, "digest", ledger.now())
    do(ledger, admit(ledger, alone, 0))
    for turn in range(1, 100):
        do(ledger, admit(ledger, alone, turn))
    state = ledger.client.execute_command("MEMORY USAGE", ledger.keys.lock_state(alone[0].lock))
    say(f"{'a job that has run 100 times: its lock':60} {state:9,}")


def measure_million(ledger: Ledger, entries: Entries) -> None:
    jobs = specs(MILLION // HISTORY)
    ledger.acknowledge_server()
    load(ledger, entries, {spec.name: spec for spec in jobs}, "digest", ledger.now())
    measured = Measured(ledger)
    runs = admit(ledger, jobs, 0)
    do(ledger, runs)
    for run, spec in zip(runs, jobs, strict=True):
        keys = ledger.keys.run(run), ledger.keys.history(spec.name)
        ledger.client.eval(COPIES, 2, *keys, spec.name, HISTORY)
    measured.per(MILLION, f"{MILLION:,} ended runs: each, with all that belongs to it")
    info = ledger.client.info("all")
    used, resident = info["used_memory"] / 2**20, info["used_memory_rss"] / 2**20
    say(f"in all {used:,.0f} MiB, and {resident:,.0f} MiB of the machine's; keys {info['db0']}")
    version = info.get("valkey_version") or info["redis_version"]
    say(f"server {version}, load {machine.load()}")


def open_ledger(settings: Settings) -> Ledger:
    ledger = Ledger.open(settings)

    def answers() -> bool:
        try:
            return bool(ledger.client.time())
        except Unavailable:
            return False

    wait_until(answers)
    return ledger


def main(binary: str) -> None:
    for part in (measure, measure_million):
        with server(binary) as settings:
            ledger = open_ledger(settings)
            app = supervise(Celery("proj", broker=settings.redis_url, set_as_current=False))
            part(ledger, Entries(app, ledger))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(server_binary()))
