"""The judge of the chaos of notices finds what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tools.chaos.told import (
    REDIS,
    WRONG,
    Away,
    Life,
    Told,
    judged,
    judged_outages,
    moment,
    told_by_mail,
)

LIVES = {"a": Life([10, 20], [30]), "b": Life([11], [31]), "calm": Life([], [15])}


def notice(key: str, event: str, jobs: str, first: float, last: float, runs: int) -> Told:
    return Told(last + 5, key, "incident", event, tuple(jobs.split()), first, last, runs)


FAILED = notice("1", "failed", "a b", 10, 20, 3)
RECOVERED = notice("2", "recovered", "a b", 30, 31, 0)


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        ([FAILED, RECOVERED], {}),
        ([FAILED, FAILED, RECOVERED], {}),
        ([FAILED], {"recoveries lost": 2}),
        # Sent before its problem: whoever reads it last thinks that it lasts.
        ([replace(RECOVERED, at=0), FAILED], {"recoveries lost": 2}),
        ([notice("1", "failed", "a", 10, 20, 3), RECOVERED], {"failures lost": 1, "invented": 1}),
        ([notice("1", "failed", "a b", 10, 15, 3), RECOVERED], {"failures lost": 1}),
        ([notice("1", "failed", "a b calm", 10, 20, 3), RECOVERED], {"invented": 1}),
        ([notice("1", "failed", "a b", 10, 20, 2), RECOVERED], {"failures uncounted": 1}),
        (
            [FAILED, notice("1", "failed", "a b", 10, 20, 4), RECOVERED],
            {"changed under its key": 1},
        ),
        # With what has happened since.
        ([notice("0", "failed", "a", 10, 15, 1), FAILED, RECOVERED], {}),
        (
            [FAILED, *(notice(str(n), "failed", "a", n, 20, 0) for n in range(3, 6)), RECOVERED],
            {"told too often": 1},
        ),
    ],
)
def test_each_fault_of_what_was_told_is_found(told: Sequence[Told], wrong: dict[str, int]) -> None:
    found = judged(told, LIVES, seconds=60, repeat_seconds=60)
    assert {what: found[what] for what in WRONG if found[what]} == wrong


def test_each_fault_of_outages_is_found() -> None:
    redis, short = Away(REDIS, 100, 140), Away(REDIS, 200, 203)
    told = Told(107, "1", "incident", REDIS, (), 100, 106, 0)
    over = replace(told, at=145, key="2", event="recovered", last_at=142)
    wrong = ("redis_unavailable untold", "outages invented", "ends untold")

    def found(told: Sequence[Told], away: Sequence[Away]) -> list[int]:
        counts = judged_outages(told, away, at_most=5, at_least=30)
        return [counts.get(what, 0) for what in wrong]

    assert found([told, over], [redis, short]) == [0, 0, 0]
    assert found([], [redis, short]) == [1, 0, 0]
    assert found([told, over], [replace(redis, since=103, until=107)]) == [0, 1, 0]
    assert found([told], [redis]) == [0, 0, 1]


def test_a_mail_says_since_when_a_job_failed_before_it_recovered() -> None:
    body = "Before that: failed: ValueError\r\n1 more since 2026-03-01T00:00:32Z\r\nLast at {}\r\n"
    line = {
        "at": 0.0,
        "headers": {"subject": "nightly recovered"},
        "body": body.format("2026-03-01T00:00:45Z, nightly@2026-03-01T00:00:45Z"),
    }
    mail = told_by_mail(line)
    assert (mail.event, mail.jobs, mail.runs) == ("recovered", ("nightly",), 1)
    assert (mail.first_at, mail.last_at) == (
        moment("2026-03-01T00:00:32Z"),
        moment("2026-03-01T00:00:45Z"),
    )
