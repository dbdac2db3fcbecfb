"""`supervisor apply` and `supervisor doctor` on a real deployment."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.acceptance.project import Project
from tests.waiting import wait_until

STEADY = "jobs: {steady: {task: team.work, every: 1s}}"


def deployed(project: Project, text: str) -> Path:
    """A schedule file that lies elsewhere than where beat looks."""
    path = project.directory / "deployed.yaml"
    path.write_text(text)
    return path


def test_a_beat_without_files_emits_what_was_applied(project: Project) -> None:
    app = project.directory / "team.py"
    app.write_text(app.read_text().replace(', schedules="schedules"', ""))
    project.beat()
    project.worker()
    ledger = project.ledger
    wait_until(lambda: ledger.beat().leader, 20)
    path = deployed(project, STEADY)
    done = project.supervisor("apply", "--yes", str(path))
    assert (done.returncode, "warning" in done.stderr) == (0, False), done.stderr
    wait_until(lambda: len(project.starts("steady")) >= 2, 10)
    assert project.supervisor("plan", "--exit-code", str(path)).returncode == 0


# The doctor's word


def wrong(project: Project) -> list[str]:
    findings = json.loads(project.supervisor("doctor", "--json").stdout)
    return [finding["what"] for finding in findings if finding["wrong"]]


def test_a_deployment_is_well_until_something_is_missing(project: Project) -> None:
    project.schedule(
        "jobs: {nightly: {task: team.work, every: 24h},"
        " alone: {task: team.work, every: 24h, serial: true},"
        " parts: {every: 24h, steps: [{task: team.work, priority: 1}]}}"
    )
    project.beat()
    project.worker(queues="celery")
    first = project.worker(queues="serial.alone", processes=1)
    wait_until(lambda: len(project.ledger.scheduled()) > 2, 20)
    wait_until(lambda: len(project.ledger.presences.roll().workers) == 2, 20)
    done = project.supervisor("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert "note   only one beat is running" in done.stdout

    project.worker(queues="serial.alone", processes=1)
    wait_until(lambda: project.ledger.presences.roll().consumers("serial.alone") == 2, 20)
    [found] = wrong(project)
    assert found.startswith("2 workers consume the serial queue serial.alone")

    first.send_signal(signal.SIGTERM)
    wait_until(lambda: project.ledger.presences.roll().consumers("serial.alone") == 1, 20)
    assert wrong(project) == []

    project.schedule("jobs: {nightly: {task: team.nothing, every: 24h}}")
    unknown = ["job nightly names the task team.nothing, which no worker knows"]
    wait_until(lambda: wrong(project) == unknown, 20)
    assert project.supervisor("doctor").returncode == 1
