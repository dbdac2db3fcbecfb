"""Silences in the JSON API."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from pydantic import Field

from supervisor.features.notices import silences
from supervisor.ledger.actions import Actor
from supervisor.operate.shapes import Instant, Request, Shape
from supervisor.times import Duration
from supervisor.web.operations import REASON, Operations, operation


class Silence(Shape):
    """For a time no notices are made of a job, of those with a label, or of all and the service."""

    id: str
    job: str = Field(description="Empty for a label, and for all.")
    label: str
    begins_at: Instant
    ends_at: Instant
    by: str
    reason: str


class NewSilence(Request):
    """With `job` or `label`, or neither for all; with `until` or `duration`; with a `reason`."""

    job: str = Field("", description="Notices of this job.")
    label: str = Field("", max_length=500, description="Of those with it: tenant=acme, or tenant.")
    until: datetime | None = Field(
        None, description="Without an offset, a time of the job's zone, else in UTC."
    )
    duration: Duration | None = Field(None, description="How long, in place of until: 90m, 2h.")


class SilenceOperations(Operations):
    @operation("get", "/silences")
    def silences(self) -> list[Silence]:
        """The silences of notices that have not ended, the first to end first."""
        in_force = silences.SilenceStore(self._ledger).in_force(self._ledger.now())
        return [Silence.model_validate(each) for each in in_force]

    @operation("post", "/silences", 201, errors=(404, 409))
    def silence(self, body: NewSilence, by: Actor) -> Silence:
        """Make no notices of a job, of those with a label, or of all, for a time."""
        made = silences.silence(
            self._ledger,
            body.job,
            body.label,
            until=body.until,
            duration=body.duration,
            by=by,
            reason=body.reason,
        )
        return Silence.model_validate(made)

    @operation("delete", "/silences/{silence}", 204, queries=(REASON,))
    def unsilence(self, silence: str, query: Mapping[str, str], by: Actor) -> None:
        """End a silence; what still fails is notified of."""
        silences.unsilence(self._ledger, silence, by=by, reason=query.get("reason", ""))
