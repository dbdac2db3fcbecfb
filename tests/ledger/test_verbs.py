"""The command line on a real ledger: what it prints, as text and as JSON, and how it exits."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from supervisor.cli import main
from supervisor.ledger.runs import Ledger
from supervisor.run import RunState
from tests.ledger.jobs import begin, job, run_id, ticks

Supervisor = Callable[..., Result]


@pytest.fixture
def supervisor(redis_url: str) -> Supervisor:
    def call(*words: str) -> Result:
        return CliRunner().invoke(main, ["--redis-url", redis_url, *words])

    return call


def as_json(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_jobs_lists_state_and_counts(ledger: Ledger, supervisor: Supervisor) -> None:
    spec = job(ledger)
    ledger.admit(ticks(spec, 0, 1))
    begin(ledger, run_id(spec, 0))
    header, row = supervisor("jobs").stdout.splitlines()
    assert header.split()[:3] == ["job", "schedule", "state"]
    assert row.split()[:4] == ["nightly", "every", "1s", "running"]
    [shape] = as_json(supervisor("jobs", "--json"))
    assert (shape["job"], shape["state"], shape["running"]) == ("nightly", "running", 1)
    assert shape["counters"]["skipped:overlap"] == 1


def test_runs_has_a_line_for_each_attempt(ledger: Ledger, supervisor: Supervisor) -> None:
    spec = job(ledger)
    ledger.admit(ticks(spec, 0, 1))
    begin(ledger, run_id(spec, 0))
    ledger.finish(run_id(spec, 0), "token", RunState.LOST, "worker process 7 died")
    begin(ledger, run_id(spec, 0), "second")
    ledger.finish(run_id(spec, 0), "second", RunState.SUCCEEDED)
    _, skipped, second, first = supervisor("runs", "nightly").stdout.splitlines()
    assert f"blocked by {run_id(spec, 0)}" in skipped
    assert second.split()[1:3] == ["2", "succeeded"]
    assert first.split()[1:3] == ["1", "lost"]
    assert first.endswith("worker process 7 died")
    newest, oldest = as_json(supervisor("runs", "--json"))
    assert (newest["state"], newest["reason"]) == ("skipped", "overlap")
    assert [attempt["outcome"] for attempt in oldest["attempts"]] == ["lost", "succeeded"]
    assert len(as_json(supervisor("runs", "--outcome", "skipped", "--json"))) == 1


def test_a_trigger_is_a_run_and_a_second_one_is_skipped(
    ledger: Ledger, supervisor: Supervisor
) -> None:
    job(ledger)
    first = supervisor("trigger", "nightly", "--kwargs", '{"day": 3}')
    assert first.exit_code == 0
    run = first.stdout.split()[0]
    assert ledger.run(run).kwargs == {"day": 3}
    second = supervisor("trigger", "nightly")
    assert second.exit_code == 1
    assert f"skipped: overlap, blocked by {run}" in second.stdout
    assert as_json(supervisor("show", run, "--json"))["state"] == "queued"
    assert "queued" in supervisor("show", run).stdout


def test_pause_and_resume_change_the_job_and_nothing_when_a_name_is_wrong(
    ledger: Ledger, supervisor: Supervisor
) -> None:
    job(ledger)
    assert supervisor("pause", "nightly").stdout == "nightly paused\n"
    assert ledger.job("nightly").paused
    assert supervisor("resume", "nightly").exit_code == 0
    refused = supervisor("pause", "nightly", "nigthly")
    assert refused.exit_code == 1
    assert "did you mean 'nightly'?" in refused.stderr
    assert not ledger.job("nightly").paused


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("runs", "nigthly"), 1, "did you mean 'nightly'?"),
        (("show", "nightly@nothing"), 1, "unknown run 'nightly@nothing'"),
        (("trigger", "nightly", "--args", "{"), 2, "not JSON"),
        (("trigger", "nightly", "--args", "{}"), 2, "must be a list"),
        (("runs", "--outcome", "fine"), 2, "fine"),
        (("up",), 1, "name the Celery app"),
        (("-A", "no_such_module", "up"), 1, "no Celery app 'no_such_module'"),
        (("-A", "json", "check"), 1, "no Celery app 'json': json has none"),
        (("-A", "json:dumps", "queues"), 1, "no Celery app 'json:dumps'"),
    ],
)
def test_mistakes_are_told_and_exit_as_documented(
    ledger: Ledger, supervisor: Supervisor, words: tuple[str, ...], status: int, said: str
) -> None:
    job(ledger)
    result = supervisor(*words)
    assert result.exit_code == status
    assert said in result.output


def test_a_server_that_is_away_is_an_error_and_no_traceback() -> None:
    result = CliRunner().invoke(main, ["--redis-url", "redis://127.0.0.1:1/0", "jobs"])
    assert result.exit_code == 1
    assert "the ledger is away" in result.output


def test_reasons_cannot_move_the_cursor(ledger: Ledger, supervisor: Supervisor) -> None:
    spec = job(ledger)
    ledger.admit(ticks(spec, 0))
    begin(ledger, run_id(spec, 0))
    ledger.finish(run_id(spec, 0), "token", RunState.FAILED, "boom\x1b[2J\nfake line")
    lines = supervisor("runs").stdout.splitlines()
    assert len(lines) == 2
    assert "\x1b" not in lines[1]
