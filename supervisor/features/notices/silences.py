"""Silences: until when notices of a job, of those with a label, or of all are not made.

What becomes of events meanwhile is as Alertmanager has it (incidents.py): nothing is sent, and what
is over before the silence ends is never sent; what is not is sent then. Only notices are silenced:
pings, metrics and alerts are not. A silence that is over is not listed, and leaves the ledger with
the next that begins or ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from pydantic import AwareDatetime, BaseModel, ConfigDict

from supervisor.errors import Conflict, NotFound
from supervisor.features.notices.incidents import SERVICE
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import Action, entry_of
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import MOST_SILENCES
from supervisor.times import ms_of


class Silence(BaseModel):
    """job: its name, else label: ``tenant=acme`` or ``tenant``; all jobs and the service without
    either. by: who asked for it, in words.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    job: str = ""
    label: str = ""
    begins_at: AwareDatetime
    ends_at: AwareDatetime
    by: str
    reason: str

    @property
    def is_of_all(self) -> bool:
        return not (self.job or self.label)

    @property
    def target(self) -> str:
        """``nightly``, ``tenant=acme``, ``all``"""
        return self.job or self.label or "all"

    def covers(self, spec: JobSpec) -> bool:
        if self.job:
            return self.job == spec.name
        return self.is_of_all or spec.has_label(self.label)


def silenced(specs: Mapping[str, JobSpec], silences: Iterable[Silence]) -> dict[str, datetime]:
    """Until when notices of these jobs are, and those of the service; those of others are left out.

    Of several silences of a job the last to end counts.
    """
    until: dict[str, datetime] = {}
    for silence in sorted(silences, key=lambda each: each.ends_at):
        until |= {name: silence.ends_at for name, spec in specs.items() if silence.covers(spec)}
        if silence.is_of_all:
            until[SERVICE] = silence.ends_at
    return until


class SilenceStore:
    def __init__(self, ledger: Ledger) -> None:
        self._client = ledger.client
        self._key = ledger.keys.silences
        self._functions = ledger.functions

    def in_force(self, now: datetime) -> list[Silence]:
        """Those that have not ended, the first to end first."""
        texts = self._client.hgetall(self._key).values()
        silences = (Silence.model_validate_json(text.partition(" ")[2]) for text in texts)
        return sorted(
            (each for each in silences if each.ends_at > now), key=lambda s: (s.ends_at, s.id)
        )

    def begin(self, silence: Silence, action: Action | None = None) -> None:
        """Raises Conflict when there are too many."""
        text = f"{ms_of(silence.ends_at)} {silence.model_dump_json()}"
        if self._functions.act(entry_of(action), "silence", silence.id, text) == "full":
            raise Conflict(f"there are {MOST_SILENCES:,} silences: end some, or silence a label")

    def end(self, silence_id: str, action: Action | None = None) -> None:
        """What it held back, and what is not over by now, is notified of. Raises NotFound."""
        if self._functions.act(entry_of(action), "silence", silence_id, "") == "unknown":
            raise NotFound(f"unknown silence {silence_id!r}: it has ended")
