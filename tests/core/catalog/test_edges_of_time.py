"""Times that no clock will show: refused with their line, by `check` and by beat alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.catalog.problems import problems_of

NEW_YORK, BERLIN = "timezone: America/New_York", "timezone: Europe/Berlin"

#: The keys of a job, and at which of its lines the fault is.
JOBS = [
    (['cron: ""'], 4),
    (['rrule: ""'], 4),
    (["every: 1h", "end_at: 9999-12-31T23:59:59", NEW_YORK], 5),
    (["every: 1h", "exclude: [2027-01-01T00:00:00..9999-12-31T23:59:59]", NEW_YORK], 5),
    (["every: 1h", "exclude: [0001-01-01..2020-01-01]", BERLIN], 5),
    (["every: 1h", "start_at: 0001-01-01T00:00:00"], 5),
    (["at: [9999-12-31T23:59:59Z]", "jitter: 10s"], 4),
    (["rrule: FREQ=DAILY", "end_at: 0001-01-01T00:00:00Z", NEW_YORK], 4),
    (["every: 1h", "start_at: 2026-01-01T00:00:00", "end_at: 9999-12-31T23:59:59", NEW_YORK], 5),
]


@pytest.mark.parametrize(("keys", "line"), JOBS)
def test_what_has_no_time_is_refused_at_its_line(
    tmp_path: Path, keys: list[str], line: int
) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text("jobs:\n  j:\n    task: t\n" + "".join(f"    {key}\n" for key in keys))
    assert str(problems_of(tmp_path)[0]).startswith(f"{file}:{line}: job 'j'")
