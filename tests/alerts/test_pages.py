"""The alerts and metrics that pages and the dashboard name are there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.alerts.files import (
    METRICS,
    OPERATING,
    alerts,
    dashboard,
    faults,
    filled_in,
    panels,
    queries,
)
from tests.programs import output_of

# The dashboard: its queries are valid and ask for what there is, its panels are complete


def test_the_queries_ask_for_metrics_and_labels_that_exist() -> None:
    assert {fault for query in queries() for fault in faults(query)} == set()


def test_promtool_can_read_every_query(tmp_path: Path) -> None:
    recorded = [{"record": f"query:{n}", "expr": query} for n, query in enumerate(queries())]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    assert f"{len(recorded)} rules found" in output_of("promtool", "check", "rules", path)


@pytest.mark.parametrize(
    ("title", "leaders", "shown"),
    [
        ("Beats that lead", (1, 1), [1]),
        ("Beats that lead", (1, 0), [0]),
        ("Beats that lead", (1, None), [0]),
        ("Beats that lead", (1, 2), [2]),
        ("Beat's last look", (1, 1), [100]),
        ("Scrape", (1, 1), [0.5, 0.5]),
    ],
)
def test_a_panel_of_the_fleet_shows_the_worst_of_several_ledgers(
    title: str, leaders: tuple[int | None, ...], shown: list[float], tmp_path: Path
) -> None:
    [panel] = [panel for panel in panels() if panel["title"] == title]
    series = {}
    for ledger, count in zip("ab", leaders, strict=True):
        of = f'instance="{ledger}"'
        for number in range(2 if count is not None else 0):
            is_leader = int(number < (count or 0))
            series[f'supervisor_beat_is_leader{{{of}, beat="{number}"}}'] = is_leader
        series[f"supervisor_up{{{of}}}"] = 1
        last_tick = 20 if ledger == "a" else 115
        series[f"supervisor_beat_last_tick_timestamp_seconds{{{of}}}"] = last_tick
        series[f'supervisor_build_info{{{of}, version="1"}}'] = 1
        series[f"supervisor_scrape_duration_seconds{{{of}}}"] = 0.5
    expression = f"sort({filled_in(panel['targets'][0]['expr'])})"
    sums = {"expr": f"sum({expression})", "eval_time": "2m"}
    counts = {"expr": f"count({expression})", "eval_time": "2m"}
    test = {
        "interval": "1m",
        "input_series": [{"series": s, "values": f"{v}x2"} for s, v in series.items()],
        "promql_expr_test": [
            {**sums, "exp_samples": [{"labels": "{}", "value": sum(shown)}]},
            {**counts, "exp_samples": [{"labels": "{}", "value": len(shown)}]},
        ],
    }
    path = tmp_path / "tests.yml"
    path.write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}))
    assert "SUCCESS" in output_of("promtool", "test", "rules", path)


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_a_panel_is_explained_and_has_a_unit(panel: dict[str, Any]) -> None:
    assert panel["title"] and panel["description"]
    assert panel["fieldConfig"]["defaults"]["unit"]
    sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
    assert {source["uid"] for source in sources} == {"${datasource}"}


def test_the_jobs_row_is_repeated_for_each_job_and_asks_for_it_alone() -> None:
    rows = [place for place in dashboard()["panels"] if place["type"] == "row"]
    assert [(row["title"], row.get("repeat")) for row in rows] == [("Fleet", None), ("$job", "job")]
    below = rows[1]["gridPos"]["y"]
    for panel in panels():
        is_of_a_job = panel["gridPos"]["y"] > below
        assert all(("$job" in target["expr"]) == is_of_a_job for target in panel["targets"])


def test_no_panel_lies_on_another() -> None:
    taken: set[tuple[int, int]] = set()
    for place in dashboard()["panels"]:
        at = place["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, place["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


# The page of metrics: its queries by label give what it says they give.

OF_TWO_TENANTS = {
    'supervisor_job_labels{job="a", instance="s", label_tenant="acme"}': "1x60",
    'supervisor_job_labels{job="b", instance="s", label_tenant="acme", label_team="x"}': "1x60",
    'supervisor_job_labels{job="c", instance="s", label_tenant="other"}': "1x60",
    **{
        f'supervisor_runs_finished_total{{job="{name}", instance="s", outcome="failed"}}': "0+60x60"
        for name in "abcd"
    },
    'supervisor_success_due_timestamp_seconds{job="a", instance="s"}': "60x60",
    'supervisor_success_due_timestamp_seconds{job="b", instance="s"}': "9999x60",
    'supervisor_success_due_timestamp_seconds{job="c", instance="s"}': "60x60",
}


def test_metrics_can_be_asked_for_by_label(tmp_path: Path) -> None:
    by_tenant, overdue = re.findall(r"```promql\n(.*?)```", METRICS.read_text(), re.DOTALL)
    failures = [
        {"labels": '{label_tenant="acme"}', "value": 2},
        {"labels": '{label_tenant="other"}', "value": 1},
    ]
    due = 'supervisor_success_due_timestamp_seconds{job="a", instance="s"}'
    late = [{"labels": due, "value": 60}]
    expected = [
        {"expr": query, "eval_time": "1h", "exp_samples": samples}
        for query, samples in ((by_tenant, failures), (overdue, late))
    ]
    series = [{"series": name, "values": values} for name, values in OF_TWO_TENANTS.items()]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": expected}
    path = tmp_path / "labels.yml"
    path.write_text(yaml.safe_dump({"tests": [test]}, width=1_000))
    assert "SUCCESS" in output_of("promtool", "test", "rules", path)


# The page for those who are woken: a section for each alert, and each alert's link leads to it

PAGE = OPERATING.read_text()
ALERTS = alerts()

#: Title of a section -> its text.
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", PAGE, re.S | re.M))


def anchors() -> set[str]:
    """As the usual renderers of Markdown make them of titles."""
    titles = re.findall(r"^#+ (.+)$", PAGE, re.M)
    return {re.sub(r"[^\w -]", "", title).replace(" ", "-").lower() for title in titles}


def test_every_alert_has_its_section_and_no_section_is_left_over() -> None:
    assert SECTIONS.keys() == ALERTS.keys()


@pytest.mark.parametrize("rule", ALERTS.values(), ids=ALERTS.keys())
def test_an_alerts_link_leads_to_a_section(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page == "docs/how-to/operating.md"
    assert anchor in anchors()


@pytest.mark.parametrize("text", SECTIONS.values(), ids=SECTIONS.keys())
def test_a_section_says_what_to_look_at_what_to_do_and_when_it_is_over(text: str) -> None:
    assert re.findall(r"^- \*\*(\w+):?\*\*", text, re.M) == ["Look", "Do", "Clears"]


def test_a_section_says_whether_its_alert_is_critical() -> None:
    critical = {name for name, text in SECTIONS.items() if text.startswith("\n**Critical.** ")}
    severities = {name: rule["labels"]["severity"] for name, rule in ALERTS.items()}
    assert critical == {name for name, severity in severities.items() if severity == "critical"}


def test_links_within_the_page_lead_somewhere() -> None:
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= anchors()
