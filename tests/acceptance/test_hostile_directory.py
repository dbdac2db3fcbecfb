"""Schedule files of somebody who means harm, beside jobs that go on: beat ticks, and is led."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.acceptance.project import Project
from tests.acceptance.test_leaders import leading_pid
from tests.waiting import status_of, wait_until

JOBS = 20
TICKS = int(os.environ.get("HOSTILE_TICKS", "8"))

#: Minutes of reading, in files that are each as large as a file may be.
HOSTILE_FILES = 100
HOSTILE = "jobs:\n  j:\n    task: t\n    every: 1h\n    args: [" + "1," * 500_000 + "]\n"


def hostile_files(project: Project) -> None:
    first = project.directory / "hostile"
    first.write_text(HOSTILE)
    for number in range(HOSTILE_FILES):
        (project.schedules / f"hostile-{number}.yaml").hardlink_to(first)


def ticks(project: Project) -> int:
    loaded = project.ledger.scheduled()
    if len(loaded) < JOBS:
        return 0
    return min(project.ledger.job(name).counters.get("ticks", 0) for name in loaded)


def lateness(project: Project, last: int) -> list[float]:
    """Seconds from the nominal times to the admissions of the last ticks of each job, sorted."""
    runs = [run for i in range(JOBS) for run in project.ledger.history(f"job-{i}", last)]
    return sorted((run.queued_at - run.nominal_at).total_seconds() for run in runs)


def p99(sorted_values: list[float]) -> float:
    return sorted_values[len(sorted_values) * 99 // 100]


@pytest.fixture
def ticking(project: Project) -> Iterator[Project]:
    each = "{task: team.work, every: 1s, overlap: allow}"
    project.schedule("jobs:\n" + "".join(f"  job-{i}: {each}\n" for i in range(JOBS)))
    yield project


@pytest.mark.timeout(180)
def test_files_that_take_minutes_delay_no_tick_and_no_change_of_leaders(ticking: Project) -> None:
    project, beats = ticking, [ticking.beat(), ticking.beat()]
    wait_until(lambda: ticks(project) > 2, 40)
    hostile_files(project)
    before = ticks(project)
    wait_until(lambda: ticks(project) > before + TICKS + 1, 60)
    assert p99(lateness(project, TICKS)) < 1
    victim = leading_pid(project)
    [leader] = [beat for beat in beats if beat.pid == victim]
    leader.terminate()
    assert status_of(leader, 30) == 0
    wait_until(lambda: leading_pid(project) != victim, 30)
    before = ticks(project)
    wait_until(lambda: ticks(project) > before + 2, 30)
    for file in project.schedules.glob("hostile-*"):
        file.unlink()
    project.schedule("jobs: {after: {task: team.work, every: 1h}}")
    wait_until(lambda: list(project.ledger.scheduled()) == ["after"], 60)
