"""A ledger of a newer version is left alone."""

from __future__ import annotations

from supervisor.ledger.limits import SCHEMA
from tests.acceptance.project import Project
from tests.damage import of_schema
from tests.waiting import status_of, wait_until


def test_beat_and_workers_stop_when_a_newer_version_takes_the_ledger(project: Project) -> None:
    project.schedule("jobs: {steady: {task: team.work, every: 1s}}")
    beat, worker, ledger = project.beat(), project.worker(), project.ledger
    project.wait_for_jobs()
    wait_until(lambda: ledger.presences.processes().workers, 20)
    of_schema(ledger, SCHEMA + 1)
    assert status_of(beat, 40) != 0
    assert status_of(worker, 40) != 0
    ticks = ledger.job("steady").counters.get("ticks")
    told = f"the ledger has schema {SCHEMA + 1} and this version"
    assert told in project.log("beat")
    [event] = project.events_of(worker, "worker stopped")
    assert told in str(event["error"])
    # Those that start refuse at once.
    assert status_of(project.beat(), 40) != 0
    refused = project.hire()
    assert status_of(refused, 40) != 0
    assert told in project.log_of(refused)
    assert ledger.job("steady").counters.get("ticks") == ticks


def test_a_command_says_what_to_do_with_a_newer_ledger(project: Project) -> None:
    ledger = project.ledger
    of_schema(ledger, SCHEMA + 1)
    done = project.supervisor("drain", "celery", "--force")
    assert done.returncode == 4
    assert "install the version that the other processes run" in done.stderr
    assert "docs/how-to/upgrading.md" in done.stderr
