"""The facts that the checks of `doctor` look at, read from the ledger and from the app."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

from redis.exceptions import NoPermissionError, ResponseError

from supervisor.beat.app_facts import AppFacts
from supervisor.job.spec import JobSpec
from supervisor.job.topology import Needs
from supervisor.ledger.connection import check_functions, check_served
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.presence import Roll
from supervisor.ledger.queues import LedgerQueues, Queue, Queues, queues
from supervisor.ledger.records import BeatRecord


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The ledger's Redis. version: of Redis, or the one that a Valkey is compatible with.

    snapshots: its `save` setting, empty for none; None when it has an append-only file, or does not
    reveal it.
    """

    version: tuple[int, ...]
    has_append_only_file: bool
    snapshots: str | None
    eviction: str


@dataclass(frozen=True, slots=True)
class DoctorFacts:
    """specs: of the loaded jobs. tasks: by job, those that it names. needs: by job, of the
    pool. known_tasks: those that any worker knows. silent: running runs whose lease has expired,
    and when it did. unaccounted: ticks by job. unread: jobs that only another version can read.
    schema: of the ledger, None of a new one. app: if one was named. forbidden: errors of Redis to
    commands that this user may not run; their facts are missing.
    """

    now: datetime
    server: ServerFacts | None
    roll: Roll
    beat: BeatRecord
    specs: Sequence[JobSpec] = ()
    queues: Sequence[Queue] = ()
    tasks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    needs: Mapping[str, Needs] = field(default_factory=dict)
    known_tasks: frozenset[str] = frozenset()
    silent: Mapping[str, datetime] = field(default_factory=dict)
    unaccounted: Mapping[str, int] = field(default_factory=dict)
    unread: Sequence[str] = ()
    schema: int | None = None
    app: AppFacts | None = None
    forbidden: Sequence[str] = ()

    def ago(self, moment: datetime) -> timedelta:
        return self.now - moment


T = TypeVar("T")


def read(
    ledger: Ledger,
    app: Callable[[Mapping[str, JobSpec]], AppFacts] | None = None,
    broker: Queues | None = None,
) -> DoctorFacts:
    """app: gives the facts of the app for the loaded jobs.

    Raises NotServed for a Redis Cluster, and NoPermissionError where Redis forbids reading the
    ledger itself.
    """
    forbidden: dict[str, None] = {}

    def permitted(question: Callable[[], T], otherwise: T) -> T:
        """The answer; `otherwise` where this user may not ask."""
        try:
            return question()
        except NoPermissionError as error:
            forbidden[str(error)] = None
            return otherwise

    check_served(ledger.client)
    check_functions(ledger.client)
    records, roll, now = ledger.jobs(), ledger.presences.roll(), ledger.now()
    # Guarded tasks are left out: once recorded they stay, whether code still calls them or not.
    specs = [record.spec for record in records if not record.spec.is_of_code]
    broker = broker or LedgerQueues(ledger.client, roll)
    return DoctorFacts(
        now=now,
        server=permitted(lambda: server_facts(ledger), None),
        roll=roll,
        beat=ledger.beat(),
        queues=permitted(lambda: queues(specs, roll, broker, ledger.drains.since()), []),
        specs=specs,
        tasks={spec.name: spec.tasks for spec in specs},
        needs={spec.name: Needs.of(spec) for spec in specs},
        known_tasks=ledger.presences.tasks(roll.workers),
        silent=ledger.silent(now),
        unaccounted={r.spec.name: r.unaccounted_ticks for r in records if r.unaccounted_ticks},
        unread=tuple(ledger.loaded().unread),
        schema=ledger.schema(),
        app=permitted(lambda: app(ledger.specs()), None) if app else None,
        forbidden=tuple(forbidden),
    )


def server_facts(ledger: Ledger) -> ServerFacts:
    info = ledger.client.info("all")
    has_append_only_file = bool(info["aof_enabled"])
    return ServerFacts(
        version=tuple(map(int, re.findall(r"\d+", str(info["redis_version"])))),
        has_append_only_file=has_append_only_file,
        # Few users may read a server's settings: only where it matters.
        snapshots=None if has_append_only_file else snapshots(ledger),
        eviction=str(info["maxmemory_policy"]),
    )


def snapshots(ledger: Ledger) -> str | None:
    try:
        return str(ledger.client.config_get("save").get("save", ""))
    except ResponseError:  # a managed server does not reveal its configuration
        return None
