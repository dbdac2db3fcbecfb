"""Reads the facts, from the ledger and from the app where there is one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from redis.exceptions import ResponseError

from supervisor.beat.app_facts import AppFacts
from supervisor.checkup.asking import Asking
from supervisor.checkup.facts import Facts, ServerFacts
from supervisor.execution.consumption import Queues, queues
from supervisor.job.spec import JobSpec
from supervisor.ledger.connection import check_served
from supervisor.ledger.queues import LedgerQueues
from supervisor.ledger.runs import Ledger


def read(
    ledger: Ledger,
    app: Callable[[Mapping[str, JobSpec]], AppFacts] | None = None,
    broker: Queues | None = None,
) -> Facts:
    """app: what tells the facts of the app, given the loaded jobs.

    Raises NotServed for a Redis Cluster, and NoPermissionError where Redis forbids to read the
    ledger itself.
    """
    check_served(ledger.client)
    records, roll, now = ledger.jobs(), ledger.presences.roll(), ledger.now()
    # What code guarded once is known for ever, whether it is still called or not.
    specs = [record.spec for record in records if record.spec.has_schedule]
    asking = Asking()
    asked = broker or LedgerQueues(ledger.client, roll)
    return Facts(
        now=now,
        server=asking.ask(lambda: server_facts(ledger), None),
        roll=roll,
        beat=ledger.beat(),
        queues=asking.ask(lambda: queues(specs, roll, asked, ledger.drains.since()), []),
        tasks={spec.name: spec.tasks for spec in specs},
        known_tasks=ledger.presences.tasks(roll.workers),
        silent=ledger.silent(now),
        unaccounted={r.spec.name: r.unaccounted_ticks for r in records if r.unaccounted_ticks},
        unread=tuple(ledger.loaded().unread),
        schema=ledger.schema(),
        app=asking.ask(lambda: app(ledger.specs()), None) if app else None,
        forbidden=asking.forbidden,
    )


def server_facts(ledger: Ledger) -> ServerFacts:
    info = ledger.client.info("all")
    has_append_only_file = bool(info["aof_enabled"])
    return ServerFacts(
        version=tuple(map(int, re.findall(r"\d+", str(info["redis_version"])))),
        has_append_only_file=has_append_only_file,
        # Few users may ask for a server's settings: only where it matters.
        snapshots=None if has_append_only_file else snapshots(ledger),
        eviction=str(info["maxmemory_policy"]),
    )


def snapshots(ledger: Ledger) -> str | None:
    try:
        return str(ledger.client.config_get("save").get("save", ""))
    except ResponseError:  # a server that is rented says nothing of its configuration
        return None
