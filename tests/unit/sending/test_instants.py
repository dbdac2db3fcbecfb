"""Instants that code gives without an offset: read as Celery reads them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from celery import Celery
from celery.utils.time import maybe_make_aware

from supervisor.sending import calls
from supervisor.worker import retries

IN_AN_HOUR = timedelta(hours=1)


@pytest.fixture(params=["UTC", "Asia/Tokyo", "America/Los_Angeles"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The zone of the machine."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


def naive() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None) + IN_AN_HOUR


def is_in_an_hour(delay: timedelta | None) -> bool:
    return delay is not None and abs(delay - IN_AN_HOUR) < timedelta(seconds=10)


def test_a_retry_at_a_naive_time_is_at_that_time_in_utc(zone: str) -> None:
    assert is_in_an_hour(retries.until(naive(), None, 0))
    assert is_in_an_hour(retries.until(naive().replace(tzinfo=UTC), None, 0))
    # So does Celery's worker, whose app's zone is the last word only for what it shows.
    assert is_in_an_hour(maybe_make_aware(naive(), zone) - datetime.now(UTC))


def test_a_call_for_a_naive_time_is_for_that_time_in_utc(zone: str) -> None:
    app = Celery("team", set_as_current=False)
    app.conf.timezone = zone
    assert is_in_an_hour(calls.until(naive()))
    assert is_in_an_hour(calls.until(naive().replace(tzinfo=UTC)))


def test_a_retry_for_a_time_that_has_passed_is_due_now() -> None:
    assert retries.until(datetime.now(UTC) - IN_AN_HOUR, None, 0) == timedelta()
