"""What beat asks of the ledger, and in whose name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from supervisor.job.spec import JobSpec
from supervisor.ledger.replies import ms_of
from supervisor.ledger.requests import Message, steps_of
from supervisor.runs.run import RunState, tick_id


@dataclass(frozen=True)
class Tick:
    """A nominal time of a job that is to become a run.

    message: sent in the same script in which the run is queued; without it the outbox has the run.
    """

    spec: JobSpec
    nominal_at: datetime
    message: Message | None = None

    @cached_property
    def run_id(self) -> str:
        return tick_id(self.spec.name, self.nominal_at)

    def sent_as(self, message: Message) -> Tick:
        return Tick(self.spec, self.nominal_at, message)


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


def tick_facts(tick: Tick) -> tuple[str | int, ...]:
    """A tick as admit.lua reads it: the shorter, the sooner it is read."""
    message, steps = tick.message, steps_of(tick.spec, None)
    return (
        *(tick.run_id, tick.spec.name, ms_of(tick.nominal_at), tick.spec.rules_text, "tick"),
        *(message.facts if message else ("", "", "")),
        *(("", "", "", 0, *steps) if any(steps) else ()),
    )
