"""What watches a deployment, from the installed package alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from click.testing import CliRunner

from supervisor.cli import main
from supervisor.deploy import targets
from tests.render.jobs import ROOT


def test_it_needs_no_app_and_no_schedule_files(
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
    assert written == json.loads(targets.text_of(targets.DASHBOARD))


def test_the_wheel_has_all_that_is_rendered_from(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run(
        [*command, "--directory", str(tmp_path)], cwd=ROOT, capture_output=True, check=True
    )
    [wheel] = tmp_path.glob("*.whl")
    folder = ROOT / "supervisor" / "deploy"
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "supervisor/deploy/files/prometheus/rules.yml" in sources
    assert sources - set(ZipFile(wheel).namelist()) == set()
