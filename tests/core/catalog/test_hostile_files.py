"""Schedule files that mean harm: refused soon, in little memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from supervisor.catalog.schedule_files import MOST_PROBLEMS
from supervisor.cli import main
from tests.acceptance import warm

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
        + each("  j{0}: {{task: t, rrule: FREQ=WEEKLY;INTERVAL=9{0};BYMONTH=2}}\n", 20)
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
