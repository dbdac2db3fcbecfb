"""The dashboard: its queries are valid and ask for what there is, its panels are complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.alerts.files import dashboard, faults, panels, queries
from tests.programs import output_of


def test_the_queries_ask_for_metrics_and_labels_that_exist() -> None:
    assert {fault for query in queries() for fault in faults(query)} == set()


def test_promtool_can_read_every_query(tmp_path: Path) -> None:
    recorded = [{"record": f"query:{n}", "expr": query} for n, query in enumerate(queries())]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    assert f"{len(recorded)} rules found" in output_of("promtool", "check", "rules", path)


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
