"""Starts and ends of runs reach a real HTTP server, whatever it answers, and hold up nobody."""

from __future__ import annotations

import itertools
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest

from supervisor.features.outbound import http, sender
from supervisor.features.outbound.answer import Answer
from supervisor.features.outbound.sender import GIVE_UP_AFTER, MOST_THREADS, Outbound, Result
from supervisor.features.outbound.store import Kind, LedgerOutbox, RunReport, Unsent
from supervisor.features.pings.step import Pings
from supervisor.job.changes import edits
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import MOST_PINGS
from supervisor.testing import has_run_for, lease_runs_out
from tests.damage import fill
from tests.jobs import at_work, begin, job, run_id, ticks
from tests.listener import Listener, listening
from tests.logged import capture_logs
from tests.waiting import scaled, wait_until


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as started:
        yield started


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "TIMEOUT_SECONDS", scaled(5))


def pinged(ledger: Ledger, listener: Listener, **keys: object) -> JobSpec:
    return job(ledger, ping_url=f"{listener.url}/secret", **keys)


def waiting(ledger: Ledger, spec: JobSpec) -> list[RunReport]:
    texts = ledger.client.lrange(ledger.keys.to_send(f"ping {spec.name}"), 0, -1)
    return [RunReport.model_validate_json(text) for text in texts]


def outbox(ledger: Ledger, spec: JobSpec) -> list[str]:
    return [f"{report.kind.value} {report.outcome}" for report in waiting(ledger, spec)]


def counted(ledger: Ledger) -> dict[str, str]:
    return ledger.client.hgetall(ledger.keys.outbound_counts)


def outbound(ledger: Ledger) -> Outbound:
    return Outbound(LedgerOutbox(ledger), {Kind.PING: Pings(ledger).send})


def quiet() -> bool:
    return not any(thread.name == "supervisor-outbound" for thread in threading.enumerate())


def sent(ledger: Ledger, by: Outbound | None = None, later: timedelta = timedelta()) -> None:
    """All that can be sent then is."""
    (by or outbound(ledger)).send_due(ledger.now() + later)
    wait_until(quiet)


def ended(ledger: Ledger, spec: JobSpec, second: int, outcome: RunState, reason: str = "") -> None:
    at_work(ledger, spec, second)
    ledger.finish(run_id(spec, second), "token", outcome, reason)


def test_a_ping_says_how_long_the_attempt_took(ledger: Ledger, listener: Listener) -> None:
    spec = pinged(ledger, listener)
    at_work(ledger, spec, 0)
    has_run_for(ledger, run_id(spec, 0), timedelta(seconds=90))
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    start, end = waiting(ledger, spec)
    assert start.lasted < timedelta(seconds=90) <= end.lasted


def test_start_and_end_are_told_in_order_with_one_id_and_the_facts(
    ledger: Ledger, listener: Listener
) -> None:
    spec = pinged(ledger, listener)
    ended(ledger, spec, 0, RunState.FAILED, "ValueError: boom")
    ended(ledger, spec, 1, RunState.SUCCEEDED)
    sent(ledger)
    assert listener.paths == ["/secret/start", "/secret/fail", "/secret/start", "/secret"]
    ids = [parse_qs(urlsplit(path).query)["rid"][0] for path, _ in listener.heard]
    assert [str(UUID(rid)) for rid in ids] == [ids[0], ids[0], ids[2], ids[2]]
    assert ids[0] != ids[2]
    body = listener.heard[1][1]
    for line in (f"run: {run_id(spec, 0)}", "outcome: failed", "reason: ValueError: boom"):
        assert line in body.splitlines()
    assert outbox(ledger, spec) == []


@pytest.mark.parametrize("text", ["no JSON", "{}", '{"run": "nightly@1", "kind": "shout"}'])
def test_an_entry_that_cannot_be_read_is_dropped_and_holds_up_nothing(
    ledger: Ledger, listener: Listener, text: str
) -> None:
    spec = pinged(ledger, listener)
    ended(ledger, spec, 0, RunState.SUCCEEDED)
    ledger.client.lpush(ledger.keys.to_send(f"ping {spec.name}"), text)
    with capture_logs() as lines:
        sent(ledger)
    assert listener.paths == ["/secret/start", "/secret"]
    assert outbox(ledger, spec) == []
    assert [line["event"] for line in lines] == ["ping dropped"]


def test_a_job_without_an_address_writes_nothing(ledger: Ledger) -> None:
    spec = job(ledger)
    ended(ledger, spec, 0, RunState.SUCCEEDED)
    assert outbox(ledger, spec) == []
    assert "ping" not in spec.rules().json_fields


def test_attempts_are_one_run_and_a_dead_worker_is_told_by_the_rescuer(
    ledger: Ledger, listener: Listener
) -> None:
    spec = pinged(ledger, listener, max_crashes=2)
    ledger.admit(ticks(spec, 0))
    for token in ("first", "second"):
        begin(ledger, run_id(spec, 0), token)
        lease_runs_out(ledger, run_id(spec, 0))
        ledger.rescue()
    assert outbox(ledger, spec) == ["start started", "fail lost"]


