"""One turn of the beat that leads, and what takes part in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from celery import Celery

from supervisor.catalog.entries import Entries
from supervisor.job.spec import JobSpec
from supervisor.ledger.leader import Poll
from supervisor.ledger.ledger import Ledger
from supervisor.schedule.emission import Emission

#: Beat looks at the ledger at least this often, whether entries are due or not.
INTERVAL = timedelta(seconds=1)

#: Between two looks of EachSecond: ticks of each second are not a second apart to the millisecond.
LEAST_SECONDS = 0.9


@dataclass
class Turn:
    """What the steps of a turn leave for those after them."""

    poll: Poll

    emissions: list[Emission] = field(default_factory=list)
    """What was due, by job."""

    of_redbeat: list[str] = field(default_factory=list)
    """Keys of entries that were due and are RedBeat's own (`beat_schedule`, other programs)."""

    has_outbox: bool = False
    """Whether the outbox may have runs whose messages Celery has to send now."""

    has_more: bool = False
    """Something is left that the next turn can do: it follows at once."""

    has_read_files: bool = True
    """Whether the schedule files, if there are any, have been read since this beat leads."""

    problems: Sequence[str] | None = None
    """What is wrong with them then."""

    def __post_init__(self) -> None:
        self._next_at = self.poll.at + INTERVAL
        self.wake_at(self.poll.next_due)
        self.has_outbox = self.poll.has_outbox or self.poll.to_rescue or self.poll.has_endings

    def wake_at(self, at: datetime | None) -> None:
        """The next turn is to begin by then."""
        if at is not None:
            self._next_at = min(self._next_at, at)

    @property
    def seconds_left(self) -> float:
        """Until the next turn is due; negative if it is overdue."""
        return 0.0 if self.has_more else self.poll.seconds_until(self._next_at)


class EachSecond:
    """When a step looks at files, with system calls for each: not each time that beat turns."""

    def __init__(self) -> None:
        self._last: float | None = None

    def is_due(self, turn: Turn) -> bool:
        """Whether it looks in this turn. If not, a turn follows a second after the last look."""
        now = time.monotonic()
        if self._last is not None and now - self._last < LEAST_SECONDS:
            turn.wake_at(turn.poll.moment_in(self._last - now) + INTERVAL)
            return False
        self._last = now
        return True


class TurnStep(Protocol):
    """A part of a turn. What it raises ends the turn; the next one tries again."""

    def is_due(self, turn: Turn) -> bool:
        """Whether there is something to do, by the poll and what the steps before left."""

    def do(self, turn: Turn) -> None:
        """Does it, or a turn's share of it."""


@dataclass(frozen=True, slots=True)
class BeatContext:
    """What the part of a feature is made with."""

    app: Celery
    ledger: Ledger
    entries: Entries

    senders: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    """How features send to other servers, by the kind of what is sent. Each adds its own."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a feature does in beat: steps in the three phases of a turn (steps.py), and the rest."""

    emit: Sequence[TurnStep] = ()
    deliver: Sequence[TurnStep] = ()
    follow: Sequence[TurnStep] = ()

    begin: Callable[[datetime, bool], None] | None = None
    """This beat takes the lead, now, and has emitted nothing; and whether it has neither led nor
    stood by before."""

    as_admitted: Callable[[JobSpec], JobSpec] | None = None
    """The job as its runs are admitted: the same each time for the same job."""
