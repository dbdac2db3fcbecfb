"""One attempt of a run: its lease, what became of that, and how it ended."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

from supervisor.job.run import Reference, RunRules, RunState
from supervisor.job.run_ids import tick_id
from supervisor.times import clock, instant


class GrantedAttempt(NamedTuple):
    """An attempt as its worker knows it, for a ledger that is older than its begin."""

    fencing_token: int
    number: int
    """Of the attempt, from 1."""

    slot: int
    """Of the lock."""

    @property
    def fields(self) -> dict[str, int]:
        """As comebacks.lua reads it."""
        return {"fence": self.fencing_token, "number": self.number, "slot": self.slot}


class AttemptPhase(IntEnum):
    """How far an attempt is, as far as its worker's heartbeat knows."""

    UNKNOWN = 0
    AT_WORK = 1
    OVER = 2
    """Its work has ended, which is to be reported."""


#: Run id, token, how far the attempt is, and what it was granted, if that is known.
LeaseToRenew = tuple[str, str, AttemptPhase | bool, GrantedAttempt | None]


@dataclass(frozen=True, slots=True)
class Work:
    """A running run as its worker knows it: enough to write it again."""

    run_id: str
    job: str
    nominal_at: datetime
    rules: RunRules
    worker: str = ""
    """The name of the child."""

    @property
    def is_tick(self) -> bool:
        """Whether it is the run of a nominal time, and not one that was asked for."""
        return self.run_id == tick_id(self.job, self.nominal_at)


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

    requested_at: float = field(default_factory=clock, compare=False)
    """When the call for it was sent, by `times.clock`: from then on the lease counts."""

    @property
    def granted(self) -> GrantedAttempt:
        return GrantedAttempt(self.fencing_token, self.attempt, self.slot)


class Refusal(StrEnum):
    """Why a delivered message does not start its run."""

    DUPLICATE = "duplicate"
    KEPT_OUT = "kept_out"
    PARKED = "parked"
    EXPIRED = "expired"
    GRACE = "grace"
    DRAINED = "drained"
    DIFFERS = "differs"
    UNKNOWN = "unknown"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that does not start its run."""

    run_id: str
    refusal: Refusal
    detail: str | None = None
    """As in begin.lua."""

    @property
    def reason(self) -> str:
        """For people: of a duplicate, what it is too late for."""
        if self.refusal is not Refusal.DUPLICATE:
            return self.refusal.value
        if self.detail == RunState.RUNNING:
            return "already_running"
        is_open = self.detail is not None and RunState(self.detail).is_open
        return "earlier_attempt" if is_open else "ended"


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
    """What became of one lease."""

    state: LeaseState
    detail: str | None = None
    """Why the run is to be stopped, or the run of an overlap that was counted by this renewal."""


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
    """The reply to a report of an attempt's end."""

    ending: Ending
    to_publish: tuple[str, ...] = ()
    """Runs whose messages Celery has to make, which the worker that finished does."""

    overlapped_with: str | None = None
    """The run that ran at the same time, if their overlap was counted by this report."""

    @property
    def is_first(self) -> bool:
        """Whether this report ended the attempt; else another process has logged how it ended."""
        return self.ending in (Ending.ENDED, Ending.RESCUED)


class Cancellation(StrEnum):
    """What became of a request to end a run."""

    CANCELLED = "cancelled"
    STOPPING = "stopping"
    """The run is running, and has been asked to end."""

    NOT_OPEN = "not_open"


@dataclass(frozen=True, slots=True)
class Rescue:
    """What rescue has done with one run."""

    kind: str
    """reasserted, prolonged, expired, rescued, lost, cancelled, replaced, timed_out, ended, due,
    requeued, skipped, waiting, promoted or failed."""

    run_id: str
    job: str


def grant_of(run_id: str, token: str, reply: Mapping[str, Any], requested_at: float) -> Grant:
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
        requested_at=requested_at,
    )


def renewal(reply: Mapping[str, str]) -> Renewal:
    return Renewal(LeaseState(reply["state"]), reply.get("detail"))


def finished(text: str) -> Finished:
    reply = json.loads(text)
    to_publish = tuple(reply.get("to_publish", ()))
    return Finished(Ending(reply["ending"]), to_publish, reply.get("overlapped_with"))


def rescues(text: str) -> tuple[Rescue, ...]:
    return tuple(Rescue(**each) for each in json.loads(text))
