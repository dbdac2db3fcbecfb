"""What `supervisor.testing` gives to an app's tests; and the page about it, as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from supervisor.errors import NotConfigured
from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from supervisor.testing import empty, lease_runs_out, wait_for_end
from tests.jobs import admitted, at_work, begun, job, lock_is_free, run_id, ticks
from tests.test_code_blocks import BLOCKS
from tests.waiting import scaled

FILES = ("reports.py", "test_reports.py")


def test_the_tests_of_the_page_pass_in_the_environment_of_a_deployment(tmp_path: Path) -> None:
    texts = [block.text for block in BLOCKS if block.page == "docs/how-to/testing.md"]
    for name, text in zip(FILES, texts, strict=True):
        (tmp_path / name).write_text(text)
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "pytest",
        "-q",
        "-W",
        "error",
        "-p",
        "no:cacheprovider",
    ]
    nowhere = "redis://127.0.0.1:1/0"
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "SUPERVISOR_REDIS_URL": nowhere, "CELERY_BROKER_URL": nowhere},
        capture_output=True,
        text=True,
        timeout=scaled(120),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{texts[1].count('def test_')} passed" in done.stdout


def test_a_database_that_the_environment_names_is_not_emptied(
    ledger: Ledger, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_id(admitted(ledger, 0), 0)
    monkeypatch.setenv("SUPERVISOR_REDIS_URL", redis_url)
    with pytest.raises(NotConfigured, match="SUPERVISOR_REDIS_URL is set"):
        empty(ledger)
    assert ledger.run(run).state is RunState.QUEUED


def test_a_run_that_does_not_end_in_time_is_said_to_be_where_it_is(ledger: Ledger) -> None:
    run = run_id(admitted(ledger, 0), 0)
    ledger.note_obstacle([run], "vm:1", "its pool lacks time_limit")
    said = "is still queued, kept from starting: its pool lacks time_limit"
    with pytest.raises(TimeoutError, match=said):
        wait_for_end(ledger, run, timedelta(milliseconds=1))


def test_a_lease_that_runs_out_frees_the_serial_queue_as_well(ledger: Ledger) -> None:
    silent, other = job(ledger, serial="one", on_crash="fail"), job(ledger, "other", serial="one")
    at_work(ledger, silent, 0)
    lease_runs_out(ledger, run_id(silent, 0))
    ledger.rescue()
    assert ledger.run(run_id(silent, 0)).state is RunState.LOST
    at_work(ledger, other, 0)


@pytest.mark.parametrize(
    ("keys", "state"), [({}, RunState.WAITING), ({"max_wait": "1h"}, RunState.SKIPPED)]
)
def test_what_runs_out_of_a_waiting_run_is_its_max_wait(
    ledger: Ledger, keys: dict[str, str], state: RunState
) -> None:
    spec = begun(ledger, overlap="queue_all", **keys)
    ledger.admit(ticks(spec, 1))
    lease_runs_out(ledger, run_id(spec, 1))
    ledger.rescue()
    assert [ledger.run(run_id(spec, n)).state for n in (0, 1)] == [RunState.RUNNING, state]
    assert not lock_is_free(ledger, spec)
