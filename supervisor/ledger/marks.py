"""How far a job's ticks have been dealt with, and the pause that some of them fall into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from supervisor.ledger.replies import to_instant

#: The fields of a job's hash that a mark is made of.
MARK_FIELDS = (
    *("watermark", "paused", "paused_at", "paused_until"),
    *("pause_from", "pause_to", "file_paused"),
)


@dataclass(frozen=True, slots=True)
class Pause:
    """Ticks from `start` to before `end` are excluded; without `end` it goes on."""

    start: datetime
    end: datetime | None


@dataclass(frozen=True, slots=True)
class Mark:
    """`pause`: the present one, or else the last. file_paused: what the schedule file last said."""

    watermark: datetime | None
    pause: Pause | None
    file_paused: bool | None


def mark_from(values: Sequence[str | None]) -> Mark:
    """From the values of MARK_FIELDS."""
    facts: Mapping[str, str | None] = dict(zip(MARK_FIELDS, values, strict=True))
    stated = facts["file_paused"]
    return Mark(
        to_instant(facts["watermark"]),
        pause_from(facts),
        None if stated is None else stated == "1",
    )


def pause_from(facts: Mapping[str, str | None]) -> Pause | None:
    is_paused = facts["paused"] == "1"
    start = to_instant(facts["paused_at"] if is_paused else facts["pause_from"])
    end = to_instant(facts["paused_until"] if is_paused else facts["pause_to"])
    return Pause(start, end) if start else None
