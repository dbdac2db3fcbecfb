"""The pages on an installation with a week of history."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from supervisor.features.days.store import counts_of
from supervisor.features.summary.store import SummaryStore
from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import traces
from supervisor.web.jobs_page import Standings, listing_of
from supervisor.web.jobs_query import Filter, JobsQuery
from tools.installation.history import MOST_RUNS, WEEK, Installation, Processes, installed

JOBS = 120


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Installation, Processes]]:
    with installed(tmp_path_factory.mktemp("installation"), JOBS) as (made, processes, _):
        yield made, processes


@pytest.fixture
def installation(filled: tuple[Installation, Processes]) -> Installation:
    return filled[0]


@pytest.fixture
def ledger(installation: Installation) -> Ledger:
    return installation.ledger


def test_an_installation_has_jobs_with_each_trouble(ledger: Ledger) -> None:
    now, names = ledger.now(), ledger.job_names()
    counts = listing_of(ledger, JobsQuery(), Standings(ledger, names, now)).counts
    assert counts["all"] == JOBS
    assert [word for word in Filter if not counts[word]] in ([], ["late"])


def test_a_beat_leads_it_and_workers_are_there(
    filled: tuple[Installation, Processes], ledger: Ledger
) -> None:
    for _ in range(2):  # a turn is told of with the next
        filled[1].say()
    assert ledger.beat().leads(ledger.now())
    assert len(ledger.presences.processes().workers) == 3


def test_its_history_is_that_of_a_week(installation: Installation, ledger: Ledger) -> None:
    runs = [run for some in traces(ledger, ledger.job_names(), MOST_RUNS).values() for run in some]
    states = {run.state for run in runs}
    ended = {RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT, RunState.SKIPPED}
    assert ended | {RunState.MISSED, RunState.EXCLUDED, RunState.RUNNING} <= states
    first = min(run.nominal_at for run in runs if run.nominal_at)
    assert timedelta() <= first - installation.start < timedelta(days=1)
    assert max(run.finished_at for run in runs if run.finished_at) <= installation.start + WEEK
    assert all(record.unaccounted_ticks == 0 for record in ledger.jobs())


def test_jobs_have_a_year_of_days(ledger: Ledger) -> None:
    days = [len(counts_of(ledger, name, ledger.now().date())) for name in ledger.job_names()]
    assert max(days) > 300


def test_yesterday_is_summed_up_beside_the_day_before(ledger: Ledger) -> None:
    summary, before = SummaryStore(ledger).latest() or (None, None)
    assert summary and before
    assert summary.figures["failed"] > 0
    assert JOBS * 0.9 < summary.jobs <= JOBS  # some are newer than yesterday
