"""`supervisor runs` with filters, and `supervisor jobs --watch` on a terminal."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import PAGE, Wanted, search
from supervisor.ledger.replies import ms_of
from tests.ledger.commands import Supervisor, Terminal, as_json
from tests.ledger.jobs import begin, job, run_id, ticks
from tests.waiting import status_of, wait_until

Runs = Callable[..., list[str]]


@pytest.fixture
def runs(supervisor: Supervisor) -> Runs:
    def call(*words: str) -> list[str]:
        return [shape["run"] for shape in as_json(supervisor("runs", *words, "--json"))]

    return call


def admitted(ledger: Ledger, spec: JobSpec, second: int, at: datetime) -> None:
    """As if the run had been admitted at that time."""
    ledger.client.zadd(ledger.keys.history(spec.name), {run_id(spec, second): ms_of(at)})


def test_the_limit_counts_matches_and_not_rows_looked_at(ledger: Ledger, runs: Runs) -> None:
    spec = job(ledger, history=1_000)
    ledger.admit(ticks(spec, 0))
    begin(ledger, run_id(spec, 0))
    ledger.finish(run_id(spec, 0), "token", RunState.FAILED, "boom")
    ledger.admit(ticks(spec, *range(1, PAGE + 20)))
    assert runs(spec.name, "--outcome", "failed", "--limit", "1") == [run_id(spec, 0)]
    assert runs("--outcome", "failed") == [run_id(spec, 0)]
    assert len(runs("--outcome", "skipped", "--limit", "3")) == 3
    assert len(runs("--outcome", "skipped", "--limit", "1000")) == PAGE + 18


def test_the_newest_of_all_jobs_come_first(ledger: Ledger, runs: Runs) -> None:
    first, second = job(ledger, "first"), job(ledger, "second")
    for number in range(4):
        for spec in (first, second):
            ledger.admit(ticks(spec, number))
            admitted(ledger, spec, number, ledger.now() + timedelta(seconds=number))
    newest = runs("--limit", "2")
    assert set(newest) == {run_id(first, 3), run_id(second, 3)}


def test_runs_are_found_by_when_they_were_admitted(ledger: Ledger, runs: Runs) -> None:
    spec, now = job(ledger), ledger.now()
    ledger.admit(ticks(spec, 0, 1, 2))
    for second, hours in enumerate((30, 3, 1)):
        admitted(ledger, spec, second, now - timedelta(hours=hours))
    assert runs("--since", "2h") == [run_id(spec, 2)]
    assert runs("--since", "1d", "--until", "2h") == [run_id(spec, 1)]
    assert len(runs(spec.name, "--since", (now - timedelta(days=3)).date().isoformat())) == 3
    assert runs("--since", (now + timedelta(hours=1)).isoformat()) == []


def test_a_day_is_one_of_the_jobs_zone(ledger: Ledger, runs: Runs) -> None:
    spec = job(ledger, timezone="Asia/Tokyo")
    ledger.admit(ticks(spec, 0))
    admitted(ledger, spec, 0, datetime.fromisoformat("2026-03-01T16:00:00Z"))
    assert runs(spec.name, "--since", "2026-03-02") == [run_id(spec, 0)]
    assert runs("--since", "2026-03-02") == []


def test_several_pages_make_one_list_without_repeats(ledger: Ledger) -> None:
    spec = job(ledger, history=1_000)
    ledger.admit(ticks(spec, *range(PAGE * 2)))
    found = search(ledger, [spec.name], Wanted(limit=PAGE * 2))
    assert len({run.id for run in found}) == PAGE * 2


def on_terminal(redis_url: str, verb: str) -> list[str]:
    with Terminal(redis_url, verb, columns=80) as terminal:
        return terminal.whole().split()


def test_a_run_that_is_listed_on_a_terminal_can_be_shown(
    ledger: Ledger, redis_url: str, supervisor: Supervisor
) -> None:
    spec = job(ledger, "report-of-all-the-departments-of-the-night")
    ledger.admit(ticks(spec, 0))
    assert spec.name in on_terminal(redis_url, "jobs")
    [listed] = [word for word in on_terminal(redis_url, "runs") if "@" in word]
    assert listed in supervisor("show", listed).output


def test_jobs_are_watched_on_a_terminal_until_ctrl_c(ledger: Ledger, redis_url: str) -> None:
    job(ledger, "nightly")
    with Terminal(redis_url, "jobs", "--watch", columns=200) as terminal:
        wait_until(lambda: terminal.shown.count("nightly") >= 2, 20)
        terminal.process.send_signal(signal.SIGINT)
        assert status_of(terminal.process, 30) == 0
        assert "Traceback" not in terminal.shown
