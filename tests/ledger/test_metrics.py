"""The metrics: complete from the start, true to the ledger, documented, and well-formed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from supervisor.ledger.runs import Ledger
from supervisor.overlap import SkipReason
from supervisor.run import OUTCOMES, RunState
from supervisor.settings import Settings
from supervisor.web.metrics import LedgerCollector
from supervisor.web.table import COUNTERS
from tests.ledger.jobs import begin, job, run_id, ticks

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def exposition(ledger: Ledger) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(LedgerCollector(ledger))
    return generate_latest(registry).decode()


def samples(ledger: Ledger) -> dict[tuple[str, ...], float]:
    """Values by name and labels other than `job`, of a ledger with one job."""
    return {
        (sample.name, *(value for label, value in sample.labels.items() if label != "job")): (
            sample.value
        )
        for family in text_string_to_metric_families(exposition(ledger))
        for sample in family.samples
    }


def test_every_series_of_a_job_is_there_before_its_first_tick(ledger: Ledger) -> None:
    job(ledger)
    found = samples(ledger)
    for outcome in OUTCOMES:
        assert found["supervisor_runs_finished_total", outcome.value] == 0
    for reason in SkipReason:
        assert found["supervisor_runs_skipped_total", reason.value] == 0
    for counter in COUNTERS:
        if counter.label is None:
            assert found[(f"supervisor_{counter.name}_total",)] == 0
    assert found["supervisor_run_duration_seconds_bucket", "+Inf"] == 0
    assert ("supervisor_last_success_timestamp_seconds",) not in found


def test_the_counters_say_what_happened(ledger: Ledger) -> None:
    spec = job(ledger, overlap="queue_one")
    ledger.admit(ticks(spec, 0, 1, 2, 2))
    begin(ledger, run_id(spec, 0))
    found = samples(ledger)
    assert found["supervisor_runs_started_total",] == 1
    assert found["supervisor_runs_running",] == 1
    assert found["supervisor_runs_waiting",] == 1
    assert found["supervisor_consecutive_skips",] == 0
    assert found["supervisor_runs_skipped_total", "overlap"] == 1
    assert found["supervisor_duplicates_dropped_total",] == 1
    assert found["supervisor_ticks_total",] == 3
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    found = samples(ledger)
    assert found["supervisor_runs_finished_total", "succeeded"] == 1
    assert found["supervisor_run_duration_seconds_count",] == 1
    assert found["supervisor_start_delay_seconds_count",] == 1
    assert found["supervisor_last_success_timestamp_seconds",] > 1.7e9


def test_without_redis_only_up_is_left() -> None:
    nowhere = Ledger.open(Settings(redis_url="redis://127.0.0.1:1/0"))
    lines = [line for line in exposition(nowhere).splitlines() if not line.startswith("#")]
    assert lines == ["supervisor_up 0.0"]


def test_the_page_has_every_metric_and_no_other(ledger: Ledger) -> None:
    spec = job(ledger)
    ledger.admit(ticks(spec, 0))
    begin(ledger, run_id(spec, 0))
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    ledger.client.hset(ledger.keys.job(spec.name), "next", 1)
    ledger.client.hset(
        ledger.keys.beat, mapping={"leader": "b", "last_tick": 1, "last_reload_successful": 1}
    )
    rows = re.findall(r"^\| `(supervisor_\w+)` \| (\w+) \| ([\w, ]*) \|", PAGE.read_text(), re.M)
    documented = {
        name: (kind, set(filter(None, labels.split(", ")))) for name, kind, labels in rows
    }
    served: dict[str, tuple[str, set[str]]] = {}
    for family in text_string_to_metric_families(exposition(ledger)):
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        is_info = family.name.endswith("_info")
        suffix = "_total" if family.type == "counter" else ""
        served[family.name + suffix] = ("info" if is_info else family.type, labels)
    assert documented == served


def test_promtool_finds_nothing_to_complain_about(ledger: Ledger) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    job(ledger)
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=exposition(ledger),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
