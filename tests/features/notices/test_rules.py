"""What a notice says, and which events go together."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from supervisor.features.notices.keys import DEFAULT_EVENTS, Destination, Event, events_of
from supervisor.features.notices.rules import Notice, body, cause_of

AT = datetime(2026, 3, 1, 2, 5, tzinfo=UTC)


def notice(event: Event = Event.FAILED, *jobs: str, **fields: Any) -> Notice:
    known = {"cause": "", "job_count": len(jobs), "first_at": AT, "last_at": AT, **fields}
    return Notice(key="k", incident="i", event=event, jobs=jobs, **known)


def test_body_has_what_one_needs_to_look_further() -> None:
    told = notice(
        Event.FAILED,
        "a",
        runs=3,
        reason="ValueError: boom",
        run="a@2026-03-01T02:05:00Z",
        last_at=AT + timedelta(minutes=5),
        link="https://jobs.example/jobs/a",
    )
    assert body(told).splitlines() == [
        "ValueError: boom",
        "3 times since 2026-03-01T02:05:00Z",
        "Last at 2026-03-01T02:10:00Z, a@2026-03-01T02:05:00Z",
        "supervisor why a",
        "https://jobs.example/jobs/a",
    ]


def test_body_counts_the_jobs_that_it_does_not_name() -> None:
    told = notice(Event.FAILED, "a", "b", job_count=500, runs=500)
    assert body(told).splitlines()[0] == "a, b and 498 more"


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("ConnectionError: refused by 10.0.0.7", "ConnectionError"),
        ("redis.exceptions.TimeoutError: slow", "TimeoutError"),
        ("step load failed: KeyError: 'x'", "KeyError"),
        ("exit code 3", ""),
        ("", ""),
    ],
)
def test_failures_of_one_error_class_have_one_cause(reason: str, cause: str) -> None:
    assert cause_of(Event.FAILED, reason) == cause
    assert cause_of(Event.LOST, reason) == ""


def test_destination_is_written_in_one_order() -> None:
    given = Destination(url="${HOOK}", events=frozenset({Event.LOST, Event.FAILED}))
    assert (
        given.model_dump_json(exclude_none=True) == '{"url":"${HOOK}","events":["failed","lost"]}'
    )
    assert "HOOK" not in repr(given)


def test_ledger_hears_of_events_that_any_destination_wants() -> None:
    some = Destination(url="a", events=frozenset({Event.LOST, Event.NO_BEAT}))
    more = Destination(url="b", events=frozenset({Event.FAILED}))
    assert events_of([some, more]) == ("failed", "lost")
    assert Event.LATE not in DEFAULT_EVENTS
