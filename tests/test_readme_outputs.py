"""What the README and the examples' page show as output is what the commands print."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from examples.app import app
from supervisor.catalog.entries import Entries
from supervisor.catalog.load import load
from supervisor.catalog.schedule_files import load as read_files
from supervisor.cli import main
from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from supervisor.schedule.ticks import Tick
from tests.jobs import begin

ROOT = Path(__file__).parents[1]

BLOCK = re.compile(r"<!-- output: supervisor (.*?) -->\n```text\n(.*?)```\n<!-- end -->", re.S)

PAGES = (ROOT / "README.md", ROOT / "docs" / "tutorial" / "examples.md")

SHOWN = dict(block for page in PAGES for block in BLOCK.findall(page.read_text()))


@pytest.fixture
def examples(ledger: Ledger) -> Ledger:
    """The examples' schedule files, loaded, and of some of their jobs two ticks."""
    files, now = read_files(ROOT / "schedules"), ledger.now()
    entries = Entries(app, ledger)
    load(ledger, entries, files.specs, files.digest, now)
    for job in ("archive-report", "load-report", "sample-load", "checksum-docs"):
        first = Tick(files.specs[job], now.replace(microsecond=0) + timedelta(seconds=1))
        second = Tick(files.specs[job], first.nominal_at + timedelta(seconds=6))
        ledger.admit([first, second])
        token = begin(ledger, first.run_id).token
        if job in ("sample-load", "checksum-docs"):
            ledger.finish(first.run_id, token, RunState.SUCCEEDED)
    return ledger


def printed(redis_url: str, command: str) -> list[str]:
    done = CliRunner().invoke(main, ["--redis-url", redis_url, *command.split()])
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def cells(line: str) -> list[str]:
    return re.split(r" {2,}", line)


def shape(line: str) -> str:
    """A row without its numbers, times and gaps."""
    timeless = re.sub(r"\d[\d.]*(ms|s|m|h)\b", "DURATION", " ".join(line.split()))
    return re.sub(r"\d+", "0", timeless)


def test_the_outputs_are_those_that_are_looked_at() -> None:
    assert sorted(SHOWN) == ["jobs", "runs --limit 5"]


def test_jobs_has_these_columns_and_lists_all_examples(examples: Ledger, redis_url: str) -> None:
    shown, now = SHOWN["jobs"].splitlines(), printed(redis_url, "jobs")
    assert cells(shown[0]) == cells(now[0])
    assert [cells(line)[:2] for line in shown[1:]] == [cells(line)[:2] for line in now[1:]]


def test_runs_has_these_columns_and_such_rows(examples: Ledger, redis_url: str) -> None:
    shown, now = SHOWN["runs --limit 5"].splitlines(), printed(redis_url, "runs")
    assert cells(shown[0]) == cells(now[0])
    assert {*map(shape, shown[1:])} <= {*map(shape, now[1:])}
    assert len({line.split()[0] for line in shown[1:]}) == 5
