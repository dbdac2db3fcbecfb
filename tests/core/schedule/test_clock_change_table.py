"""Spring and autumn in three zones, half an hour by half an hour: what runs when.

`pytest -s` prints the table that this file holds.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from supervisor.job.spec import JobSpec
from supervisor.schedule import schedule_of

#: Name of a column -> the job whose ticks it marks.
JOBS = {
    "hourly": {"cron": "0 * * * *"},
    "1h": {"every": "1h"},
    "01:30": {"cron": "30 1 * * *"},
    "02:00": {"cron": "0 2 * * *"},
    "02:30": {"rrule": "FREQ=DAILY;BYHOUR=2;BYMINUTE=30"},
    "2h": {"cron": "0 */2 * * *"},
    "skip": {"cron": "30 2 * * *", "dst": {"gap": "skip"}},
    "second": {"cron": "30 1,2 * * *", "dst": {"fold": "second"}},
    "both": {"cron": "30 1,2 * * *", "dst": {"fold": "both"}},
}

CHANGES = [
    ("America/New_York", "spring", "2026-03-08T06:00Z"),
    ("America/New_York", "autumn", "2026-11-01T04:30Z"),
    ("Europe/Berlin", "spring", "2026-03-29T00:00Z"),
    ("Europe/Berlin", "autumn", "2026-10-24T23:30Z"),
    ("Australia/Lord_Howe", "spring", "2026-10-03T14:30Z"),
    ("Australia/Lord_Howe", "autumn", "2026-04-04T14:00Z"),
]

TABLE = """
America/New_York, spring
UTC    wall    hourly     1h  01:30  02:00  02:30     2h   skip second   both
06:00  01:00        x      x      .      .      .      .      .      .      .
06:30  01:30        .      .      x      .      .      .      .      x      x
07:00  03:00        x      x      .      x      x      x      .      x      x
07:30  03:30        .      .      .      .      .      .      .      .      .
08:00  04:00        x      x      .      .      .      x      .      .      .
08:30  04:30        .      .      .      .      .      .      .      .      .
09:00  05:00        x      x      .      .      .      .      .      .      .
09:30  05:30        .      .      .      .      .      .      .      .      .
America/New_York, autumn
UTC    wall    hourly     1h  01:30  02:00  02:30     2h   skip second   both
04:30  00:30        .      .      .      .      .      .      .      .      .
05:00  01:00        x      x      .      .      .      .      .      .      .
05:30  01:30        .      .      x      .      .      .      .      .      x
06:00  01:00b       x      x      .      .      .      .      .      .      .
06:30  01:30b       .      .      .      .      .      .      .      x      x
07:00  02:00        x      x      .      x      .      x      .      .      .
07:30  02:30        .      .      .      .      x      .      x      x      x
08:00  03:00        x      x      .      .      .      .      .      .      .
Europe/Berlin, spring
UTC    wall    hourly     1h  01:30  02:00  02:30     2h   skip second   both
00:00  01:00        x      x      .      .      .      .      .      .      .
00:30  01:30        .      .      x      .      .      .      .      x      x
01:00  03:00        x      x      .      x      x      x      .      x      x
01:30  03:30        .      .      .      .      .      .      .      .      .
02:00  04:00        x      x      .      .      .      x      .      .      .
02:30  04:30        .      .      .      .      .      .      .      .      .
03:00  05:00        x      x      .      .      .      .      .      .      .
03:30  05:30        .      .      .      .      .      .      .      .      .
Europe/Berlin, autumn
UTC    wall    hourly     1h  01:30  02:00  02:30     2h   skip second   both
23:30  01:30        .      .      x      .      .      .      .      x      x
00:00  02:00        x      x      .      x      .      x      .      .      .
00:30  02:30        .      .      .      .      x      .      x      .      x
01:00  02:00b       x      x      .      .      .      .      .      .      .
01:30  02:30b       .      .      .      .      .      .      .      x      x
02:00  03:00        x      x      .      .      .      .      .      .      .
02:30  03:30        .      .      .      .      .      .      .      .      .
03:00  04:00        x      x      .      .      .      x      .      .      .
Australia/Lord_Howe, spring
UTC    wall    hourly     1h  01:30  02:00  02:30     2h   skip second   both
14:30  01:00        x      .      .      .      .      .      .      .      .
15:00  01:30        .      x      x      .      .      .      .      x      x
15:30  02:30        .      .      .      x      x      x      x      x      x
16:00  03:00        x      x      .      .      .      .      .      .      .
16:30  03:30        .      .      .      .      .      .      .      .      .
17:00  04:00        x      x      .      .      .      x      .      .      .
17:30  04:30        .      .      .      .      .      .      .      .      .
18:00  05:00        x      x      .      .      .      .      .      .      .
Australia/Lord_Howe, autumn
UTC    wall    hourly     1h  01:30  02:00  02:30     2h   skip second   both
14:00  01:00        x      x      .      .      .      .      .      .      .
14:30  01:30        .      .      x      .      .      .      .      .      x
15:00  01:30b       .      x      .      .      .      .      .      x      x
15:30  02:00        x      .      .      x      .      x      .      .      .
16:00  02:30        .      x      .      .      x      .      x      x      x
16:30  03:00        x      .      .      .      .      .      .      .      .
17:00  03:30        .      x      .      .      .      .      .      .      .
17:30  04:00        x      .      .      .      .      x      .      .      .
"""


def table() -> str:
    lines = [""]
    for name, season, start in CHANGES:
        zone, first = ZoneInfo(name), datetime.fromisoformat(start)
        lines.append(f"{name}, {season}")
        lines.append("UTC    wall    " + " ".join(f"{job:>6}" for job in JOBS))
        for number in range(8):
            at = first + number * timedelta(minutes=30)
            wall = at.astimezone(zone)
            marks = " ".join(f"{'x' if runs(keys, name, at) else '.':>6}" for keys in JOBS.values())
            lines.append(f"{at:%H:%M}  {wall:%H:%M}{'b' * wall.fold or ' '}  {marks}")
    return "\n".join(lines) + "\n"


def runs(keys: dict[str, object], timezone: str, at: datetime) -> bool:
    values = {"name": "job", "task": "t", "timezone": timezone, **keys}
    schedule = schedule_of(JobSpec.model_validate(values))
    return schedule.next_after(at.astimezone(UTC) - timedelta(seconds=1)) == at


def test_spring_and_autumn_in_three_zones_hour_by_hour() -> None:
    print(table())  # noqa: T201 - the purpose of the file
    assert table() == TABLE
