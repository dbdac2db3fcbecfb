"""From a slow job to an alert at Alertmanager, and back: nothing in between is imitated."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.project import Project
from tests.alerts.files import queries
from tests.alerts.monitoring import (
    LOOPBACK,
    Alertmanager,
    Prometheus,
    alertmanager,
    prometheus,
    running,
)
from tests.ports import free_port
from tests.waiting import wait_until

#: The job `slow` works until the gate is there; no worker takes the run of `stuck`.
SCHEDULE = """\
jobs:
  slow: {{task: team.tell, every: 1s, kwargs: {{gate: {gate}}}, max_consecutive_skips: 3}}
  quick: {{task: team.work, every: 1s, time_limit: 1h}}
  stuck: {{task: team.work, run_at_start: true, queue: elsewhere}}
  listed: {{task: team.work, every: 1m, overlap: queue_all}}
"""


@dataclass(frozen=True)
class Watched:
    """A supervised project with its beat and a worker, and those who watch it."""

    project: Project
    gate: Path
    prometheus: Prometheus
    alertmanager: Alertmanager


@contextmanager
def serving(directory: Path, redis_url: str) -> Iterator[int]:
    """The port of a `supervisor serve`."""
    port = free_port()
    command = [sys.executable, "-m", "supervisor", "serve", "--port", str(port)]
    environment = {"SUPERVISOR_REDIS_URL": redis_url}
    with running(command, directory, f"http://{LOOPBACK}:{port}/healthz", environment):
        yield port


@pytest.fixture
def watched(tmp_path: Path, redis_url: str) -> Iterator[Watched]:
    project = Project(tmp_path / "team", redis_url)
    gate = tmp_path / "gate"
    project.schedule(SCHEDULE.format(gate=gate))
    try:
        project.beat()
        project.hire()
        with (
            alertmanager(tmp_path / "alertmanager") as told,
            serving(tmp_path / "serve", redis_url) as port,
            prometheus(tmp_path / "prometheus", scraped=port, told=told.port) as asked,
        ):
            yield Watched(project, gate, asked, told)
    finally:
        project.stop()


def test_a_slow_job_is_reported_until_it_is_quick_and_each_panel_has_data(watched: Watched) -> None:
    fires = "SupervisorSkippedTooOften"
    wait_until(lambda: watched.alertmanager.jobs(fires) == {"slow"}, 30)
    [alert] = watched.alertmanager.alerts(fires)
    assert alert["status"]["state"] == "active"
    assert "supervisor runs slow; supervisor why slow; http://" in alert["annotations"]["look"]
    assert len(watched.project.starts("slow")) == 1

    wait_until(lambda: [query for query in queries() if not watched.prometheus.query(query)] == [])
    assert watched.prometheus.rule_errors() == {}

    watched.gate.touch()
    wait_until(lambda: watched.alertmanager.alerts(fires) == [], 15)
    wait_until(lambda: len(watched.project.starts("slow")) > 1)


def test_the_symptoms_of_no_beat_are_inhibited_where_no_beat_leads(tmp_path: Path) -> None:
    with alertmanager(tmp_path) as told:
        told.tell(
            {"alertname": "SupervisorNoBeatLeads", "job": "supervisor", "instance": "here"},
            {"alertname": "SupervisorRunMissed", "job": "nightly", "instance": "here"},
            {"alertname": "SupervisorRunMissed", "job": "nightly", "instance": "elsewhere"},
            {"alertname": "SupervisorRunsOverlapped", "job": "nightly", "instance": "here"},
        )
        wait_until(lambda: len(told.alerts("SupervisorRunMissed")) == 2)
        states = {
            alert["labels"]["instance"]: alert["status"]["state"]
            for alert in told.alerts("SupervisorRunMissed")
        }
        assert states["here"] == "suppressed"
        assert states["elsewhere"] != "suppressed"
        [overlap] = told.alerts("SupervisorRunsOverlapped")
        assert overlap["status"]["state"] != "suppressed"
