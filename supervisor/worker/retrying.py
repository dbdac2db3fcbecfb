"""When a failed attempt is tried again, as Celery's own words for it have it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from celery.exceptions import Retry
from celery.utils.time import maybe_make_aware


def retry_of(error: Any, delay: timedelta) -> Retry:
    return Retry(exc=error, when=delay.total_seconds())  # type: ignore[arg-type]


def until(eta: Any, countdown: Any, default: float) -> timedelta:
    """How long from now; Celery gives the one or the other, and `Retry.when` may be either.

    An instant without an offset is UTC, as Celery reads it in whatever zone app and machine are.
    """
    moment = eta if eta is not None else countdown
    if isinstance(moment, datetime):
        return max(timedelta(), maybe_make_aware(moment) - datetime.now(UTC))
    return timedelta(seconds=max(0.0, float(default if moment is None else moment)))
