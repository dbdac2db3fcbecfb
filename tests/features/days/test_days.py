"""How a job's runs ended on each day of a year: counted by the ledger, shown on its page."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from itertools import count

import pytest

from supervisor.catalog.entries import Entries
from supervisor.catalog.load import load
from supervisor.features.days.page import year_of
from supervisor.features.days.store import HIGHEST, counts_of
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import YEAR
from supervisor.schedule.ticks import PassedOver
from supervisor.web.access import Access
from tests.damage import spoil
from tests.features.notices.test_notices import ended
from tests.jobs import MIDNIGHT, at_work, job, remove, run_id, ticks
from tests.tools.web.visits import FROM_OUR_PAGE, visiting
from tools.installation.history import write_day

TODAY = date(2026, 11, 28)
DAY = timedelta(days=1)


def of_days_ago(ledger: Ledger, spec: JobSpec) -> dict[int, Mapping[str, int]]:
    today = ledger.now().date()
    return {(today - day).days: of for day, of in counts_of(ledger, spec.name, today).items()}


def counted(ledger: Ledger, spec: JobSpec, days: int, **counts: int) -> None:
    """As if these outcomes had been counted so many days ago."""
    day = ledger.now().date() - days * DAY
    write_day(ledger, ledger.keys.outcomes(spec.name), day, counts)


def test_outcomes_are_counted_by_the_day(ledger: Ledger) -> None:
    spec = job(ledger, overlap="skip")
    assert of_days_ago(ledger, spec) == {}
    for second, state in enumerate((RunState.SUCCEEDED, RunState.TIMED_OUT, RunState.CANCELLED)):
        ended(ledger, spec, second, state)
    ended(ledger, spec, 3, RunState.SUCCEEDED)
    ledger.admit(ticks(spec, 4, 5, 6))
    for state, number in ((RunState.MISSED, 70_000), (RunState.EXCLUDED, 3)):
        passed = PassedOver(spec, state, "window", MIDNIGHT, MIDNIGHT + DAY * number, number)
        ledger.pass_over([passed])
    counts = {"succeeded": 2, "failed": 1, "skipped": 2, "missed": HIGHEST}
    assert of_days_ago(ledger, spec) == {0: counts}


@pytest.mark.parametrize("old", [1, HIGHEST - 1, HIGHEST])
@pytest.mark.parametrize("rounds", [1, 2, 13])
def test_what_was_counted_in_a_year_before_counts_no_more(
    ledger: Ledger, old: int, rounds: int
) -> None:
    spec = job(ledger)
    counted(ledger, spec, rounds * YEAR, succeeded=old, failed=old)
    assert of_days_ago(ledger, spec) == {}
    counted(ledger, spec, YEAR - 1, failed=old)
    ended(ledger, spec, 0, RunState.SUCCEEDED)
    assert of_days_ago(ledger, spec) == {0: {"succeeded": 1}, YEAR - 1: {"failed": old}}


def test_a_count_stays_at_the_highest(ledger: Ledger) -> None:
    spec, seconds = job(ledger), count()
    for before, runs in ((HIGHEST - 1, 1), (HIGHEST, 1), (HIGHEST, 2)):
        counted(ledger, spec, 0, succeeded=before, failed=3)
        for _ in range(runs):
            ended(ledger, spec, next(seconds), RunState.SUCCEEDED)
        assert of_days_ago(ledger, spec) == {0: {"succeeded": HIGHEST, "failed": 3}}
    missed = PassedOver(spec, RunState.MISSED, "window", MIDNIGHT, MIDNIGHT + DAY, 9)
    ledger.pass_over([missed])
    assert of_days_ago(ledger, spec)[0]["missed"] == 9


def test_a_job_takes_about_four_kilobytes(ledger: Ledger) -> None:
    spec = job(ledger)
    ended(ledger, spec, 0, RunState.SUCCEEDED)
    used = ledger.client.execute_command("MEMORY", "USAGE", ledger.keys.outcomes(spec.name))
    assert used < 4_300


def test_the_week_of_today_is_the_last_column() -> None:
    year = year_of({TODAY - DAY: {"failed": 1, "succeeded": 30}, TODAY: {"succeeded": 9}}, TODAY)
    assert year is not None
    friday, today = year.days
    assert (today.x, today.y) == (year.width - year.pitch, friday.y + year.pitch)
    assert (friday.word, friday.sign, friday.strength) == ("failed", "x", 0)
    assert friday.words == "27 November 2026: 30 succeeded, 1 failed"
    assert year.words == "39 succeeded, 1 failed since 27 November 2026"
    assert [label.text for label in year.months][-3:] == ["Sep", "Oct", "Nov"]
    assert year.months[0].text == "Dec"


def test_the_worst_outcome_is_shown_and_its_share() -> None:
    counts = {
        TODAY - 2 * DAY: {"skipped": 9, "missed": 1},
        TODAY - DAY: {"skipped": 10},
        TODAY: {"succeeded": HIGHEST, "skipped": 1},
    }
    year = year_of(counts, TODAY)
    assert year is not None
    assert [(day.word, day.strength) for day in year.days] == [
        ("missed", 1),
        ("skipped", 2),
        ("skipped", 0),
    ]
    assert year.days[2].words.endswith("1 skipped or more")
    assert year_of({TODAY - YEAR * DAY: {"failed": 1}}, TODAY) is None


def test_what_was_never_counted_is_of_no_round_of_the_ring(ledger: Ledger) -> None:
    spoil(ledger, ledger.keys.outcomes("nightly"), "\0\0\0")
    for years in range(20):
        assert counts_of(ledger, "nightly", TODAY + years * YEAR * DAY) == {}


def test_a_job_that_is_loaded_again_has_its_days_for_good(ledger: Ledger, entries: Entries) -> None:
    spec = job(ledger)
    key = ledger.keys.outcomes(spec.name)
    ended(ledger, spec, 0, RunState.FAILED)
    load(ledger, entries, {spec.name: spec}, "one", ledger.now())
    load(ledger, entries, {}, "two", ledger.now())
    assert ledger.client.pttl(key) > 0
    load(ledger, entries, {spec.name: spec}, "three", ledger.now())
    assert ledger.client.pttl(key) == -1


def test_a_removed_job_keeps_its_days_as_long_as_its_history(ledger: Ledger) -> None:
    spec = job(ledger)
    ended(ledger, spec, 0, RunState.FAILED)
    key = ledger.keys.outcomes(spec.name)
    assert ledger.client.pttl(key) == -1
    at_work(ledger, spec, 1)
    remove(ledger, spec)
    ledger.finish(run_id(spec, 1), "token", RunState.SUCCEEDED)
    assert ledger.client.pttl(key) > 0


def test_the_page_of_a_job_has_them_in_words(ledger: Ledger) -> None:
    spec = job(ledger)
    with visiting(ledger, Access()) as client:
        assert "A year of days" not in client.get("/jobs/nightly", headers=FROM_OUR_PAGE).text
        ended(ledger, spec, 0, RunState.FAILED)
        text = client.get("/jobs/nightly", headers=FROM_OUR_PAGE).text
    assert f"<title>{ledger.now():%d %B %Y}: 1 failed</title>" in text
