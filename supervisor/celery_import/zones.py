"""The IANA name of a tzinfo."""

from __future__ import annotations

from datetime import UTC, timedelta, timezone, tzinfo

from celery import Celery

from supervisor.errors import NotTranslatable
from supervisor.job.fields import zone_names

HOUR = timedelta(hours=1)


def zone_of(app: Celery) -> str:
    """The zone in which the app's beat reads a crontab. Raises NotTranslatable."""
    try:
        return zone_name(app.timezone)
    except KeyError as error:  # zoneinfo's "not found" is one
        raise NotTranslatable(f"the app's timezone is unknown here: {error}") from None


def zone_remark(app: Celery) -> str:
    """For the head of the file: whose clock the times are of."""
    try:
        zone = zone_of(app)
    except NotTranslatable as error:
        return f"Times of the clock are not translated: {error}."
    if not app.conf.timezone and not app.conf.enable_utc:
        return f"Times are read in {zone}, the zone of this machine: the app sets no `timezone`."
    return f"Times are read in {zone}, the app's zone."


def zone_name(zone: tzinfo | None) -> str:
    """A fixed offset of whole hours has a name too: +02:00 is Etc/GMT-2. Raises NotTranslatable."""
    if zone is None or zone == UTC:
        return "UTC"
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if name in zone_names():
        return str(name)
    if not isinstance(zone, timezone):
        raise NotTranslatable(
            f"it follows a time zone without a name ({zone}); set `timezone` in the app"
        )
    offset = zone.utcoffset(None)
    hours, rest = divmod(offset, HOUR)
    fixed = f"Etc/GMT{-hours:+d}"
    if rest or fixed not in zone_names():
        raise NotTranslatable(f"no time zone is always at {zone}")
    return "UTC" if hours == 0 else fixed


def is_fixed(zone: tzinfo | None) -> bool:
    """Whether an hour on the clock is always an hour."""
    return zone is None or isinstance(zone, timezone) or zone_name(zone) == "UTC"
