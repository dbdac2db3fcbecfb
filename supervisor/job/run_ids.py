"""The identities of runs, of their steps and of the items of batches."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

STEP_ID = re.compile(r"([^~@]*@[^~]*)~([^~#]+)(?:#([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True)
class StepId:
    """Identity of a step of a run, ``<run>~<step>``, or of an item of a batch, ``...#<item>``."""

    run: str
    step: str
    item: int | None = None

    @classmethod
    def of(cls, run_id: str) -> StepId | None:
        """The parts of an id; None for that of a whole run."""
        match = STEP_ID.fullmatch(run_id)
        if match is None:
            return None
        run, step, item = match.groups()
        return cls(run, step, None if item is None else int(item))

    @property
    def batch(self) -> str:
        return f"{self.run}~{self.step}"


def is_below(run_id: str) -> bool:
    """Whether an id would be taken for that of a step or an item of another run."""
    return "@" in run_id.partition("~")[0] and "~" in run_id


def tick_id(job: str, nominal_at: datetime) -> str:
    """Identity of a tick and of its run: ``nightly@2026-03-01T02:00:00Z``."""
    return f"{job}@{moment_text(nominal_at.astimezone(UTC))}"


@lru_cache(maxsize=100)
def moment_text(utc: datetime) -> str:
    """The moment as a run's id has it; cached, since thousands of jobs are due at once.

    In UTC: in other zones two moments are equal in the hour that comes twice.
    """
    text = utc.isoformat(timespec="milliseconds" if utc.microsecond else "seconds")
    return f"{text.removesuffix('+00:00')}Z"


def manual_id(job: str) -> str:
    """Identity of a run triggered by hand: ``nightly@manual-<ulid>``, sortable by time."""
    return f"{job}@manual-{ulid()}"


def backfill_id(job: str, nominal_at: datetime) -> str:
    """Identity of a run for a time that has passed: ``nightly@2026-03-01T02:00:00Z+<ulid>``."""
    return f"{tick_id(job, nominal_at)}+{ulid()}"


def start_id(job: str, started_at: datetime) -> str:
    """Identity of the run of a start of the service: ``nightly@start-2026-03-01T02:00:00Z``."""
    return tick_id(job, started_at).replace("@", "@start-")


def ulid() -> str:
    number = (time.time_ns() // 1_000_000 << 80) | int.from_bytes(os.urandom(10))
    return "".join(CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))
