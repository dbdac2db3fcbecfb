"""The rules: valid, true to the metrics, tested one by one, and helpful when they fire."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.alerts.files import ALERTMANAGER, PROMETHEUS, RULES, RULES_TEST, alerts, faults, rules
from tests.alerts.healthy import (
    INTERVAL,
    STEP,
    Simulated,
    failing_jobs,
    hanging_jobs,
    healthy_jobs,
    hung_job,
    hung_named_job,
    series,
)
from tests.programs import output_of

ALERTS = alerts()


def test_promtool_accepts_the_rules_and_the_configuration() -> None:
    output_of("promtool", "check", "rules", RULES)
    output_of("promtool", "check", "config", PROMETHEUS)


def test_promtool_finds_the_rules_to_do_what_their_tests_say() -> None:
    assert "SUCCESS" in output_of("promtool", "test", "rules", RULES_TEST)


def test_amtool_accepts_the_configuration_of_the_alertmanager() -> None:
    output_of("amtool", "check-config", ALERTMANAGER)


def test_critical_alerts_reach_the_pager_and_others_the_team() -> None:
    def receiver(severity: str) -> str:
        route = ("config", "routes", "test", f"--config.file={ALERTMANAGER}")
        return output_of("amtool", *route, f"severity={severity}").strip()

    assert (receiver("critical"), receiver("warning")) == ("pager", "team")


def test_the_rules_ask_for_metrics_and_labels_that_exist() -> None:
    assert {fault for rule in rules() for fault in faults(rule["expr"])} == set()


def test_a_rule_asks_for_what_another_records() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    asked = {
        name for rule in rules() for name in re.findall(r"\bjob:supervisor_\w+:\w+", rule["expr"])
    }
    assert asked == recorded


def expectations(alert: str) -> list[bool]:
    """For each moment that the tests look at an alert: whether some series fire it."""
    groups = yaml.safe_load(RULES_TEST.read_text())["tests"]
    return [
        bool(test["exp_samples"])
        for group in groups
        for test in group["promql_expr_test"]
        if f'alertname="{alert}"' in test["expr"]
    ]


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_is_tested_to_fire_and_to_clear(alert: str) -> None:
    assert set(expectations(alert)) == {True, False}


@pytest.mark.parametrize(("name", "rule"), ALERTS.items())
def test_an_alert_says_how_bad_it_is_and_where_to_look(name: str, rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    annotations = rule["annotations"]
    assert annotations.keys() == {"summary", "description", "look", "runbook_url"}
    assert annotations["runbook_url"] == f"docs/how-to/operating.md#{name.lower()}"
    if "{{ $labels.job }}" in annotations["summary"]:
        for place in (
            "supervisor runs {{ $labels.job }}",
            "supervisor why {{ $labels.job }}",
            "http://{{ $labels.instance }}/",
        ):
            assert place in annotations["look"]


def test_who_is_inhibited_exists() -> None:
    inhibitions = yaml.safe_load(ALERTMANAGER.read_text())["inhibit_rules"]
    named = set(re.findall(r"Supervisor\w+", str(inhibitions)))
    assert named <= ALERTS.keys()
    assert "SupervisorNoBeatLeads" in named


def test_what_is_wrong_with_one_ledger_or_job_inhibits_no_other() -> None:
    inhibitions = yaml.safe_load(ALERTMANAGER.read_text())["inhibit_rules"]
    of_service = ("SupervisorNoBeatLeads", "SupervisorRedisAway")
    for each in inhibitions:
        is_of_service = each["source_matchers"][0].endswith(of_service)
        assert each["equal"] == (["instance"] if is_of_service else ["job", "instance"])


def test_no_alert_inhibits_one_that_inhibits_it() -> None:
    """Alertmanager would send neither."""
    inhibitions = yaml.safe_load(ALERTMANAGER.read_text())["inhibit_rules"]
    pairs = {
        (source, target)
        for each in inhibitions
        for source in re.findall(r"Supervisor\w+", str(each["source_matchers"]))
        for target in re.findall(r"Supervisor\w+", str(each["target_matchers"]))
        if source != target
    }
    assert pairs
    assert not pairs & {(target, source) for source, target in pairs}


def promtool_finds(jobs: Sequence[Simulated], expected: list[dict[str, Any]], path: Path) -> bool:
    """Whether these expressions have these values, with jobs that are scraped as deployed."""
    test = {"interval": f"{STEP}s", "input_series": series(jobs), "promql_expr_test": expected}
    groups = yaml.safe_load(RULES.read_text())["groups"]
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": f"{INTERVAL}s",
        "group_eval_order": [group["name"] for group in groups],
        "tests": [test],
    }
    path.write_text(yaml.safe_dump(document, width=1_000_000))
    return "SUCCESS" in output_of("promtool", "test", "rules", path)


#: How many jobs each alert fired for, in twenty minutes.
JOBS_BY_ALERT = """\
count by (alertname) (
  count by (alertname, job) (count_over_time(ALERTS{alertstate="firing", job=~"%s"}[20m]))
)"""


def test_each_job_that_fails_has_one_alert(tmp_path: Path) -> None:
    jobs = failing_jobs()
    alone = {"labels": '{alertname="SupervisorJobFailing"}', "value": len(jobs)}
    query = JOBS_BY_ALERT % "failing.*"
    expected = [{"expr": query, "eval_time": "20m", "exp_samples": [alone]}]
    assert promtool_finds(jobs, expected, tmp_path / "failing.yml")


def test_a_job_that_hangs_has_alerts_that_alertmanager_sends_as_one(tmp_path: Path) -> None:
    jobs = hanging_jobs()
    names = ("SupervisorRunningTooLong", "SupervisorSkippedTooOften")
    fired = [{"labels": f'{{alertname="{name}"}}', "value": len(jobs)} for name in names]
    query = JOBS_BY_ALERT % "hanging.*"
    expected = [{"expr": query, "eval_time": "20m", "exp_samples": fired}]
    assert promtool_finds(jobs, expected, tmp_path / "hanging.yml")


def test_twenty_healthy_minutes_fire_no_alert(tmp_path: Path) -> None:
    """At the intervals that are deployed, with a restart of `serve` and a change of leaders."""
    fired = 'count by (alertname, job) (count_over_time(ALERTS{alertstate="firing", job%s}[20m]))'
    too_long = 'ALERTS{alertname="SupervisorRunningTooLong", alertstate="firing"}'
    hung = f"sum by (job) (count_over_time({too_long}[8m]))"
    of_one = 'count by (alertname) (ALERTS{job="hung-named", alertname=~"%s", alertstate="firing"})'
    told = ("SupervisorMaxDurationExceeded", "SupervisorOverdue")
    not_told = ("SupervisorRunningTooLong", "SupervisorNoSuccessInTime")
    expected = [
        {"expr": fired % '!~"hung.*"', "eval_time": "20m", "exp_samples": []},
        # What is exposed does reach the rules, and an alert outlives the restart of `serve`.
        {
            "expr": hung,
            "eval_time": "20m",
            "exp_samples": [{"labels": '{job="hung"}', "value": 8 * 60 // INTERVAL + 1}],
        },
        # What a job names takes the place of what is expected of it.
        {
            "expr": of_one % "|".join(told + not_told),
            "eval_time": "20m",
            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in told],
        },
    ]
    jobs = [*healthy_jobs(), hung_job(), hung_named_job()]
    assert promtool_finds(jobs, expected, tmp_path / "healthy.yml")
