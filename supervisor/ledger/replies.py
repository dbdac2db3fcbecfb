"""What the ledger's functions reply, as enums and records."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from supervisor.job.run import Reference
from supervisor.store.connection import NotWritable
from supervisor.times import clock


class Placement(StrEnum):
    """What became of a tick, a trigger or a call at admission."""

    START = "start"
    WAIT = "wait"
    REQUEUE = "requeue"
    REPLACE = "replace"
    SKIP = "skip"
    DELAY = "delay"
    HOLD = "hold"
    EXCLUDED = "excluded"
    DUPLICATE = "duplicate"
    REPEATED = "repeated"
    NOT_LEADER = "not_leader"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Rescue:
    """`kind`: reasserted, held, expired, rescued, lost, cancelled, replaced, timed_out, ended, due,
    requeued, skipped, waiting, promoted or failed."""

    kind: str
    run_id: str
    job: str


@dataclass(frozen=True, slots=True)
class Admission:
    """`settled`: silent runs that stood in the way, and what became of them. to_publish: ids of
    runs whose messages Celery has to make."""

    run_id: str
    job: str
    placement: Placement
    reason: str | None = None
    blocked_by: str | None = None
    settled: tuple[Rescue, ...] = ()
    to_publish: tuple[str, ...] = ()

    @property
    def is_refused(self) -> bool:
        """Whether the server takes no writes at all."""
        is_failed = self.placement is Placement.FAILED
        return is_failed and (self.reason or "").startswith(NotWritable.CODES)


class Known(NamedTuple):
    """An attempt as its worker knows it, for a ledger that is older than its begin.

    number: of the attempt. slot: of the lock.
    """

    fencing_token: int
    number: int
    slot: int

    @property
    def fields(self) -> dict[str, int]:
        """As comebacks.lua reads it."""
        return {"fence": self.fencing_token, "number": self.number, "slot": self.slot}


@dataclass(frozen=True, slots=True)
class Grant:
    """The lease of one attempt."""

    run_id: str
    job: str
    token: str
    fencing_token: int
    """It grows with every lease of the same lock."""

    attempt: int
    nominal_at: datetime
    lease_ttl: timedelta
    stage: str = ""
    """Of a step, the priority of the stage that its run is at."""

    references: tuple[Reference, ...] = ()
    """Of a schedule file, in its arguments, as in a Run; or "args", "kwargs": those as a whole."""

    slot: int = 1
    """Of the lock."""

    asked_at: float = field(default_factory=clock, compare=False)
    """When the call for it was sent, by `times.clock`: from then on the lease counts."""

    @property
    def known(self) -> Known:
        return Known(self.fencing_token, self.attempt, self.slot)


class Refusal(StrEnum):
    """Why a delivered message does not start its run."""

    DUPLICATE = "duplicate"
    PARKED = "parked"
    EXPIRED = "expired"
    GRACE = "grace"
    DRAINED = "drained"
    DIFFERS = "differs"
    UNKNOWN = "unknown"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Refused:
    run_id: str
    refusal: Refusal
    detail: str | None = None


class LeaseState(StrEnum):
    """What a renewal found; see ledger/renew.lua."""

    RENEWED = "renewed"
    REASSERTED = "reasserted"
    STOP = "stop"
    NOT_BEGUN = "not_begun"
    ENDED = "ended"
    LOST = "lost"
    UNKNOWN = "unknown"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Renewal:
    """`detail`: why a run is to be stopped, or which run was running while its lease was lost."""

    state: LeaseState
    detail: str | None = None


class Ending(StrEnum):
    """What the ledger made of a reported end of an attempt."""

    ENDED = "ended"
    RETRYING = "retrying"
    RESCUED = "rescued"
    ALREADY = "already"
    UNKNOWN = "unknown"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Finished:
    """`to_publish`: runs whose messages Celery has to make, which the worker that finished does.

    overlapped_with: of a stale ending, the run that ran at the same time.
    """

    ending: Ending
    to_publish: tuple[str, ...] = ()
    overlapped_with: str | None = None

    @property
    def is_first(self) -> bool:
        """Whether this report ended the attempt; else another process has logged how it ended."""
        return self.ending in (Ending.ENDED, Ending.RESCUED)


class Cancellation(StrEnum):
    """`stopping`: the run is running and has been asked to end."""

    CANCELLED = "cancelled"
    STOPPING = "stopping"
    NOT_OPEN = "not_open"


class LoadVerdict(StrEnum):
    """What became of changes of loaded jobs; all but the first changed nothing."""

    LOADED = "loaded"
    OUTDATED = "outdated"
    CHANGED = "changed"
    ELSEWHERE = "elsewhere"
    DUE = "due"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class LoadReply:
    """version: with which the jobs were loaded. job: the one that was refused. source: of that,
    where it is another's. jobs: how many would be loaded at run time."""

    verdict: LoadVerdict
    version: int = 0
    job: str = ""
    source: str = ""
    jobs: int = 0


def lines_of(text: str | None) -> list[str]:
    """The lines that a function wrote, each with its end.

    Not `splitlines`: what jobs raise is within them, and cjson leaves U+2028 and the like as it is.
    """
    return text.removesuffix("\n").split("\n") if text else []


def optional_instant(ms: str | int | float | None) -> datetime | None:
    return datetime.fromtimestamp(float(ms) / 1000, UTC) if ms else None


def instant(ms: str | int | float) -> datetime:
    return datetime.fromtimestamp(float(ms) / 1000, UTC)


def ms_of(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def load_reply(text: str) -> LoadReply:
    reply = json.loads(text)
    verdict, version = LoadVerdict(reply.pop("verdict")), int(reply.pop("version", 0))
    return LoadReply(verdict, version, **reply)


def admission_of(run_id: str, job: str, reply: Mapping[str, Any]) -> Admission:
    return Admission(
        run_id,
        job,
        Placement(reply["decision"]),
        reply.get("reason"),
        reply.get("blocked_by"),
        settled=tuple(Rescue(**each) for each in reply.get("settled", ())),
        to_publish=tuple(reply.get("to_publish", ())),
    )


def finished(text: str) -> Finished:
    reply = json.loads(text)
    to_publish = tuple(reply.get("to_publish", ()))
    return Finished(Ending(reply["ending"]), to_publish, reply.get("overlapped_with"))


def rescues(text: str) -> tuple[Rescue, ...]:
    return tuple(Rescue(**each) for each in json.loads(text))


def renewal(reply: Mapping[str, str]) -> Renewal:
    return Renewal(LeaseState(reply["state"]), reply.get("detail"))


def grant_of(run_id: str, token: str, reply: Mapping[str, Any], asked_at: float) -> Grant:
    return Grant(
        run_id=run_id,
        job=reply["job"],
        token=token,
        fencing_token=int(reply["fence"]),
        attempt=reply["attempt"],
        nominal_at=instant(reply["nominal"]),
        lease_ttl=timedelta(milliseconds=reply["lease_ttl"]),
        stage=reply["stage"],
        references=(*re.findall(r"\w+", reply["named"]), *json.loads(reply["references"])),
        slot=reply["slot"],
        asked_at=asked_at,
    )
