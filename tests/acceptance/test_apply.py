"""`supervisor apply` beside a beat that has schedule files of its own, and one that has none."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.project import Project
from tests.waiting import wait_until

HOURLY = "jobs: {hourly: {task: team.work, every: 1h}}"
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


def test_apply_warns_that_a_beat_with_other_files_takes_it_back(
    project: Project,
) -> None:
    project.schedule(HOURLY)
    project.beat()
    ledger = project.ledger
    wait_until(lambda: ledger.beat().follows, 20)
    done = project.supervisor("apply", "--yes", str(deployed(project, STEADY)))
    assert done.returncode == 0, done.stderr
    assert "follows schedule files that differ from these" in done.stderr
    wait_until(lambda: set(ledger.scheduled()) == {"hourly"})
