"""Nominal times on their way: those that become runs, those that do not, and pauses."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from supervisor.job.run import RunState
from supervisor.job.run_ids import tick_id
from supervisor.job.spec import JobSpec


@dataclass(frozen=True)
class Tick:
    """A nominal time of a job that is to become a run."""

    spec: JobSpec
    nominal_at: datetime

    @cached_property
    def run_id(self) -> str:
        return tick_id(self.spec.name, self.nominal_at)


@dataclass(frozen=True, slots=True)
class PassedOver:
    """Ticks that become no runs: those from `first_at` to `last_at`."""

    spec: JobSpec
    state: RunState
    reason: str
    first_at: datetime
    last_at: datetime
    ticks: int
    """How many. 0: those up to `last_at` have had outcomes, and come again with Redis' clock."""


@dataclass(frozen=True, slots=True)
class PausePeriod:
    """Ticks from `start` to before `end` are excluded; without `end` it goes on."""

    start: datetime
    end: datetime | None
