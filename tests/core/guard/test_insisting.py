"""The end of a run, while the ledger's server is away or will not have it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Self, cast

import pytest
from structlog.typing import EventDict

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.guard.attempt import Attempt
from supervisor.guard.child_table import ChildTable
from supervisor.guard.guard import Guard
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.attempt import GrantedAttempt
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from tests.damage import tear
from tests.jobs import delivery, job, run_id, ticks
from tests.logged import capture_logs
from tests.proxy import proxy_to
from tests.waiting import let_pass, scaled, wait_until

REPORT_TIMEOUT = timedelta(seconds=0.5)


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that the test may stop."""
    with EmbeddedServer(tmp_path / "valkey") as server:
        yield server


@pytest.fixture
def table() -> ChildTable:
    return ChildTable()


class Child:
    """A guard with a run at work, whose end another thread reports."""

    def __init__(self, url: str) -> None:
        self.table = ChildTable()  # as in a worker; this process is its own child here
        self.ledger = Ledger.open(Settings(redis_url=url))
        self.ledger.acknowledge_server()
        self.spec: JobSpec = job(self.ledger)
        self.ledger.admit(ticks(self.spec, 0))
        guard = Guard(
            self.ledger,
            lambda _: None,
            "worker",
            report_timeout=REPORT_TIMEOUT,
            table=self.table,
        )
        self.attempt = Attempt(guard, delivery(run_id(self.spec, 0)))
        assert self.attempt.begin() is None
        self.thread = threading.Thread(target=self._end, daemon=True)
        self.log: list[EventDict] = []

    def _end(self) -> None:
        with capture_logs() as self.log:
            self.attempt.end(RunState.SUCCEEDED)

    def is_insisting(self) -> bool:
        return any(line["event"] == "ledger unavailable" for line in self.log)

    def has_given_up(self) -> bool:
        return any(line["event"] == "end not reported" for line in self.log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.thread.join(scaled(20))
        self.ledger.client.close()

    @property
    def outcomes(self) -> list[str | None]:
        return [attempt.outcome for attempt in self.ledger.run(self.attempt.run_id).attempts]


def test_an_end_is_reported_however_long_the_server_was_away(fragile: EmbeddedServer) -> None:
    with Child(fragile.url) as child:
        fragile.stop()
        child.thread.start()
        wait_until(child.is_insisting, 20)
        let_pass(4 * REPORT_TIMEOUT.total_seconds())
        assert child.thread.is_alive()
        fragile.start()
        child.thread.join(scaled(20))
        assert child.outcomes == ["succeeded"]


def test_an_end_is_given_up_some_time_after_the_worker_was_told_to_stop(
    fragile: EmbeddedServer,
) -> None:
    with Child(fragile.url) as child:
        fragile.stop()
        child.thread.start()
        wait_until(child.is_insisting, 20)
        assert child.thread.is_alive()
        child.table.set_stopping(True)
        child.thread.join(scaled(20))
        assert child.has_given_up()
        # What it could not say is known to who buries it.
        told = child.table.end_of(os.getpid(), "token")
        assert told is not None
        assert told[0] is RunState.SUCCEEDED


def test_an_end_that_the_server_can_never_take_is_given_up(redis_url: str) -> None:
    with Child(redis_url) as child:
        tear(child.ledger, child.attempt.run_id)
        child.thread.start()
        child.thread.join(scaled(20))
        assert child.has_given_up()


def test_an_end_is_reported_once_the_server_has_memory_again(redis_url: str) -> None:
    with Child(redis_url) as child:
        child.ledger.client.config_set("maxmemory", 1)
        try:
            child.thread.start()
            wait_until(child.is_insisting, 20)
            let_pass(2 * REPORT_TIMEOUT.total_seconds())
            assert child.thread.is_alive()
        finally:
            child.ledger.client.config_set("maxmemory", 0)
        child.thread.join(scaled(20))
        assert child.outcomes == ["succeeded"]


def test_the_end_of_another_attempt_is_nobodys(table: ChildTable) -> None:
    table.record_end("token", RunState.FAILED, 1.5)
    assert table.end_of(os.getpid(), "token") == (RunState.FAILED, 1.5)
    assert table.end_of(os.getpid(), "toke") is None
    assert table.end_of(os.getpid() + 1, "token") is None
    assert not table.is_running(os.getpid(), "token")


def test_who_is_at_work_is_so_for_one_attempt(table: ChildTable) -> None:
    table.enter("token", cast(Attempt, None), 1.5, GrantedAttempt(7, 1, 1))
    assert table.is_running(os.getpid(), "token")
    assert not table.is_running(os.getpid(), "the next one's")
    assert table.end_of(os.getpid(), "token") is None
    table.leave("token")
    assert not table.is_running(os.getpid(), "token")


def test_the_main_process_knows_an_end_before_a_server_that_hangs(
    redis_url: str, ledger: Ledger
) -> None:
    with proxy_to(redis_url) as way, Child(way.url) as child:
        way.freeze()
        child.thread.start()
        wait_until(lambda: child.table.end_of(os.getpid(), "token"), 3)
        assert child.log == []
        way.thaw()