def test_a_run_that_nobody_began_and_one_that_was_cancelled(
    ledger: Ledger, listener: Listener
) -> None:
    spec = pinged(ledger, listener)
    ledger.admit(ticks(spec, 0))
    lease_runs_out(ledger, run_id(spec, 0))
    ledger.rescue()
    ledger.admit(ticks(spec, 1))
    ledger.cancel(run_id(spec, 1), "enough")
    assert outbox(ledger, spec) == ["fail expired", "log cancelled"]


def test_a_run_of_several_steps_is_told_once(ledger: Ledger, listener: Listener) -> None:
    steps = [{"task": "load", "priority": 2}, {"task": "sum", "priority": 1}]
    spec = pinged(ledger, listener, task=None, steps=steps)
    ledger.admit(ticks(spec, 0))
    for step in ("load", "sum"):
        begin(ledger, f"{run_id(spec, 0)}~{step}")
        ledger.finish(f"{run_id(spec, 0)}~{step}", "token", RunState.SUCCEEDED)
    assert outbox(ledger, spec) == ["start started", "success succeeded"]


@pytest.mark.parametrize("status", [500, 429, 401, 403])
def test_what_may_pass_is_sent_again_later(ledger: Ledger, listener: Listener, status: int) -> None:
    spec, by = pinged(ledger, listener), outbound(ledger)
    listener.status = status
    ended(ledger, spec, 0, RunState.SUCCEEDED)
    sent(ledger, by)
    sent(ledger, by)  # not before its time
    assert listener.paths == ["/secret/start"]
    assert outbox(ledger, spec) == ["start started", "success succeeded"]
    listener.status = 200
    sent(ledger, by, later=timedelta(seconds=30))
    assert listener.paths[1:] == ["/secret/start", "/secret"]
    assert counted(ledger) == {"sent:ping": "2"}
    assert not ledger.client.exists(ledger.keys.outbound, ledger.keys.unsent)


def test_waits_double_and_a_beat_that_begins_keeps_to_the_last(
    ledger: Ledger, listener: Listener
) -> None:
    spec, by = pinged(ledger, listener), outbound(ledger)
    listener.status = 503
    at_work(ledger, spec, 0)
    later, waits = timedelta(), (5, 10, 20, 40, 80, 160, 300, 300)
    for wait in waits:
        with capture_logs() as lines:
            sent(ledger, by, later)
        [line] = lines
        assert (line["event"], line["again_in"]) == ("ping not sent", wait)
        tried, later = later, later + timedelta(seconds=wait)
    sent(ledger, outbound(ledger), tried + timedelta(seconds=100))
    assert len(listener.heard) == len(waits)


@pytest.mark.parametrize("status", [404, 302])
def test_what_is_refused_is_dropped_counted_and_logged_without_the_address(
    ledger: Ledger, listener: Listener, status: int
) -> None:
    spec = pinged(ledger, listener)
    listener.status = status
    ended(ledger, spec, 0, RunState.SUCCEEDED)
    with capture_logs() as lines:
        sent(ledger)
    assert listener.paths == ["/secret/start", "/secret"]
    assert outbox(ledger, spec) == []
    assert counted(ledger) == {"dropped:ping": "2"}
    assert [line["event"] for line in lines] == ["ping dropped", "ping dropped"]
    assert "secret" not in str(lines)


def test_what_is_too_old_is_dropped(ledger: Ledger, listener: Listener) -> None:
    spec = pinged(ledger, listener)
    listener.status = 503
    ended(ledger, spec, 0, RunState.SUCCEEDED)
    for _ in range(2):
        sent(ledger, later=GIVE_UP_AFTER + timedelta(seconds=1))
    assert outbox(ledger, spec) == []
    assert counted(ledger) == {"dropped:ping": "2"}


def test_a_server_that_hangs_holds_up_neither_beat_nor_other_jobs(
    ledger: Ledger, listener: Listener
) -> None:
    with listening() as hanging:
        hanging.hangs = True
        slow, quick = pinged(ledger, hanging), pinged(ledger, listener, name="quick")
        for spec in (slow, quick):
            ended(ledger, spec, 0, RunState.SUCCEEDED)
        by = outbound(ledger)
        started = time.monotonic()
        by.send_due(ledger.now())
        by.send_due(ledger.now())
        assert time.monotonic() - started < scaled(2)
        wait_until(lambda: listener.paths == ["/secret/start", "/secret"])
        hanging.closing.set()
        wait_until(quiet)
        assert hanging.paths == ["/secret/start"]
        assert len(outbox(ledger, slow)) == 2


def drips(connection: socket.socket) -> None:
    for byte in itertools.chain(b"HTTP/1.1 200 OK\r\nX: ", itertools.repeat(120)):
        connection.sendall(bytes([byte]))
        time.sleep(0.1)


def goes_on(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.01)


