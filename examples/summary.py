"""daily-summary: what a nightly job looks like. It works on a day, not on "now"."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from celery import shared_task

from examples.storage import database, directory, write_atomically
from examples.witness import witness
from supervisor import current_run


@shared_task(name="examples.daily_summary")
def daily_summary(timezone: str = "UTC") -> dict[str, Any]:
    """Mean and maximum of the samples of the day before the run's nominal time.

    A run that is late, tried again or caught up after an outage still summarises its own day.
    """
    with witness("daily-summary"):
        run = current_run()
        nominal_at = run.nominal_at if run else datetime.now(UTC)
        zone = ZoneInfo(timezone)
        day = nominal_at.astimezone(zone).date() - timedelta(days=1)
        summary = summarise(day, zone)
        text = json.dumps(summary, indent=2) + "\n"
        write_atomically(directory() / f"summary-{day}.json", text.encode())
        return summary


def summarise(day: date, zone: ZoneInfo) -> dict[str, Any]:
    """The day is the zone's: 23 hours long in spring, 25 in autumn."""
    midnights = [
        datetime.combine(d, time(), tzinfo=zone).timestamp() for d in (day, day + timedelta(days=1))
    ]
    with database() as db:
        row = db.execute(
            "SELECT count(*), avg(load), max(load), avg(cpu), max(cpu), avg(memory), max(memory)"
            " FROM samples WHERE sampled_at >= ? AND sampled_at < ?",
            midnights,
        ).fetchone()
    measures = {
        name: {"mean": mean, "max": highest}
        for name, mean, highest in zip(("load", "cpu", "memory"), row[1::2], row[2::2], strict=True)
    }
    return {"day": day.isoformat(), "samples": row[0], **measures}
