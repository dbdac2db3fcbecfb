"""`supervisor health`, as probes ask."""

from __future__ import annotations

import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from supervisor.ledger.ledger import Ledger
from supervisor.ledger.presence import Attendance, BeatFacts, Broker, WorkerFacts
from tests.ledger.commands import supervisor_at

HOST = socket.gethostname()


@pytest.fixture
def attendance(ledger: Ledger) -> Attendance:
    return Attendance(ledger.client, ledger.keys, Broker("celery", is_ledger=True))


def health(url: str, *words: str) -> tuple[int, str]:
    result = supervisor_at(url)("health", *words)
    return result.exit_code, result.output


def test_a_beat_that_stands_by_is_fine(attendance: Attendance, redis_url: str) -> None:
    assert health(redis_url, "beat") == (1, f"no beat on {HOST} has reported\n")
    attendance.say(BeatFacts(f"{HOST}:1", leads=False, follows=None))
    assert health(redis_url, "beat") == (0, "fine\n")
    attendance.leave()
    assert health(redis_url, "beat")[0] == 1


def test_a_worker_that_consumes_nothing_is_not_fine(attendance: Attendance, redis_url: str) -> None:
    name = f"default@{HOST}"
    assert health(redis_url, "worker", "--name", "default@%h")[0] == 1
    attendance.say(WorkerFacts(name, ("celery",), 2, "digest"), ["a"])
    assert health(redis_url, "worker", "--name", "default@%h") == (0, "fine\n")
    assert health(redis_url, "worker", "--name", "default") == (0, "fine\n")
    assert health(redis_url, "worker", "--name", "other@%h")[0] == 1
    attendance.say(WorkerFacts(name, (), 2, "digest"), ["a"])
    expected = (1, f"worker {name} consumes no queue\n")
    assert health(redis_url, "worker", "--name", "default@%h") == expected


def test_a_worker_that_waits_for_its_broker_is_fine(attendance: Attendance, redis_url: str) -> None:
    facts = WorkerFacts(f"default@{HOST}", (), 2, "digest")
    attendance.say(facts, ["a"], is_waiting=True)
    assert health(redis_url, "worker", "--name", "default") == (0, "fine\n")
    attendance.say(facts, ["a"], fault="its main loop has not turned for 65s")
    code, said = health(redis_url, "worker", "--name", "default")
    assert (code, "does no work: its main loop has not turned" in said) == (1, True)


def test_nobody_is_blamed_when_the_ledger_is_away() -> None:
    code, said = health("redis://127.0.0.1:1/0", "beat")
    assert (code, said.startswith("unknown: the ledger is unavailable")) == (0, True)


@pytest.mark.parametrize(("status", "code"), [(200, 0), (500, 1)])
def test_a_server_answers_for_itself(redis_url: str, status: int, code: int) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.handle_request, daemon=True).start()
        assert health(redis_url, "serve", "--port", str(server.server_port))[0] == code
    assert health(redis_url, "serve", "--port", str(server.server_port))[0] == 1


def test_a_worker_needs_its_name(redis_url: str) -> None:
    assert health(redis_url, "worker")[0] == 2
    assert health(redis_url, "beat", "--name", "x")[0] == 2
