"""What watches a deployment, from the installed package alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from supervisor.cli import main
from supervisor.deploy import targets


def test_render_monitoring_needs_no_app_and_no_schedule_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        result = CliRunner().invoke(main, ["render", "monitoring", "--output", "deploy"])
        assert result.exit_code == 0, result.output
    assert "nothing to change" in result.output
    written = [path for path in (tmp_path / "deploy").rglob("*") if path.is_file()]
    assert len(written) == 4


def test_prometheus_scrapes_the_servers_that_are_named(tmp_path: Path) -> None:
    words = ["--target", "jobs-1:9809", "--target", "jobs-2:9871"]
    CliRunner().invoke(main, ["render", "monitoring", "--output", str(tmp_path), *words])
    written = yaml.safe_load((tmp_path / targets.PROMETHEUS).read_text())
    [config] = written["scrape_configs"]
    assert config["static_configs"] == [{"targets": ["jobs-1:9809", "jobs-2:9871"]}]


def test_the_dashboard_says_in_json_whose_it_is(tmp_path: Path) -> None:
    CliRunner().invoke(main, ["render", "monitoring", "--output", str(tmp_path)])
    written = json.loads((tmp_path / targets.DASHBOARD).read_text())
    assert 'grafana/periodic-jobs.json, by "supervisor render monitoring"' in written.pop("//")
    assert written == json.loads(targets.packaged(targets.DASHBOARD))
