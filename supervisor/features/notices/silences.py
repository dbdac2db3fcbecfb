"""Silences: until when notices of a job, of those with a label, or of all are not made.

What becomes of events meanwhile is as Alertmanager has it (incidents.py): nothing is sent, and what
is over before the silence ends is never sent; what is not is sent then. Only notices are silenced:
pings, metrics and alerts are not. A silence that is over is not listed, and leaves the ledger with
the next that begins or ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import uuid4
from zoneinfo import ZoneInfo

from pydantic import AwareDatetime, BaseModel, ConfigDict

from supervisor.errors import Conflict, InvalidRequest, NotFound
from supervisor.features.notices.incidents import SERVICE
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import LONGEST_NAME, Action, Actor, Change, entry_of, short
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import MOST_SILENCES
from supervisor.times import ms_of, plus, render_moment, to_come

#: Characters of the reason of a silence.
LONGEST_REASON = 500

UTC_ZONE = ZoneInfo("UTC")


class Silence(BaseModel):
    """Of one job, of the jobs with a label, or of all jobs and the service."""

    model_config = ConfigDict(frozen=True)

    id: str

    job: str = ""
    """Its name; '' for one of more than a job."""

    label: str = ""
    """``tenant=acme`` or ``tenant``; '' with a job, and for one of everything."""

    begins_at: AwareDatetime
    ends_at: AwareDatetime

    by: str
    """The person or program that asked for it, in words."""

    reason: str

    @property
    def is_of_all(self) -> bool:
        return not (self.job or self.label)

    @property
    def target(self) -> str:
        """``nightly``, ``tenant=acme``, ``all``"""
        return self.job or self.label or "all"

    @property
    def words(self) -> str:
        """``nightly``, ``jobs with tenant=acme``, ``all jobs and the service``"""
        if self.is_of_all:
            return "all jobs and the service"
        return self.job or f"jobs with {self.label}"

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
        """What is unsent because of it, and is not over by now, is notified of. Raises NotFound."""
        if self._functions.act(entry_of(action), "silence", silence_id, "") == "unknown":
            raise NotFound(f"unknown silence {silence_id!r}: it has ended")


def silence(
    ledger: Ledger,
    job: str = "",
    label: str = "",
    *,
    until: datetime | None = None,
    duration: timedelta | None = None,
    by: Actor,
    reason: str,
) -> Silence:
    """Makes no notices of a job, of those with a label, or without either of all, for a time.

    until: without an offset, a time in the job's zone, else in UTC. duration: in its place. Raises
    UnknownJob, InvalidRequest, and Conflict when there are too many.
    """
    target = job or label or "all"
    with ledger.actions.trying(
        Action(by, "silence", target, reason, (job,) if job else ())
    ) as action:
        zone = ledger.spec(job).zone if job else UTC_ZONE
        if job and label:
            raise InvalidRequest("a silence is of a job or of a label, not of both")
        if not reason.strip() or len(reason) > LONGEST_REASON:
            raise InvalidRequest(f"a silence takes a reason of up to {LONGEST_REASON} characters")
        if (until is None) == (duration is None):
            raise InvalidRequest("say until when, or for how long")
        now = ledger.now()
        ends_at = until or plus(now, duration or timedelta()) or datetime.max
        ends_at = to_come("until" if until else "duration", ends_at, zone, now)
        made = Silence(
            id=uuid4().hex[:8],
            job=job,
            label=label,
            begins_at=now,
            ends_at=ends_at,
            by=short(by.name, LONGEST_NAME),
            reason=short(reason, LONGEST_REASON),
        )
        change = Change(target, "until", render_moment(ends_at.replace(microsecond=0)))
        SilenceStore(ledger).begin(made, replace(action, changes=(change,)))
        return made


def unsilence(ledger: Ledger, target: str, *, by: Actor, reason: str = "") -> list[Silence]:
    """Ends a silence by its id, or all those that name this job, label, or ``all``.

    What still fails is notified of. Raises NotFound.
    """
    with ledger.actions.trying(Action(by, "unsilence", target, reason)) as action:
        silences = SilenceStore(ledger).in_force(ledger.now())
        ended = [each for each in silences if target in (each.id, each.target)]
        if not ended:
            raise NotFound(f"unknown silence {target!r}: `supervisor silences` lists all")
        for each in ended:
            about = (each.job,) if each.job else ()
            SilenceStore(ledger).end(each.id, replace(action, target=each.target, jobs=about))
        return ended
