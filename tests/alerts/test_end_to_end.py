"""From a slow job to an alert at Alertmanager, and back: nothing in between is imitated."""

from __future__ import annotations

import json
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
from tests.listener import Listener, listening
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
    with watching(tmp_path, redis_url, SCHEDULE) as watched:
        yield watched


@contextmanager
def watching(
    tmp_path: Path, redis_url: str, schedule: str, sends_to: str | None = None
) -> Iterator[Watched]:
    """sends_to: the address of a listener that gets what Alertmanager sends."""
    project = Project(tmp_path / "team", redis_url)
    gate = tmp_path / "gate"
    project.schedule(schedule.format(gate=gate))
    try:
        project.beat()
        project.hire()
        with (
            alertmanager(tmp_path / "alertmanager", sends_to) as told,
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


#: Both fail each time; the second has to have succeeded a minute after its time.
FAILING = """\
jobs:
  failing: {{task: team.fail, every: 1s, max_consecutive_skips: 999}}
  named: {{task: team.fail, every: 1s, max_consecutive_skips: 999, due_by: 1m}}
"""


def notifications(listener: Listener, job: str) -> list[tuple[str, str]]:
    """The receiver and the alert of each that says that one of this job fires."""
    return [
        (path, alert["labels"]["alertname"])
        for path, body in listener.heard
        for alert in json.loads(body)["alerts"]
        if alert["labels"]["job"] == job and alert["status"] == "firing"
    ]


def test_a_failing_job_is_notified_of_once_and_again_at_its_due_by(
    tmp_path: Path, redis_url: str
) -> None:
    late = 'job:supervisor_success:late_seconds{job="failing"} > 5'
    with (
        listening() as listener,
        watching(tmp_path, redis_url, FAILING, listener.url) as watched,
    ):
        wait_until(lambda: notifications(listener, "failing"), 30)
        wait_until(lambda: len(notifications(listener, "named")) == 2, 60)
        wait_until(lambda: watched.prometheus.query(late), 60)
        assert notifications(listener, "failing") == [("/team", "SupervisorJobFailing")]
        assert notifications(listener, "named") == [
            ("/team", "SupervisorJobFailing"),
            ("/pager", "SupervisorOverdue"),
        ]
        [alert] = watched.alertmanager.alerts("SupervisorJobFailing", "named")
        assert alert["status"]["state"] == "suppressed"


@pytest.mark.parametrize(
    ("told", "not_told"),
    [
        ("SupervisorRunningTooLong", "SupervisorSkippedTooOften"),
        ("SupervisorSkippedTooOften", "SupervisorAboutToOverlap"),
        ("SupervisorNoSuccessInTime", "SupervisorRunningTooLong"),
    ],
)
def test_one_of_two_alerts_of_one_cause_is_sent(tmp_path: Path, told: str, not_told: str) -> None:
    with alertmanager(tmp_path) as manager:
        manager.tell(
            {"alertname": told, "job": "slow", "instance": "here"},
            {"alertname": not_told, "job": "slow", "instance": "here"},
            {"alertname": not_told, "job": "other", "instance": "here"},
        )
        wait_until(lambda: len(manager.alerts(not_told)) == 2)
        states = {a["labels"]["job"]: a["status"]["state"] for a in manager.alerts(not_told)}
        assert states["slow"] == "suppressed"
        assert states["other"] != "suppressed"


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
