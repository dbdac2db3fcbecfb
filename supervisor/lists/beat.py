"""The features that take part in beat, and their steps in the order of a turn."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.beat.turn import BeatContext, Part
from supervisor.features.adoption import step as adoption
from supervisor.features.audit import step as audit
from supervisor.features.following import step as following
from supervisor.features.notices import step as notices
from supervisor.features.outbound import step as outbound
from supervisor.features.pings import step as pings
from supervisor.features.sentry import step as sentry
from supervisor.features.summary import step as summary

PARTS: tuple[Callable[[BeatContext], Part], ...] = (
    adoption.part,
    notices.part,
    following.part,
    pings.part,
    sentry.part,
    outbound.part,
    audit.part,
    summary.part,
)
