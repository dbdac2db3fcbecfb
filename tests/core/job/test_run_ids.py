"""The ids of runs."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from supervisor.job.run_ids import tick_id


def test_the_hour_that_comes_twice_has_two_ids_for_each_time() -> None:
    """Python calls both equal, and a cache by the time would give one id to both."""
    once = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    again = once.replace(fold=1)
    assert once == again
    assert tick_id("nightly", once) == "nightly@2026-10-25T00:30:00Z"
    assert tick_id("nightly", again) == "nightly@2026-10-25T01:30:00Z"
