"""The facts that checks look at, and nothing that a check could do with more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from supervisor.beat.app_facts import AppFacts
from supervisor.execution.consumption import Queue
from supervisor.ledger.beat_record import BeatRecord
from supervisor.ledger.presence import Roll


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The ledger's Redis. snapshots: its `save` setting, empty for none; None when it has an
    append-only file, or will not say.

    version: of Redis, or the one that a Valkey is compatible with.
    """

    version: tuple[int, ...]
    has_append_only_file: bool
    snapshots: str | None
    eviction: str


@dataclass(frozen=True, slots=True)
class Facts:
    """tasks: by job, those that it names. known_tasks: those that any worker knows. silent: runs
    at work whose lease has run out, and when it did. unaccounted: ticks by job. unread: jobs that
    only another version can read. schema: of the ledger, None of a new one. app: when named.
    forbidden: what Redis said to questions that this user may not ask; their facts are missing.
    """

    now: datetime
    server: ServerFacts | None
    roll: Roll
    beat: BeatRecord
    queues: Sequence[Queue] = ()
    tasks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    known_tasks: frozenset[str] = frozenset()
    silent: Mapping[str, datetime] = field(default_factory=dict)
    unaccounted: Mapping[str, int] = field(default_factory=dict)
    unread: Sequence[str] = ()
    schema: int | None = None
    app: AppFacts | None = None
    forbidden: Sequence[str] = ()

    def ago(self, moment: datetime) -> timedelta:
        return self.now - moment