def adds_headers(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for number in itertools.count():
        connection.sendall(f"X-{number}: x\r\n".encode())
        time.sleep(0.1)


def floods(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


def says_nothing(connection: socket.socket) -> None:
    while connection.recv(1000):
        pass


HOSTILE = (drips, goes_on, adds_headers, floods, says_nothing)


@contextmanager
def hostile(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server that behaves so on each connection, from a thread of its own."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                behave(self.request)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 64

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/secret"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def short_time_outs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "TIMEOUT_SECONDS", 1.0)


@pytest.mark.usefixtures("short_time_outs")
@pytest.mark.parametrize("behave", HOSTILE)
def test_an_exchange_ends_in_time_whatever_the_server_sends(
    ledger: Ledger, behave: Callable[[socket.socket], None]
) -> None:
    with hostile(behave) as url:
        spec = job(ledger, ping_url=url)
        ended(ledger, spec, 0, RunState.SUCCEEDED)
        started = time.monotonic()
        with capture_logs() as lines:
            sent(ledger)
        assert time.monotonic() - started < scaled(3)  # and not for ever
        assert [line["event"] for line in lines] == ["ping not sent"]
        assert len(outbox(ledger, spec)) == 2


def test_slow_servers_leave_threads_to_the_others(ledger: Ledger, listener: Listener) -> None:
    real, is_away, under_way = Pings(ledger), threading.Event(), set[str]()

    def send(entry: Unsent) -> Result:
        if not entry.name.startswith("slow"):
            return real.send(entry)
        under_way.add(entry.name)
        is_away.wait()
        return Result(Answer.UNAVAILABLE)

    for number in range(2 * MOST_THREADS):
        ended(ledger, pinged(ledger, listener, name=f"slow{number}"), 0, RunState.SUCCEEDED)
    by = Outbound(LedgerOutbox(ledger), {Kind.PING: send})
    is_away.set()
    sent(ledger, by)
    assert len(under_way) == 2 * MOST_THREADS
    is_away.clear()
    under_way.clear()
    ended(ledger, pinged(ledger, listener, name="quick"), 0, RunState.SUCCEEDED)
    by.send_due(ledger.now() + timedelta(minutes=1))
    wait_until(lambda: listener.paths == ["/secret/start", "/secret"])
    wait_until(lambda: len(under_way) >= MOST_THREADS / 2)
    assert len(under_way) == MOST_THREADS / 2
    is_away.set()
    wait_until(quiet)


def test_a_thread_that_hangs_is_replaced(
    ledger: Ledger, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it hangs in: a name that is not resolved, a library that waits."""
    ends = threading.Event()
    monkeypatch.setattr(sender, "HANGS_AFTER_SECONDS", 0.5)
    real = Pings(ledger)

    def send(entry: Unsent) -> Result:
        if entry.name.startswith("hangs"):
            ends.wait()
        return real.send(entry)

    for number in range(2 * MOST_THREADS):
        ended(ledger, pinged(ledger, listener, name=f"hangs{number}"), 0, RunState.SUCCEEDED)
    ended(ledger, pinged(ledger, listener, name="quick"), 0, RunState.SUCCEEDED)
    by = Outbound(LedgerOutbox(ledger), {Kind.PING: send})

    def look() -> bool:
        by.send_due(ledger.now())
        return bool(listener.heard)

    wait_until(look, 20)
    hanging = sum(thread.name == "supervisor-outbound" for thread in threading.enumerate())
    assert hanging <= 3 * MOST_THREADS
    ends.set()
    wait_until(quiet, 20)


def test_a_job_that_gave_up_its_address_is_told_nowhere(ledger: Ledger, listener: Listener) -> None:
    spec = pinged(ledger, listener)
    ended(ledger, spec, 0, RunState.SUCCEEDED)
    job(ledger)
    sent(ledger)
    assert (listener.heard, outbox(ledger, spec)) == ([], [])
    assert not counted(ledger)


def test_the_outbox_of_a_job_is_bounded(ledger: Ledger, listener: Listener) -> None:
    spec = pinged(ledger, listener)
    key = ledger.keys.to_send(f"ping {spec.name}")
    fill(ledger, key, "{}", MOST_PINGS)
    ended(ledger, spec, 0, RunState.SUCCEEDED)
    assert ledger.client.llen(key) == MOST_PINGS
    assert counted(ledger) == {"dropped:ping": "2"}


def test_an_address_is_not_shown() -> None:
    before = JobSpec(name="a", task="t", every=60, ping_url="https://hc-ping.com/one?key=two")
    after = JobSpec(name="a", task="t", every=60, ping_url="https://hc-ping.com/three")
    assert "hc-ping" not in repr(before)
    [edit] = edits(before, after)
    assert (edit.old, edit.new) == ("https://hc-ping.com/***", "https://hc-ping.com/***")


@pytest.mark.parametrize(
    "url", ["ftp://a/secret", "https://", "secret", "http://a/b c", "http://a:0/", "http://a/#x", 7]
)
def test_what_is_no_address_is_refused_and_not_repeated(url: object) -> None:
    with pytest.raises(ValueError, match="not an address such as") as refused:
        JobSpec.model_validate({"name": "a", "task": "t", "every": 60, "ping_url": url})
    [detail] = refused.value.errors()  # type: ignore[attr-defined]
    assert "secret" not in str(detail["ctx"]["error"])
