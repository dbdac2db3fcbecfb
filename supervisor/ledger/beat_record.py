"""What is known of beat: which one leads, and what became of the schedule files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from supervisor.ledger.leader import SILENCE
from supervisor.ledger.replies import to_instant


@dataclass(frozen=True, slots=True)
class BeatRecord:
    """`follows`: digest of the schedule files that the leader loads; None when it has none.

    leader_changes: how often the leader was another than before.
    """

    leader: str | None
    last_tick_at: datetime | None
    last_reload_successful: bool | None
    last_reload_at: datetime | None
    problems: tuple[str, ...]
    follows: str | None = None
    leader_changes: int = 0

    def leads(self, now: datetime) -> bool:
        """Whether any beat does: a change of leaders takes no longer than SILENCE."""
        return self.last_tick_at is not None and now - self.last_tick_at <= SILENCE


def beat_from(fields: Mapping[str, str]) -> BeatRecord:
    successful = fields.get("last_reload_successful")
    return BeatRecord(
        leader=fields.get("leader"),
        last_tick_at=to_instant(fields.get("last_tick")),
        last_reload_successful=None if successful is None else successful == "1",
        last_reload_at=to_instant(fields.get("last_reload")),
        problems=tuple(json.loads(fields.get("problems", "[]"))),
        follows=fields.get("follows") or None,
        leader_changes=int(fields.get("leader_changes", 0)),
    )
