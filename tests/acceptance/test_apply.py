"""`supervisor apply` on a real deployment."""

from __future__ import annotations

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
