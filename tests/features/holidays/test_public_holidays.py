"""Public holidays that `exclude` names: dates of the job, for as long as its service runs."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from supervisor.catalog.schedule_files import load
from supervisor.features.holidays.dates import YEARS_AHEAD, YEARS_BACK, holidays_of, with_dates
from supervisor.job.exclusions import holidays_ending
from supervisor.job.spec import JobSpec
from supervisor.schedule import schedule_of, ticks_between
from tests.core.catalog.problems import problems_of

YEAR = 2026
BERLIN = ZoneInfo("Europe/Berlin")


def excluding(directory: Path, exclude: str, zone: str = "Europe/Berlin") -> Path:
    keys = f"timezone: {zone}, exclude: {exclude}"
    (directory / "jobs.yaml").write_text(f'jobs: {{a: {{task: t, cron: "30 0 * * *", {keys}}}}}\n')
    return directory


def job(directory: Path, exclude: str, year: int = YEAR, zone: str = "Europe/Berlin") -> JobSpec:
    return load(excluding(directory, exclude, zone), year=year).specs["a"]


def problem(directory: Path, exclude: str) -> str:
    (found,) = problems_of(excluding(directory, exclude), year=YEAR)
    return str(found)


def test_holidays_of_a_part_of_a_country_are_no_ticks_there(tmp_path: Path) -> None:
    schedule = schedule_of(job(tmp_path, "[{holidays: DE-BY}, {holidays: NYSE}]"))
    week = (datetime(2026, 1, 4, tzinfo=UTC), datetime(2026, 1, 9, tzinfo=UTC))
    times = ticks_between(schedule, *week, 9)
    # At 00:30 in Berlin; the 6th is Epiphany.
    assert [tick.astimezone(BERLIN).day for tick in times] == [5, 7, 8, 9]
    assert "2026-11-26" in job(tmp_path, "[{holidays: NYSE}]").exclude  # Thanksgiving
    assert "2026-01-06" not in job(tmp_path, "[{holidays: DE-BE}]").exclude


def test_the_zone_of_the_job_decides_which_day_it_is(tmp_path: Path) -> None:
    spec = job(tmp_path, "[{holidays: DE-BY}]", zone="America/New_York")
    day = (datetime(2026, 1, 6, tzinfo=UTC), datetime(2026, 1, 7, 12, tzinfo=UTC))
    assert ticks_between(schedule_of(spec), *day, 9) == [datetime(2026, 1, 7, 5, 30, tzinfo=UTC)]


def test_holidays_are_those_of_last_year_and_of_the_years_ahead(tmp_path: Path) -> None:
    *days, whose = job(tmp_path, "[{holidays: de-by}]").exclude
    assert (days[0], days[-1][:4]) == (f"{YEAR - YEARS_BACK}-01-01", str(YEAR + YEARS_AHEAD))
    assert whose == f"holidays DE-BY until {YEAR + YEARS_AHEAD}"


def test_a_job_that_is_loaded_in_the_next_year_has_holidays_for_one_more(tmp_path: Path) -> None:
    before, after = (job(tmp_path, "[{holidays: DE-BY}]", year) for year in (YEAR, YEAR + 1))
    assert after.when != before.when
    assert not any(text.startswith("2032") for text in before.exclude)
    assert "2032-01-06" in after.exclude
    assert holidays_ending(before.exclude, YEAR + YEARS_AHEAD - 1) == {}
    assert holidays_ending(before.exclude, YEAR + YEARS_AHEAD) == {"DE-BY": YEAR + YEARS_AHEAD}


def test_what_a_loaded_job_says_of_its_holidays_names_them_again() -> None:
    loaded = holidays_of("DE-BY", YEAR)
    dated, faults = with_dates(list(loaded), YEAR + 3)
    spec = JobSpec.model_validate({"name": "a", "task": "t", "every": 60, "exclude": dated})
    assert not faults
    assert spec.exclude[-1] == f"holidays DE-BY until {YEAR + 3 + YEARS_AHEAD}"
    assert "2034-01-06" in spec.exclude


@pytest.mark.parametrize(
    ("exclude", "expected"),
    [
        (
            "[{holidays: DE-BX}]",
            "DE has no part 'BX' with holidays of its own (known are BB, BE, BW, BY, HB, HE, HH,",
        ),
        ("[{holidays: LI-X}]", "LI has no part 'X' with holidays of its own (write LI)"),
        (
            "[{holidays: NYSEX}]",
            "'NYSEX' is no country and no market whose holidays are known (did you mean 'NYSE'?)",
        ),
        (
            "[{holidays: Germany}]",
            "'Germany' is no country and no market whose holidays are known (such as {holidays: DE}"
            ", {holidays: DE-BY} or {holidays: NYSE})",
        ),
        ("[{holidays: BV}]", "'BV': no holidays are known of 2026 (list the dates)"),
        ("[{holiday: DE}]", "{'holiday': 'DE'} does not name holidays (did you mean 'holidays"),
        ("[{holidays: [DE]}]", "'holidays': ['DE'] is not a name"),
        ("[holidays XX until 2030]", "'XX' is no country and no market whose holidays are known"),
    ],
)
def test_what_names_no_holidays_is_refused_with_a_hint(
    tmp_path: Path, exclude: str, expected: str
) -> None:
    assert f"'exclude': {expected}" in problem(tmp_path, exclude)


def test_norway_is_a_country(tmp_path: Path) -> None:
    assert "2026-05-17" in job(tmp_path, "[{holidays: NO}]").exclude


def test_a_refused_holiday_file_is_reported_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text(
        "jobs:\n  a:\n    task: t\n    every: 1d\n    exclude:\n"
        "      - 2026-12-24\n      - holiday: DE\n      - holidays: DE-BX\n"
    )
    assert [problem.line for problem in problems_of(tmp_path)] == [7, 8]


def test_more_days_than_beat_should_carry_are_refused(tmp_path: Path) -> None:
    days = (f"{year}-{month:02}-01" for year in range(2026, 2126) for month in range(1, 13))
    assert "1,200 dates and ranges; 1,000 are allowed" in problem(tmp_path, f"[{', '.join(days)}]")


def test_without_the_library_it_is_said_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holidays_of.cache_clear()
    monkeypatch.setitem(sys.modules, "holidays", None)
    assert problem(tmp_path, "[{holidays: DE}]").endswith(
        "'DE': the library 'holidays' is not installed (pip install 'celery-beat-supervisor"
        "[holidays]' where files and jobs are loaded)"
    )
