"""A call that ends before it begins: what is left for its callers, and sent to their backend."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from celery import Celery
from celery.backends.base import KeyValueStoreBackend

from supervisor.app import supervise
from supervisor.features.outbound.sender import GIVE_UP_AFTER, Outbound
from supervisor.features.outbound.step import Revocations
from supervisor.features.outbound.store import Kind, LedgerOutbox, RunReport
from supervisor.job.run import Run, RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import MOST_REVOCATIONS
from supervisor.ledger.run_request import RunRequest
from supervisor.testing import comes_due, lease_runs_out
from tests.damage import fill
from tests.jobs import begin, job, try_often
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
    app = supervise(Celery("revoking", broker=redis_url, backend=f"{__name__}:Memory"))
    yield app
    app.close()


def cancelled(ledger: Ledger, number: int = 0) -> str:
    run = ledger.trigger(job(ledger, f"job-{number}"), RunRequest(is_awaited=True))
    ledger.cancel(run.id, "by hand")
    return run.id


def left(ledger: Ledger) -> int:
    return len(revocations(ledger))


def sent(app: Celery, ledger: Ledger, later: timedelta = timedelta()) -> None:
    """All that can be sent then is."""
    senders = {Kind.REVOCATION: Revocations(app, ledger).send}
    Outbound(LedgerOutbox(ledger), senders).send_due(ledger.now() + later)
    wait_until(
        lambda: not any(thread.name == "supervisor-outbound" for thread in threading.enumerate())
    )


def test_a_backend_that_is_unavailable_gets_it_later(
    app: Celery, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = cancelled(ledger)
    monkeypatch.setattr(Memory, "is_unavailable", True)
    sent(app, ledger)
    assert (Memory.asked, left(ledger)) == (1, 1)

    monkeypatch.setattr(Memory, "is_unavailable", False)
    sent(app, ledger, later=timedelta(minutes=1))
    assert left(ledger) == 0
    assert (app.AsyncResult(run).state, str(app.AsyncResult(run).result)) == (
        "REVOKED",
        "cancelled: by hand",
    )


def test_what_it_does_not_store_is_given_up_in_the_end(
    app: Celery, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = cancelled(ledger)
    monkeypatch.setattr(Memory, "is_unavailable", True)
    with capture_logs() as lines:
        sent(app, ledger, later=GIVE_UP_AFTER + timedelta(seconds=1))
    [line] = lines
    assert (line["event"], line["run"], line["log_level"]) == ("revocation dropped", run, "error")
    assert left(ledger) == 0


# Which calls leave a revocation


def call(ledger: Ledger, spec: JobSpec, *, is_awaited: bool = True, **said: Any) -> Run:
    return ledger.trigger(spec, RunRequest(is_awaited=is_awaited, **said))


def revocations(ledger: Ledger) -> list[tuple[str, str, str]]:
    keys = ledger.client.keys(ledger.keys.to_send("revocation *"))
    texts = [text for key in keys for text in ledger.client.lrange(key, 0, -1)]
    found = [RunReport.model_validate_json(text) for text in texts]
    return [(each.run, each.outcome, each.reason) for each in found]


def test_a_call_that_is_skipped_while_it_waits_is_revoked(ledger: Ledger) -> None:
    spec = job(ledger, overlap="queue_all", max_wait="1h")
    call(ledger, spec)
    waits = call(ledger, spec)
    assert revocations(ledger) == []
    lease_runs_out(ledger, waits.id)
    ledger.rescue()
    assert revocations(ledger) == [(waits.id, "skipped", "wait_expired")]


def test_a_call_that_is_cancelled_before_it_begins_is_revoked(ledger: Ledger) -> None:
    spec = job(ledger, overlap="queue_all")
    queued, waits = call(ledger, spec), call(ledger, spec)
    later = call(ledger, spec, delay=timedelta(hours=1))
    for run in (later, waits, queued):
        ledger.cancel(run.id, "by hand")
    assert revocations(ledger) == [
        (run.id, "cancelled", "by hand") for run in (later, waits, queued)
    ]


def test_a_call_that_expired_is_revoked(ledger: Ledger) -> None:
    spec = job(ledger)
    queued = call(ledger, spec)
    lease_runs_out(ledger, queued.id)
    ledger.rescue()
    assert revocations(ledger) == [(queued.id, "expired", "start deadline passed")]


def test_a_call_that_another_replaces_is_revoked(ledger: Ledger) -> None:
    spec = job(ledger, overlap="replace")
    queued = call(ledger, spec)
    second = call(ledger, spec)
    assert revocations(ledger) == [(queued.id, "replaced", f"replaced by {second.id}")]


def test_a_call_whose_retry_is_cancelled_is_revoked(ledger: Ledger) -> None:
    spec = job(ledger, max_retries=5)
    failing = call(ledger, spec)
    try_often(ledger, failing.id, 2)
    ledger.cancel(failing.id, "enough")
    assert revocations(ledger) == [(failing.id, "cancelled", "enough")]


def test_a_delayed_call_that_meets_a_running_one_is_revoked(ledger: Ledger) -> None:
    spec = job(ledger, overlap="skip")
    later = call(ledger, spec, delay=timedelta(hours=1))
    begin(ledger, call(ledger, spec).id)
    comes_due(ledger, later.id)
    ledger.rescue()
    assert revocations(ledger) == [(later.id, "skipped", "overlap")]


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "timed_out", "cancelled"])
def test_a_call_that_a_worker_began_is_not_revoked(ledger: Ledger, outcome: str) -> None:
    spec = job(ledger)
    run = call(ledger, spec)
    begin(ledger, run.id)
    if outcome == "cancelled":
        ledger.cancel(run.id, "by hand")
    ledger.finish(run.id, "token", RunState(outcome))
    assert revocations(ledger) == []


def test_a_call_that_was_skipped_at_once_is_not_revoked_later(ledger: Ledger) -> None:
    """It is revoked at once."""
    spec = job(ledger, overlap="skip")
    call(ledger, spec)
    assert call(ledger, spec).state == "skipped"
    assert revocations(ledger) == []


def test_a_call_whose_worker_was_lost_is_not_revoked(ledger: Ledger) -> None:
    """The worker's main process has stored its result."""
    spec = job(ledger, on_crash="rerun")
    run = call(ledger, spec)
    begin(ledger, run.id)
    ledger.report_dead(run.id, "token", "killed")
    ledger.cancel(run.id, "by hand")
    assert revocations(ledger) == []


def test_a_call_that_no_caller_waits_for_is_not_revoked(ledger: Ledger) -> None:
    spec = job(ledger)
    ledger.cancel(call(ledger, spec, is_awaited=False).id, "by hand")
    assert revocations(ledger) == []


def test_the_newest_revocations_are_kept(ledger: Ledger) -> None:
    spec = job(ledger)
    key = ledger.keys.to_send(f"revocation {spec.name}")
    fill(ledger, key, "{}", MOST_REVOCATIONS)
    ledger.cancel(call(ledger, spec).id, "by hand")
    assert ledger.client.llen(key) == MOST_REVOCATIONS
    assert "by hand" in ledger.client.lindex(key, -1)
