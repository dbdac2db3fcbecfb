"""What beat asks of the ledger, and in whose name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from supervisor.ledger.replies import ms_of
from supervisor.ledger.requests import steps_of
from supervisor.ledger.scripts import Call
from supervisor.run import RunState, tick_id
from supervisor.spec import JobSpec


@dataclass(frozen=True, slots=True)
class Tick:
    """A nominal time of a job that is to become a run."""

    spec: JobSpec
    nominal_at: datetime

    @property
    def run_id(self) -> str:
        return tick_id(self.spec.name, self.nominal_at)


@dataclass(frozen=True, slots=True)
class PassedOver:
    """Ticks that become no runs: `ticks` nominal times from `first_at` to `last_at`."""

    spec: JobSpec
    state: RunState
    reason: str
    first_at: datetime
    last_at: datetime
    ticks: int


@dataclass(frozen=True, slots=True)
class Leadership:
    """The lock of the leading beat; what is done in its name is refused once it is another's."""

    key: str
    token: str


def tick_call(tick: Tick, leadership: Leadership | None) -> Call:
    rules = json.dumps(tick.spec.rules())
    token = leadership.token if leadership else ""
    return Call(
        (
            *(tick.run_id, tick.spec.name, ms_of(tick.nominal_at), rules),
            *("", "", "", "tick"),
            *(token, 0),
            *steps_of(tick.spec, None),
        ),
        (leadership.key,) if leadership else (),
    )
