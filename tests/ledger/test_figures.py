"""Integers of many jobs, a line each, whatever their hashes hold."""

from __future__ import annotations

from supervisor.ledger.figures import JOBS_PER_CALL
from supervisor.ledger.ledger import Ledger

FIELDS = ("n:started", "next", "absent")


def test_each_job_is_a_line_in_the_order_of_the_fields(
    ledger: Ledger,
) -> None:
    ledger.client.hset(ledger.keys.job("nightly"), mapping={"next": "1790000000000", "x": "7"})
    ledger.client.hset(ledger.keys.job("ended"), mapping={"n:started": "-3", "next": ""})
    lines = ledger.figures.of(["ended", "unknown", "nightly"], FIELDS)
    assert [*lines] == ["-3 0 0", "0 0 0", "0 1790000000000 0"]


def test_more_jobs_than_one_call_takes_stay_in_their_order(ledger: Ledger) -> None:
    jobs = [f"job-{number}" for number in range(4 * JOBS_PER_CALL + 1)]
    for number, name in enumerate(jobs):
        ledger.client.hset(ledger.keys.job(name), "n:started", number)
    lines = ledger.figures.of(jobs, FIELDS)
    assert [*lines] == [f"{number} 0 0" for number in range(len(jobs))]


def test_a_ledger_of_another_version_is_read_and_not_written(ledger: Ledger) -> None:
    ledger.client.set(ledger.keys.schema, 99)
    before = ledger.client.keys()
    assert [*ledger.figures.of(["nightly"], FIELDS)] == ["0 0 0"]
    assert ledger.client.keys() == before


def test_a_connection_that_is_lost_meanwhile_is_made_anew(ledger: Ledger) -> None:
    jobs = [f"job-{number}" for number in range(50 * JOBS_PER_CALL)]
    for number, name in enumerate(jobs):
        ledger.client.hset(ledger.keys.job(name), "n:started", number)
    lines = ledger.figures.of(jobs, FIELDS)
    first = next(lines)
    ledger.client.client_kill_filter(_type="normal", skipme=True)
    assert [first, *lines] == [f"{number} 0 0" for number in range(len(jobs))]
