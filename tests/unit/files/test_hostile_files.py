"""Schedule and calendar files of somebody who means harm: refused soon, in little memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from supervisor.cli import main
from supervisor.errors import ScheduleFilesInvalid
from supervisor.files import calendars
from supervisor.files.schedule_files import MOST_PROBLEMS, load
from supervisor.process import Limits
from tests.acceptance import warm
from tests.unit.files.problems import problems_of

MIB = 1024 * 1024
JOB = "jobs:\n  j:\n    task: t\n    every: 1h\n"

#: In a process of its own, whose memory tells what the file took.
CHECK = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
from supervisor.cli import main
main(["check", sys.argv[1]])
"""


def each(line: str, number: int) -> str:
    return "".join(line.format(i) for i in range(number))


FILES = {
    "alias bomb": ("a: &a [x]\n" + each("b{0}: &b{0} [*a, *a, *a, *a]\n", 20_000), "anchor &a"),
    "deep nesting": ("[" * (MIB - 1), "nested deeper than 20"),
    "unknown keys": (JOB + each("    k{}: 1\n", 70_000), "unknown key 'k0'"),
    "keys given twice": ("jobs: {" + "a: 1," * 150_000 + "}", "given twice"),
    "wrong zones": (
        "jobs:\n" + each("  j{0}: {{task: t, every: 1h, timezone: Europe/Berlim{0}}}\n", 9_000),
        "unknown time zone",
    ),
    "too many jobs": (
        "jobs: {" + each("j{}: {{}},", 70_000) + "}",
        "give either 'task' or 'steps'",
    ),
    "wrong steps": (
        f"jobs:\n  j:\n    every: 1h\n    steps: [{'{task: t, prio: 1},' * 10_000}]",
        "unknown key 'prio'",
    ),
    "huge arguments": (JOB + f"    args: [{'1,' * 400_000}]\n", "16,384 are allowed"),
    "half references": (JOB + f"    args: ['{'${' * 400_000}']\n", "not a reference"),
    "many others followed": (
        f"jobs:\n  j: {{task: t, after: [{each('j{},', 120_000)}]}}\n",
        "there is no job 'j0'",
    ),
    "unknown others followed": (
        f"jobs:\n  j: {{task: t, after: [{each('joob-{},', 900)}]}}\n"
        + each("  job-{}: {{task: t}}\n", 9_000),
        "there is no job 'joob-0'",
    ),
    "rules counted for ever": (
        "defaults: {start_at: 2026-01-01T00:00:00}\njobs:\n"
        + each("  j{0}: {{task: t, rrule: FREQ=WEEKLY;INTERVAL=900{0};COUNT=100000}}\n", 20)
        + "  k:\n",
        "job 'k': is not a mapping",
    ),
    "long zone": (JOB + f"    timezone: {'x' * 900_000}\n", "unknown time zone"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_refused_with_few_lines_in_a_gigabyte_and_half_a_minute(
    tmp_path: Path, name: str
) -> None:
    text, expected = FILES[name]
    file = tmp_path / "jobs.yaml"
    file.write_text(text)
    done = warm.run(["-c", CHECK, str(file)], tmp_path, os.environ)
    assert (done.returncode, done.stderr) == (1, "")
    assert expected in done.stdout
    assert len(done.stdout.splitlines()) <= MOST_PROBLEMS + 1
    assert len(done.stdout) < MIB


EVENT = "BEGIN:VEVENT\nUID:{}\nDTSTART:{}T000000Z\nDTEND:20260101T010000Z\n{}\nEND:VEVENT\n"
ALL = ",".join(map(str, range(60)))

CALENDARS = {
    "each second": (
        EVENT.format(1, 20260101, f"RRULE:FREQ=DAILY;BYMINUTE={ALL};BYSECOND={ALL}"),
        "more often than 1,000 times a day",
    ),
    "many each day": (
        "".join(EVENT.format(i, 20260101, "RRULE:FREQ=DAILY") for i in range(300)),
        "more than 10,000 days",
    ),
    "since ever": (EVENT.format(1, 10101, "RRULE:FREQ=DAILY"), "DTSTART: "),
    "since long": (EVENT.format(1, "19010101", "RRULE:FREQ=DAILY"), "from before 1970"),
    "number too large": (
        EVENT.format(1, 20260101, f"RRULE:FREQ=DAILY;INTERVAL={'9' * 30}"),
        "RRULE: ",
    ),
    "nested": ("BEGIN:VEVENT\n" * 50_000, "is not an iCalendar file"),
}


@pytest.mark.parametrize("name", CALENDARS)
def test_a_calendar_is_refused_too(tmp_path: Path, name: str) -> None:
    events, expected = CALENDARS[name]
    text = f"BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:x\n{events}END:VCALENDAR\n"
    (tmp_path / "c.ics").write_text(text)
    (tmp_path / "jobs.yaml").write_text(JOB + "    exclude: [{ical: c.ics}]\n")
    with pytest.raises(ScheduleFilesInvalid, match=expected):
        load(tmp_path)


NEVER = EVENT.format("{}", 20260101, "RRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=31")
OBSERVANCE = (
    "BEGIN:STANDARD\nDTSTART:19700101T000000\nTZOFFSETFROM:+0{}00\nTZOFFSETTO:+0200\n"
    f"RRULE:FREQ=DAILY;BYHOUR={','.join(map(str, range(24)))};BYMINUTE={ALL}\nEND:STANDARD\n"
)

ENDLESS = {
    "days that never come": each(NEVER, 300),
    "a zone that changes each minute": "BEGIN:VTIMEZONE\nTZID:X\n"
    + "".join(OBSERVANCE.format(i) for i in range(9))
    + "END:VTIMEZONE\n"
    + EVENT.format(1, 20260101, "").replace("DTSTART:", "DTSTART;TZID=X:"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_all_calendars_of_a_load_share_one_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(calendars, "LIMITS", Limits(cpu_seconds=1, memory=128 << 20))
    for number in (1, 2):
        text = f"BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:x\n{ENDLESS[name]}END:VCALENDAR\n"
        (tmp_path / f"c{number}.ics").write_text(text)
    text = JOB + "    exclude: [{ical: c1.ics}, {ical: c2.ics}]\n"
    (tmp_path / "jobs.yaml").write_text(text)
    began = os.times()
    first, second = problems_of(tmp_path)
    ended = os.times()
    assert "c1.ics" in first.file and "takes more than" in first.what and first.hint
    assert first.line > 1
    assert "c2.ics" in second.file and "is not read: c1.ics used up" in second.what
    assert ended.children_user - began.children_user < 3


def test_the_number_of_calendars_is_bounded(tmp_path: Path) -> None:
    names = [f"c{number}.txt" for number in range(calendars.MOST_FILES + 1)]
    for name in names:
        (tmp_path / name).write_text("SAT\n")
    items = "\n      ".join(f"- file: {name}" for name in names)
    (tmp_path / "jobs.yaml").write_text(JOB + f"    exclude:\n      {items}\n")
    [problem] = problems_of(tmp_path)
    assert problem.line == 5 + len(names)
    assert "more than 100 calendar files" in problem.what


OUTSIDE = ["../outside.txt", "/etc/hostname", "link.txt", "./../outside.txt", "loop", "/dev/zero"]


@pytest.mark.parametrize("name", [*OUTSIDE, "a\\0b"])
@pytest.mark.parametrize("kind", ["file", "ical"])
def test_no_calendar_is_read_from_outside_of_the_directory(
    tmp_path: Path, schedules: Path, kind: str, name: str
) -> None:
    (tmp_path / "outside.txt").write_text("a word of the outside\n")
    (schedules / "link.txt").symlink_to(tmp_path / "outside.txt")
    (schedules / "loop").symlink_to("loop")
    (schedules / "jobs.yaml").write_text(JOB + f'    exclude: [{{{kind}: "{name}"}}]\n')
    [problem] = problems_of(schedules)
    assert "links out of" in problem.what or "cannot be read" in problem.what
    assert "a word of the outside" not in str(problem)


@pytest.mark.parametrize(
    "path", ["/dev/zero", "/proc/self/mem", "/dev/stdin", "/", "nowhere\n", "x" * 300]
)
def test_a_path_that_is_no_schedule_file_is_told_on_one_line(path: str) -> None:
    done = CliRunner().invoke(main, ["check", path])
    assert done.exit_code in (0, 1)
    assert len(done.output.splitlines()) == 1


def test_what_a_terminal_would_obey_is_not_in_a_problem(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[31m\nb.yaml").write_text(JOB + "    kwargs: !a%1Bb {}\n    x\u202ey: 1\n")
    done = CliRunner().invoke(main, ["check", str(tmp_path)])
    assert done.exit_code == 1
    assert all(c.isprintable() for c in done.output.replace("\n", ""))
    assert len(done.output.splitlines()) == 2
