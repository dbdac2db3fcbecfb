"""Beat sends revocations to Celery's result backend, also to one that is unavailable at first."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import ClassVar

import pytest
from celery import Celery
from celery.backends.base import KeyValueStoreBackend

from supervisor.app import supervise
from supervisor.beat import notify
from supervisor.beat.notify import GIVE_UP_AFTER, MOST_FAILURES, Revoker
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.notifications import Revocations
from supervisor.ledger.requests import RunRequest
from tests.ledger.jobs import job
from tests.logged import capture_logs
from tests.waiting import wait_until


class Memory(KeyValueStoreBackend):  # type: ignore[misc]
    """A result backend that may be away."""

    stored: ClassVar[dict[str, bytes]] = {}
    is_unavailable: ClassVar = False
    asked: ClassVar = 0

    def get(self, key: str) -> bytes | None:
        return self.stored.get(key)

    def set(self, key: str, value: bytes) -> None:
        Memory.asked += 1
        if self.is_unavailable:
            raise ConnectionError("the backend is unavailable")
        self.stored[key] = value


@pytest.fixture
def app(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    monkeypatch.setattr(Memory, "stored", {})
    monkeypatch.setattr(Memory, "asked", 0)
    monkeypatch.setattr(notify, "PAUSE_SECONDS", 0.0)
    app = supervise(Celery("revoking", broker=redis_url, backend=f"{__name__}:Memory"))
    yield app
    app.close()


def cancelled(ledger: Ledger, number: int = 0) -> str:
    run = ledger.trigger(job(ledger, f"job-{number}"), RunRequest(is_awaited=True))
    ledger.cancel(run.id, "by hand")
    return run.id


def left(ledger: Ledger) -> int:
    return len(Revocations(ledger.client, ledger.keys).oldest(100))


def sent(ledger: Ledger, revoker: Revoker) -> None:
    """All that can be sent now is."""
    revoker.look(ledger.now())
    wait_until(
        lambda: not any(thread.name == "supervisor-revocations" for thread in threading.enumerate())
    )


def test_a_backend_that_is_unavailable_is_told_later(
    app: Celery, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, revoker = cancelled(ledger), Revoker(app, ledger)
    monkeypatch.setattr(Memory, "is_unavailable", True)
    sent(ledger, revoker)
    assert (Memory.asked, left(ledger)) == (1, 1)

    monkeypatch.setattr(Memory, "is_unavailable", False)
    sent(ledger, revoker)
    assert left(ledger) == 0
    assert (app.AsyncResult(run).state, str(app.AsyncResult(run).result)) == (
        "REVOKED",
        "cancelled: by hand",
    )


def test_what_it_does_not_store_is_given_up_in_the_end(
    app: Celery, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, revoker = cancelled(ledger), Revoker(app, ledger)
    monkeypatch.setattr(Memory, "is_unavailable", True)
    with capture_logs() as lines:
        revoker.look(ledger.now() + GIVE_UP_AFTER + timedelta(seconds=1))
        wait_until(lambda: left(ledger) == 0)
    [line] = lines
    assert (line["event"], line["run"], line["log_level"]) == ("revocation not sent", run, "error")


def test_some_failures_end_a_look(
    app: Celery, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2 * MOST_FAILURES):
        cancelled(ledger, number)
    monkeypatch.setattr(Memory, "is_unavailable", True)
    monkeypatch.setattr(notify, "PAUSE_SECONDS", 60.0)
    revoker = Revoker(app, ledger)
    with capture_logs() as lines:
        sent(ledger, revoker)
        sent(ledger, revoker)  # within the pause
    assert (len(lines), left(ledger)) == (MOST_FAILURES, 2 * MOST_FAILURES)
