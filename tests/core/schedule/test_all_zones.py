"""Every zone and every clock change of forty years: what the rules promise holds in all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path
from zoneinfo import TZPATH, ZoneInfo

import pytest
from cronsim import CronSim

from supervisor.job.fields import zone_names
from supervisor.job.spec import JobSpec
from supervisor.schedule import Schedule, missed_before, schedule_of, ticks_between

FIRST, LAST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
STEP = timedelta(days=5)

Change = tuple[str, datetime, timedelta, timedelta]
"""Zone, the first instant of the new offset, the old and the new offset."""


def offset(at: datetime, zone: ZoneInfo) -> timedelta:
    found = at.astimezone(zone).utcoffset()
    assert found is not None
    return found


def changes_of(zone: ZoneInfo) -> Iterator[tuple[datetime, timedelta, timedelta]]:
    """By looking every few days, then closer: a change back within days would be overlooked."""
    at, old = FIRST, offset(FIRST, zone)
    while at < LAST:
        later = at + STEP
        if (new := offset(later, zone)) != old:
            low, high = at, later
            while high - low > timedelta(seconds=1):
                middle = low + timedelta(seconds=(high - low).total_seconds() // 2)
                low, high = (middle, high) if offset(middle, zone) == old else (low, middle)
            yield high, old, new
            old = new
        at = later


def data_of(name: str) -> bytes:
    """Of two names of one zone the same."""
    files = (Path(directory, name) for directory in TZPATH)
    return next((file.read_bytes() for file in files if file.is_file()), name.encode())


@cache
def all_changes() -> Sequence[Change]:
    """Each once: many zones are other names of the same."""
    seen: set[tuple[datetime, timedelta, timedelta]] = set()
    changes: list[Change] = []
    zones = {data_of(name): name for name in sorted(zone_names(), reverse=True)}
    for name in sorted(zones.values()):
        for change in changes_of(ZoneInfo(name)):
            if change not in seen:
                seen.add(change)
                changes.append((name, *change))
    return changes


@cache
def cron(expression: str, timezone: str) -> Schedule:
    return schedule_of(JobSpec(name="job", task="t", cron=expression, timezone=timezone))


@cache
def rule(text: str, timezone: str) -> Schedule:
    return schedule_of(JobSpec(name="job", task="t", rrule=text, timezone=timezone))


def around(schedule: Schedule, at: datetime, days: int = 2) -> list[datetime]:
    return ticks_between(schedule, at - days * DAY, at + days * DAY, 100_000)


def times_touched(change: Change) -> list[datetime]:
    """What the clock shows right before and after the change, and half-way between."""
    _, at, old, new = change
    before, after = ((at + offset).replace(tzinfo=None) for offset in (old, new))
    middle = min(before, after) + abs(after - before) // 2
    return [time.replace(second=0) for time in (before, after, middle)]


def test_there_are_thousands_of_clock_changes() -> None:
    assert len(all_changes()) > 2000
    assert {"Europe/Berlin", "Australia/Lord_Howe"} <= zone_names()


def test_ticks_are_strictly_later_and_counted_right_in_every_zone() -> None:
    for zone, at, _, _ in all_changes()[::6]:
        for schedule in (cron("*/30 * * * *", zone), cron("*/20 0-3,23 * * *", zone)):
            ticks = around(schedule, at, 1)
            assert all(earlier < later for earlier, later in pairwise(ticks)), (zone, at)
            assert missed_before(schedule, at - DAY, at + DAY, 1) == (len(ticks), ticks[-1:])


def test_a_daily_job_at_a_fixed_time_runs_once_on_each_day_that_a_zone_has() -> None:
    for change in all_changes():
        name, at, old, new = change
        zone = ZoneInfo(name)
        for wall in times_touched(change):
            expression = f"{wall.minute} {wall.hour} * * *"
            ticks = around(cron(expression, name), at, 3)
            days = Counter(day_meant(tick, wall, zone) for tick in ticks)
            expected = [at.astimezone(zone).date() + number * DAY for number in (-1, 0, 1)]
            left_out = new - old > timedelta(hours=3)
            assert {days[day] for day in expected} == ({0, 1} if left_out else {1}), change
            assert max(days.values()) == 1, (change, expression)


def day_meant(tick: datetime, wall: datetime, zone: ZoneInfo) -> date:
    """The day whose time a tick is: one made up for after midnight is of the day before."""
    shown = tick.astimezone(zone).replace(tzinfo=None)
    late = (shown.hour, shown.minute) < (wall.hour, wall.minute)
    return (shown - DAY).date() if late and wall.hour >= 20 > shown.hour else shown.date()


HOURS = ",".join(map(str, range(24)))


def test_a_rule_at_fixed_times_runs_when_the_same_cron_expression_does() -> None:
    for change in all_changes()[::12]:
        name, at, _, _ = change
        for wall in times_touched(change)[:1]:
            by_rule = f"FREQ=DAILY;BYHOUR={wall.hour};BYMINUTE={wall.minute}"
            by_cron = f"{wall.minute} {wall.hour} * * *"
            assert around(rule(by_rule, name), at) == around(cron(by_cron, name), at)
        hourly = around(rule(f"FREQ=DAILY;BYHOUR={HOURS};BYMINUTE=0,30", name), at)
        assert hourly == around(cron("0,30 * * * *", name), at)


def test_half_hours_keep_their_distance_where_clocks_change_by_half_hours() -> None:
    half = timedelta(minutes=30)
    for name, at, old, new in all_changes()[::2]:
        if (new - old) % half or abs(new - old) > timedelta(hours=3) or at.minute % 30:
            continue
        ticks = around(cron("*/30 * * * *", name), at, 1)
        assert {later - earlier for earlier, later in pairwise(ticks)} == {half}, (name, at)


#: Both fields begin without a star: there Debian's rule is ours.
SAME_AS_DEBIAN = ["30 2 * * *", "15,45 0-3 * * *", "1 0 * * MON-FRI", "0 0,1,2,23 1-31 * *"]


@pytest.mark.parametrize("expression", SAME_AS_DEBIAN)
def test_where_the_rules_agree_so_do_the_times_of_cronsim(expression: str) -> None:
    for name, at, old, new in all_changes()[::6]:
        if new - old > timedelta(hours=3):
            continue
        ours = around(cron(expression, name), at)
        debian = CronSim(expression, (at - 2 * DAY).astimezone(ZoneInfo(name)))
        theirs = dict.fromkeys(next(debian).astimezone(UTC) for _ in range(len(ours) + 10))
        expected = [tick for tick in theirs if at - 2 * DAY < tick <= at + 2 * DAY]
        assert ours == expected, (name, at)


def test_the_differences_from_debian_are_those_on_the_page() -> None:
    zone = ZoneInfo("America/New_York")

    def debian(expression: str, day: str) -> list[str]:
        start = datetime.fromisoformat(day).replace(tzinfo=zone)
        found = CronSim(expression, start - timedelta(seconds=1))
        ticks = (next(found) for _ in range(50))
        return [f"{t:%H:%M}" + "b" * t.fold for t in ticks if t.date() == start.date()]

    def ours(expression: str, day: str) -> list[str]:
        start = datetime.fromisoformat(day).replace(tzinfo=zone).astimezone(UTC)
        ticks = ticks_between(
            cron(expression, zone.key), start - timedelta(seconds=1), start + 2 * DAY, 99
        )
        local = (tick.astimezone(zone) for tick in ticks)
        return [f"{t:%H:%M}" + "b" * t.fold for t in local if str(t.date()) == day]

    spring, autumn = "2026-03-08", "2026-11-01"
    assert (debian("*/20 2 * * *", spring), ours("*/20 2 * * *", spring)) == ([], ["03:00"])
    assert debian("0 */2 * * *", spring)[:2] == ["00:00", "04:00"]
    assert ours("0 */2 * * *", spring)[:3] == ["00:00", "03:00", "04:00"]
    assert len(debian("*/20 1 * * *", autumn)) == 6
    assert ours("*/20 1 * * *", autumn) == ["01:00", "01:20", "01:40"]
    assert "01:00b" not in debian("0 0-23 * * *", autumn)
    assert "01:00b" in ours("0 0-23 * * *", autumn)
    samoa = ZoneInfo("Pacific/Apia")
    before = datetime(2011, 12, 29, 23, tzinfo=samoa)
    theirs = next(CronSim("0 12 * * *", before))
    mine = cron("0 12 * * *", samoa.key).next_after(before.astimezone(UTC))
    assert f"{theirs:%d %H:%M}" == "31 00:00"
    assert mine and f"{mine.astimezone(samoa):%d %H:%M}" == "31 12:00"
