"""What verbs that act print with --json: one shape (docs/reference/commands.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from supervisor.ledger.ledger import Ledger
from tests.commands import Supervisor, as_json
from tests.jobs import admitted, job, run_id

APP = "tests.tools.cli.planned_app:app"
JOBS = "jobs: {new: {task: planned.poll, every: 1h}}"

#: Calls of verbs that act, and the states of what they name. RUN stands for an open run. The other
#: one, `adopt`, is tried in tests/acceptance/test_adoption.py.
ACTING: dict[tuple[str, ...], list[str]] = {
    ("trigger", "nightly"): ["skipped"],
    ("cancel", "RUN"): ["cancelled"],
    ("pause", "nightly", "--until", "2h"): ["paused"],
    ("resume", "nightly"): ["resumed"],
    ("backfill", "daily", "--from", "2026-03-01", "--to", "2026-03-03"): ["start", "wait"],
    ("backfill", "daily", "--from", "2026-03-01", "--to", "2026-03-02", "--dry-run"): ["planned"],
    ("drain", "celery"): ["drained"],
    ("undrain", "celery"): ["undrained"],
    ("silence", "nightly", "--for", "2h", "--reason", "stocktaking"): ["silenced"],
    ("put", "jobs.yaml"): ["added"],
    ("put", "jobs.yaml", "--dry-run"): ["added"],
    ("remove", "own"): ["removed"],
    ("apply", "jobs.yaml", "--yes"): ["added", "removed", "removed"],
    ("export", "-o", "exported.json"): ["written"],
    ("init", "schedules"): ["written"],
    ("import", "beat-schedule"): ["printed"],
    ("import", "beat-schedule", "-o", "beat.yaml"): ["written"],
    ("release", "--dry-run"): ["written"] * 3,
    ("render", "monitoring", "-o", "rendered", "--check"): ["added"],
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.yaml").write_text(JOBS)
    return tmp_path


@pytest.mark.parametrize("words", ACTING, ids=" ".join)
def test_what_was_done_is_told_in_one_shape(
    words: tuple[str, ...], ledger: Ledger, supervisor: Supervisor
) -> None:
    spec = admitted(ledger, 0)
    job(ledger, "daily", every="24h")
    (Path.cwd() / "own.yaml").write_text(JOBS.replace("new", "own"))
    assert supervisor("put", "own.yaml", app=APP).exit_code == 0
    record: dict[str, Any] = json.loads(
        supervisor(
            *(run_id(spec, 0) if word == "RUN" else word for word in words), "--json", app=APP
        ).stdout
    )
    assert record["verb"] == words[0]
    assert record["done"] == (not {"--dry-run", "--check"} & {*words})
    states = [result["state"] for result in record["results"]]
    assert states[: len(ACTING[words])] == ACTING[words]
    assert all(result["name"] for result in record["results"])


def test_jobs_that_are_exported_as_json_are_the_same_jobs(
    here: Path, ledger: Ledger, supervisor: Supervisor
) -> None:
    assert supervisor("put", "jobs.yaml", app=APP).exit_code == 0
    before = ledger.scheduled()
    exported = supervisor("export", "--json")
    assert json.loads(exported.stdout)["jobs"]["new"]["every"] == "1h"
    again = as_json(supervisor("put", "-", "--json", app=APP, answer=exported.stdout))
    assert (again["results"], ledger.scheduled()) == ([], before)


def test_a_plan_is_shown_to_whoever_is_asked_though_the_answer_is_json(
    ledger: Ledger, supervisor: Supervisor
) -> None:
    result = supervisor("apply", "jobs.yaml", "--json", app=APP, answer="y\n")
    assert "+ new" in result.stderr
    assert as_json(result)["plan"]["added"] == ["new"]
    nothing = as_json(supervisor("apply", "jobs.yaml", "--json", "--yes", app=APP))
    assert (nothing["done"], nothing["results"]) == (True, [])
