"""The values that `render helm` makes of schedule files."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from supervisor.deploy import targets
from supervisor.deploy.targets import CHART
from supervisor.job.spec import JobSpec
from tests.test_project import PROJECT
from tests.tools.deploy.jobs import ROOT, job, plan_of


def values_of(*jobs: JobSpec) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(
        targets.render_helm(plan_of(*jobs), schedules={})["jobs.yaml"]
    )
    return document


def test_one_more_serial_job_is_one_more_worker() -> None:
    workers = values_of(job("plain"), job("mail", serial=True, time_limit="2m"))["workers"]
    assert workers.keys() == {"default", "serial-mail"}
    assert workers["serial-mail"] == {
        "name": "serial.mail",
        "queues": ["serial.mail"],
        "serial": True,
        "terminationGracePeriodSeconds": 150,
    }


def test_the_default_worker_has_every_queue_that_is_not_serial() -> None:
    workers = values_of(job("plain"), job("mail", queue="mail"), job("own", serial=True))["workers"]
    assert workers["default"]["queues"] == ["celery", "mail"]


def test_names_are_dns_labels_and_never_the_same() -> None:
    queues = ["a.b", "a-b", "a_b", "A-b", "x" * 100, "x" * 99, "1"]
    plan = plan_of(*(job(f"job{n}", serial=queue) for n, queue in enumerate(queues)))
    names = {targets.object_name(worker) for worker in plan.workers}
    assert len(names) == len(queues) + 1
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name) for name in names)


@pytest.mark.parametrize(
    "keys",
    [
        {"ping_url": "https://user:${PASSWORD}@checks.internal:8000/"},
        {"notify": [{"url": "${SLACK_URL}", "events": ["lost"]}]},
        {"sentry_monitor": True},
    ],
    ids=str,
)
def test_beat_may_reach_other_servers_where_a_job_names_one(keys: dict[str, Any]) -> None:
    values = values_of(job("quiet"), job("loud", **keys))
    assert values["pingPorts"] == [80, 443, 465, 587]
    assert "checks.internal" not in str(values)
    assert values_of(job("quiet"))["pingPorts"] == []


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / CHART / "Chart.yaml").read_text())
    version = PROJECT["project"]["version"]
    assert (chart["version"], chart["appVersion"]) == (version, version)
