"""Beat: which one leads, and what became of the schedule files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from supervisor.ledger.leader import ABSENCE
from supervisor.times import optional_instant


@dataclass(frozen=True, slots=True)
class BeatRecord:
    """What the ledger knows of beat."""

    leader: str | None
    last_tick_at: datetime | None
    last_reload_successful: bool | None
    last_reload_at: datetime | None
    problems: tuple[str, ...]
    follows: str | None = None
    """Digest of the schedule files that the leader loads; None when it has none."""

    leader_changes: int = 0
    """How often another beat took the lead."""

    clock_set_backs: int = 0
    """How often the server's clock was set back."""

    clock_set_back_at: datetime | None = None
    """When it was the last time."""

    clock_set_back: timedelta = timedelta()
    """By how much."""

    app: str | None = None
    """The name of the app whose ledger it is; None before a beat of it has led."""

    refused: str | None = None
    """The app and the name of the last beat of another app that tried to lead."""

    refused_at: datetime | None = None

    def leads(self, now: datetime) -> bool:
        """Whether any beat does: a change of leaders takes no longer than ABSENCE."""
        return self.last_tick_at is not None and now - self.last_tick_at <= ABSENCE


def beat_from(fields: Mapping[str, str]) -> BeatRecord:
    successful = fields.get("last_reload_successful")
    return BeatRecord(
        leader=fields.get("leader"),
        last_tick_at=optional_instant(fields.get("last_tick")),
        last_reload_successful=None if successful is None else successful == "1",
        last_reload_at=optional_instant(fields.get("last_reload")),
        problems=tuple(json.loads(fields.get("problems", "[]"))),
        follows=fields.get("follows") or None,
        leader_changes=int(fields.get("leader_changes", 0)),
        clock_set_backs=int(fields.get("clock_set_backs", 0)),
        clock_set_back_at=optional_instant(fields.get("clock_set_back_at")),
        clock_set_back=timedelta(milliseconds=int(fields.get("clock_set_back_ms", 0))),
        app=fields.get("app"),
        refused=fields.get("refused"),
        refused_at=optional_instant(fields.get("refused_at")),
    )
