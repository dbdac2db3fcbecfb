"""Writes a ledger as this version leaves it: `python -m tests.acceptance.first_release > FILE`.

first_release.json was made so by the first release, and is not made again: later versions have to
go on with it. Another release that changes the schema gets a file of its own beside it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from celery import Celery

from supervisor.app import supervise
from supervisor.beat.entries import Entries
from supervisor.beat.load import load
from supervisor.deploy.embedded import EmbeddedServer
from supervisor.files.schedule_files import load as schedule_set
from supervisor.job.run import Run, RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.connection import Client
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Grant
from supervisor.ledger.requests import Tick
from supervisor.settings import Settings

DUMP = Path(__file__).with_name("first_release.json")

LOADED_AT = datetime(2026, 3, 1, tzinfo=UTC)
TICK_AT = datetime(2026, 3, 1, 2, tzinfo=UTC)

ONCE = 'task: team.work, at: ["2026-03-01T02:00:00"]'

JOBS = f"""
defaults: {{lease_ttl: 1s, overlap: queue_one}}
jobs:
  ended: {{{ONCE}, max_retries: 1}}
  at-work: {{{ONCE}, on_crash: rerun}}
  given-up: {{{ONCE}, on_crash: fail}}
  retrying: {{{ONCE}, max_retries: 1}}
  queued: {{{ONCE}, start_deadline: 8760h}}
  held-back: {{{ONCE}, queue: mail}}
  paused: {{{ONCE}, paused: true}}
  passed: {{{ONCE}}}
"""


def write(ledger: Ledger, entries: Entries, directory: Path) -> None:
    (directory / "jobs.yaml").write_text(JOBS)
    wanted = schedule_set(directory)
    load(ledger, entries, wanted.specs, wanted.digest, LOADED_AT)
    specs = wanted.specs
    runs = {name: tick(ledger, spec) for name, spec in specs.items() if name != "passed"}
    ended = begin(ledger, runs["ended"])
    ledger.retry(ended.run_id, ended.token, timedelta(), "ValueError: not yet")
    ledger.rescue()
    ledger.finish(*attempt(begin(ledger, ended.run_id)), RunState.SUCCEEDED)
    ledger.finish(
        *attempt(begin(ledger, ledger.trigger(specs["ended"]).id)), RunState.FAILED, "KeyError: 1"
    )
    begin(ledger, runs["at-work"])
    waits(ledger, specs["at-work"])
    begin(ledger, runs["given-up"])
    waits(ledger, specs["given-up"])
    retried = begin(ledger, runs["retrying"])
    ledger.retry(retried.run_id, retried.token, timedelta(seconds=1), "ValueError: not yet")
    ledger.sent({runs["queued"]: "celery"})
    ledger.drains.drain("mail")
    ledger.begin(runs["held-back"], "token", "host:1", "mail")
    ledger.pause("paused", "until the move is done")


def tick(ledger: Ledger, spec: JobSpec) -> str:
    return ledger.admit([Tick(spec, TICK_AT)])[0].run_id


def begin(ledger: Ledger, run_id: str) -> Grant:
    grant = ledger.begin(run_id, f"token of {run_id}", "host:1", "celery")
    assert isinstance(grant, Grant), grant
    return grant


def attempt(grant: Grant) -> tuple[str, str]:
    return grant.run_id, grant.token


def waits(ledger: Ledger, spec: JobSpec) -> Run:
    run = ledger.trigger(spec)
    assert run.state is RunState.WAITING, run
    return run


def dump(client: Client) -> dict[str, Any]:
    """Every key: its kind, what it holds, and for how long in ms, if not for ever."""
    read = {
        "string": client.get,
        "hash": client.hgetall,
        "set": lambda key: sorted(client.smembers(key)),
        "zset": lambda key: {
            member: f"{score:.0f}" for member, score in client.zrange(key, 0, -1, withscores=True)
        },
        "list": lambda key: client.lrange(key, 0, -1),
    }
    found = {}
    for key in sorted(client.scan_iter()):
        kind, lasts = client.type(key), client.pttl(key)
        found[key] = {"kind": kind, "holds": read[kind](key)}
        found[key] |= {"lasts_ms": lasts} if lasts >= 0 else {}
    return found


def restore(client: Client, dumped: Mapping[str, Any]) -> None:
    for key, value in dumped.items():
        match value["kind"], value["holds"]:
            case "string", text:
                client.set(key, text)
            case "hash", fields:
                client.hset(key, mapping=fields)
            case "set", members:
                client.sadd(key, *members)
            case "zset", scores:
                client.zadd(key, scores)
            case "list", items:
                client.rpush(key, *items)
        if "lasts_ms" in value:
            client.pexpire(key, value["lasts_ms"])


def main() -> None:
    with TemporaryDirectory() as directory, EmbeddedServer(Path(directory) / "server") as server:
        schedules = Path(directory) / "schedules"
        schedules.mkdir()
        ledger = Ledger.open(Settings(redis_url=server.url))
        ledger.acknowledge_server()
        with supervise(Celery("team", broker=server.url)) as app:
            write(ledger, Entries(app, ledger), schedules)
        json.dump(dump(ledger.client), sys.stdout, indent=1, sort_keys=True)


if __name__ == "__main__":
    main()
