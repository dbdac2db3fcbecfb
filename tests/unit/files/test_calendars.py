"""Calendar files that `exclude` names: what they say becomes part of the job."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from supervisor.files.calendars import FIRST, LAST
from supervisor.files.schedule_files import load
from supervisor.job.exclusions import parse_all
from supervisor.job.spec import JobSpec
from tests.unit.files.problems import problems_of


def event(*lines: str) -> str:
    return "\r\n".join(["BEGIN:VEVENT", f"UID:{abs(hash(lines))}", *lines, "END:VEVENT", ""])


def calendar(*events: str) -> str:
    return f"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:x\r\n{''.join(events)}END:VCALENDAR\r\n"


def excluding(schedules: Path, exclude: str) -> Path:
    text = f'jobs:\n  a:\n    task: t\n    cron: "0 2 * * *"\n    exclude: {exclude}\n'
    (schedules / "jobs.yaml").write_text(text)
    return schedules


def job(schedules: Path, exclude: str) -> JobSpec:
    return load(excluding(schedules, exclude)).specs["a"]


def problems(schedules: Path, exclude: str) -> list[str]:
    found = problems_of(excluding(schedules, exclude))
    return [str(problem).removeprefix(f"{schedules}/") for problem in found]


def test_a_file_lists_dates_and_ranges(schedules: Path) -> None:
    text = "# ours\n2026-12-24..2026-12-26 # Christmas\n\n2026-12-27\nSUN\n"
    (schedules / "holidays.txt").write_text(text)
    spec = job(schedules, "[2026-05-01, {file: holidays.txt}]")
    assert spec.exclude == ("SUN", "2026-05-01", "2026-12-24..2026-12-27")


def test_an_edit_of_a_calendar_is_an_edit_of_its_jobs(schedules: Path) -> None:
    file = schedules / "holidays.txt"
    file.write_text("2026-12-24\n2026-12-25\n")
    before, digest = job(schedules, "[{file: holidays.txt}]"), load(schedules).digest
    file.write_text("# the same\n2026-12-24..2026-12-25\n")
    assert (load(schedules).specs["a"], load(schedules).digest) == (before, digest)
    file.write_text("2026-12-24\n")
    assert load(schedules).specs["a"].when != before.when
    assert load(schedules).digest != digest


def test_events_exclude_their_days_or_their_hours(schedules: Path) -> None:
    (schedules / "work.ics").write_text(
        calendar(
            event("DTSTART;VALUE=DATE:20261224", "DTEND;VALUE=DATE:20261227"),
            event("DTSTART;VALUE=DATE:20260501"),
            event("DTSTART;VALUE=DATE:20260817", "DTEND;VALUE=DATE:20260817"),
            event("DTSTART;TZID=Europe/Berlin:20260601T200000", "DURATION:PT2H"),
            event("DTSTART:20260602T200000", "DTEND:20260602T210000"),
            event("DTSTART;VALUE=DATE:20260707", "STATUS:CANCELLED"),
        )
    )
    assert job(schedules, "[{ical: work.ics}]").exclude == (
        "2026-05-01",
        "2026-08-17",
        "2026-12-24..2026-12-26",
        "2026-06-01T18:00:00Z..2026-06-01T20:00:00Z",
        "2026-06-02T20:00:00..2026-06-02T21:00:00",
    )


def test_events_that_recur_are_followed_for_a_fixed_stretch_of_years(schedules: Path) -> None:
    (schedules / "h.ics").write_text(
        calendar(
            event("DTSTART;VALUE=DATE:20001003", "RRULE:FREQ=YEARLY", "EXDATE;VALUE=DATE:20271003")
        )
    )
    days = job(schedules, "[{ical: h.ics}]").exclude
    assert (days[0], days[-1], len(days)) == ("2025-10-03", "2049-10-03", 24)
    assert "2027-10-03" not in days
    assert (FIRST.year, LAST.year) == (2025, 2050)


@pytest.mark.parametrize(
    ("rule", "days"),
    [
        ("FREQ=MONTHLY;BYDAY=TU,1TU,1FR", [2, 6, 13, 20, 27]),
        ("FREQ=MONTHLY;BYDAY=MO,1SU,-1SA", [4, 5, 12, 19, 26, 31]),
        ("FREQ=YEARLY;BYWEEKNO=3", [15]),
    ],
)
def test_rules_of_events_mean_what_rfc_5545_says(
    schedules: Path, rule: str, days: list[int]
) -> None:
    first = days[0]
    text = calendar(event(f"DTSTART;VALUE=DATE:202601{first:02}", f"RRULE:{rule};UNTIL=20260131"))
    (schedules / "h.ics").write_text(text)
    found = job(schedules, "[{ical: h.ics}]").exclude
    january = [date(2026, 1, day) for day in days]
    assert found == parse_all(map(str, january)).texts


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.txt", "2026-12-24\nXmas\n", "x.txt:2: 'Xmas' is not a date, a range or a weekday"),
        ("x.txt", "\n2026-02-30\n", "x.txt:2: '2026-02-30': 2026-02-30 is on no calendar"),
        ("x.ics", "hello", "x.ics:1: is not an iCalendar file (it begins with BEGIN:VCALENDAR)"),
        ("x.ics", "", "x.ics:1: is not an iCalendar file"),
        (
            "x.ics",
            calendar(event("DTSTART;VALUE=DATE:20260101"), event("DTSTART:soon")),
            "x.ics:8: DTSTART:",
        ),
        ("x.ics", calendar(event("SUMMARY:x")), "x.ics:4: an event without DTSTART"),
        (
            "x.ics",
            calendar(event("DTSTART;VALUE=DATE:20260102", "DTEND;VALUE=DATE:20260101")),
            "x.ics:4: an event that ends before it begins",
        ),
        (
            "x.ics",
            calendar(event("DTSTART:20260101T000000Z", "RRULE:FREQ=SECONDLY")),
            "x.ics:4: an event with FREQ=SECONDLY; DAILY is the most often",
        ),
        (
            "x.ics",
            calendar(event("DTSTART:20260101T000000Z", "RRULE:FREQ=YEARLY;INTERVAL=0")),
            "x.ics:4: an event with an INTERVAL below 1",
        ),
        (
            "x.ics",
            calendar(
                *(
                    event(f"DTSTART;VALUE=DATE:200001{n:02}", "RRULE:FREQ=DAILY")
                    for n in range(1, 4)
                )
            ),
            "x.ics:1: more than 10,000 days until 2050-01-01",
        ),
    ],
)
def test_what_is_wrong_in_a_calendar_is_told_with_its_line(
    schedules: Path, name: str, content: str, expected: str
) -> None:
    (schedules / name).write_text(content)
    kind = "ical" if name.endswith(".ics") else "file"
    (problem,) = problems(schedules, f"[{{{kind}: {name}}}]")
    assert problem.startswith(expected)


def test_what_is_wrong_with_the_name_of_a_calendar_is_told_at_its_line(schedules: Path) -> None:
    outside = schedules.parent / "outside.txt"
    outside.write_text("2026-12-24")
    (schedules / "link.txt").symlink_to(outside)
    (schedules / "large.txt").write_bytes(b"#" * (1024 * 1024 + 1))
    found = problems(
        schedules,
        "[{file: no.txt}, {file: ../outside.txt}, {file: link.txt}, {fil: x}, {file: 5}, "
        "{file: large.txt}]",
    )
    assert found == [
        "jobs.yaml:5: job 'a': 'exclude': 'no.txt' cannot be read: No such file or directory",
        f"jobs.yaml:5: job 'a': 'exclude': '../outside.txt' links out of its directory, to "
        f"{outside} (put the file itself here)",
        f"jobs.yaml:5: job 'a': 'exclude': 'link.txt' links out of its directory, to {outside} "
        "(put the file itself here)",
        "jobs.yaml:5: job 'a': 'exclude': {'fil': 'x'} does not name one calendar "
        "(did you mean 'file'?)",
        "jobs.yaml:5: job 'a': 'exclude': 'file': 5 is not a name",
        "large.txt:1: is larger than 1 MiB (split it)",
    ]


def test_more_days_than_beat_should_carry_are_refused(schedules: Path) -> None:
    days = (
        f"{year}-{month:02}-{day:02}"
        for year in range(2026, 2032)
        for month in range(1, 13)
        for day in range(1, 29, 2)
    )
    text = "\n".join(days)
    (schedules / "x.txt").write_text(text)
    (problem,) = problems(schedules, "[{file: x.txt}]")
    assert problem == "x.txt:1: 1,008 dates and ranges; 1,000 are allowed"
    (schedules / "x.txt").write_text("")
    (problem,) = problems(schedules, f"[{', '.join(text.split())}]".replace(" ", "\n      "))
    assert problem == ("jobs.yaml:5: job 'a': 'exclude': 1,008 dates and ranges; 1,000 are allowed")
