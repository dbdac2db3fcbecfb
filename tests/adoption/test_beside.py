"""What watches an app from beside: its own tests, Sentry, Flower, an exporter of events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from celery import Celery
from celery.events import EventReceiver
from celery.events.state import State
from kombu import Connection

from tests.adoption.conftest import Deploy
from tests.adoption.foreign_app import ForeignApp
from tests.ports import free_port
from tests.waiting import scaled, wait_until
from tests.written import whole_lines


@pytest.mark.parametrize("which", ["eager", "worker"])
@pytest.mark.parametrize("is_supervised", [False, True], ids=["plain", "supervised"])
def test_an_apps_own_tests_pass(which: str, is_supervised: bool, deploy: Deploy) -> None:
    foreign_app = deploy("tested", is_supervised)
    environ = {**foreign_app.environment(), **({"EAGER": "1"} if which == "eager" else {})}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    done = subprocess.run(
        [*command, "--rootdir", ".", "own_tests.py", "-k", which],
        cwd=foreign_app.directory,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Exporter(EventReceiver):
    """What an exporter of Celery's metrics does: it listens to the events of tasks, and counts."""

    def __init__(self, app: Celery, connection: Connection) -> None:
        super().__init__(connection, handlers={"*": self.hear}, app=app)
        self.counted: Counter[str] = Counter()
        self.events: list[dict[str, Any]] = []
        self.listens = threading.Event()
        self._state = State()

    def hear(self, event: dict[str, Any]) -> None:
        self._state.event(event)
        if event["type"].startswith("task-"):
            self.events.append(event)
            self.counted[f"{event['type']} {self._state.tasks[event['uuid']].name}"] += 1

    def on_consume_ready(self, *given: Any, **named: Any) -> None:
        super().on_consume_ready(*given, **named)
        self.listens.set()


@contextmanager
def exporter_at(url: str) -> Iterator[Exporter]:
    app = Celery(broker=url, set_as_current=False)
    with app.connection_for_read() as connection:
        exporter = Exporter(app, connection)
        listener = threading.Thread(target=exporter.capture)
        listener.start()
        try:
            assert exporter.listens.wait(scaled(10))
            yield exporter
        finally:
            exporter.should_stop = True
            listener.join()


def watched(foreign_app: ForeignApp) -> tuple[list[str], Counter[str], dict[str, str]]:
    """What Sentry, an exporter and Flower saw of the app's calls."""
    port = free_port()
    foreign_app.environ = {"FLOWER_UNAUTHENTICATED_API": "true"}
    with exporter_at(foreign_app.url) as exporter:
        foreign_app.worker("-E", "-c", "1")
        foreign_app.start("flower", "flower", f"--port={port}", "--address=127.0.0.1", is_cold=True)
        wait_until(lambda: hears_workers(port), 60)
        foreign_app.results(foreign_app.send())
        wait_until(lambda: exporter.counted.keys() >= ENDS, 30)
        wait_until(lambda: sorted((tasks_in_flower(port) or {}).values()) == ENDED, 30)
        flower = tasks_in_flower(port) or {}
    # A transaction ends after its task, and after what tells of that.
    wait_until(lambda: sum("transaction " in line for line in seen_by_sentry(foreign_app)) > 1, 30)
    return seen_by_sentry(foreign_app), exporter.counted, flower


ENDS = {"task-failed breaks", "task-succeeded works"}
ENDED = ["FAILURE", "SUCCESS"]


def tasks_in_flower(port: int) -> dict[str, str] | None:
    """State by name; None while Flower does not answer."""
    rows = rows_of_flower(port)
    return None if rows is None else {row["name"]: row["state"] for row in rows.values()}


def rows_of_flower(port: int) -> dict[str, dict[str, Any]] | None:
    """What it lists, by id; None while it does not answer."""
    return from_flower(port, "api/tasks")


def hears_workers(port: int) -> bool:
    """Whether Flower has got an event of a worker. It answers before it listens to events."""
    return bool((from_flower(port, "workers?json=1") or {}).get("data"))


def from_flower(port: int, path: str) -> dict[str, Any] | None:
    try:
        with urlopen(f"http://127.0.0.1:{port}/{path}") as answer:
            return dict(json.load(answer))
    except (URLError, ConnectionError):
        return None


def seen_by_sentry(foreign_app: ForeignApp) -> list[str]:
    """Without what Flower, which has it too, says of the requests of this test."""
    lines = map(json.loads, whole_lines(foreign_app.directory / "sentry"))
    return sorted(
        f"{kind} {transaction} {errors}"
        for kind, transaction, errors, _ in lines
        if not transaction.startswith("flower.")
    )


def test_those_who_watch_see_the_same(deploy: Deploy) -> None:
    pytest.importorskip("sentry_sdk")
    pytest.importorskip("flower")
    plain = watched(deploy("watched", is_supervised=False))
    foreign_app = deploy("watched", is_supervised=True)
    assert watched(foreign_app) == plain
    foreign_app.schedule("jobs: {own: {every: 1s, task: works}}\n")
    foreign_app.start("beat", "beat", "-l", "info")
    wait_until(lambda: "own" in foreign_app.ledger.scheduled(), 30)
    wait_until(lambda: foreign_app.ledger.job("own").counters.get("finished:succeeded"), 30)
    wait_until(lambda: seen_by_sentry(foreign_app).count("transaction works []") > 1, 30)


# A plain task, and the same one as a job's run and as a guarded call.

JOB = """
jobs:
  own: {task: scheduled, every: 24h, paused: true, args: [2], kwargs: {text: "hellö"}}
"""

CALL = """
import contextlib, json, listed
with listed.request() if {is_request} else contextlib.nullcontext("") as trace:
    print(json.dumps([listed.{name}.delay({number}, text='hellö').id, trace]))
"""

#: Those of a task, with the number by which its body knows that it may end.
NUMBERS = {"called": 1, "scheduled": 2}

#: What tells of the process or of the moment: only whether it is there is compared.
OF_THE_MOMENT = frozenset(
    {
        *("timestamp", "local_received", "clock", "pid", "worker_pid", "time_start", "runtime"),
        *("received", "started", "succeeded", "sent"),
    }
)


def asked_for(foreign_app: ForeignApp, name: str) -> tuple[str, str]:
    """The id of a task, or of the run of the job that it is, and the trace of who called it."""
    if name == "scheduled" and foreign_app.is_supervised:
        return foreign_app.ledger.trigger(foreign_app.ledger.spec("own")).id, ""
    is_request = name == "called"  # a scheduler calls outside of any
    code = CALL.format(name=name, number=NUMBERS[name], is_request=is_request)
    id, trace = foreign_app.code(code)
    return id, trace


def with_job(foreign_app: ForeignApp) -> ForeignApp:
    """Returns once a beat has loaded the job, if there is one."""
    if foreign_app.is_supervised:
        foreign_app.schedule(JOB)
        foreign_app.start("beat", "beat", "-l", "info")
        keys = foreign_app.ledger.keys
        wait_until(lambda: "own" in foreign_app.ledger.scheduled(), 30)
        message, job = keys.message("own"), keys.job("own")
        client = foreign_app.ledger.client
        wait_until(lambda: client.exists(message) or client.hexists(job, "apart"), 30)
    return foreign_app


def shown(foreign_app: ForeignApp) -> dict[str, Any]:
    """What `inspect`, `events` and Flower show of each task."""
    port, found = free_port(), dict[str, Any]()
    foreign_app.environ = {"FLOWER_UNAUTHENTICATED_API": "true"}
    with_job(foreign_app)
    with exporter_at(foreign_app.url) as exporter:
        foreign_app.worker("-E", "-c", "1")
        foreign_app.start("flower", "flower", f"--port={port}", "--address=127.0.0.1", is_cold=True)
        wait_until(lambda: hears_workers(port), 60)
        for name, number in NUMBERS.items():
            id, _ = asked_for(foreign_app, name)
            active = wait_until(lambda id=id: active_row(foreign_app, id), 30)  # type: ignore[misc]
            (foreign_app.directory / f"may-end-{number}").touch()
            events = wait_until(lambda id=id: events_of(exporter, id), 30)  # type: ignore[misc]
            row = wait_until(lambda id=id: ended_in_flower(port, id), 30)  # type: ignore[misc]
            found[name] = [alike_row(each, id) for each in (active, *events, row)]
    return found


def active_row(foreign_app: ForeignApp, id: str) -> dict[str, Any] | None:
    """That of the task in what `celery inspect active` gives."""
    with Celery(broker=foreign_app.url, set_as_current=False) as app:
        replies = app.control.inspect(limit=1, timeout=scaled(2)).active() or {}
    rows = [row for of_worker in replies.values() for row in of_worker if row["id"] == id]
    return rows[0] if rows else None


def events_of(exporter: Exporter, id: str) -> list[dict[str, Any]] | None:
    """Those of the task, once there is one of its end."""
    events = [event for event in exporter.events if event["uuid"] == id]
    return events if events and events[-1]["type"] == "task-succeeded" else None


def ended_in_flower(port: int, id: str) -> dict[str, Any] | None:
    row = (rows_of_flower(port) or {}).get(id)
    return row if row and row["state"] == "SUCCESS" else None


def alike_row(row: Any, id: str) -> Any:
    """What stays the same from one task to the next."""
    match row:
        case dict():
            return {
                key: bool(value) if key in OF_THE_MOMENT else alike_row(value, id)
                for key, value in row.items()
            }
        case list():
            return [alike_row(value, id) for value in row]
        case str():
            return row.replace(id, "<id>")
        case _:
            return row


def test_runs_are_shown_as_plain_tasks(deploy: Deploy) -> None:
    pytest.importorskip("flower")
    plain = shown(deploy("listed", is_supervised=False))
    assert [row["type"] for row in plain["called"][1:-1]] == EVENTS
    assert shown(deploy("listed", is_supervised=True)) == plain


EVENTS = ["task-received", "task-started", "task-succeeded"]


# The headers of libraries that record traces.

#: What a supervised message has more.
SUPERVISED = {"supervisor", "periodic_task_name"}


def headers(foreign_app: ForeignApp, traced: str) -> dict[str, dict[str, Any]]:
    """Those of the message of each task, by its name; no worker takes them.

    traced: the one that carries the trace of who called.
    """
    with_job(foreign_app)
    traces = {name: asked_for(foreign_app, name)[1] for name in NUMBERS}
    wait_until(lambda: foreign_app.broker.llen("celery") == len(NUMBERS), 30)
    texts = map(json.loads, foreign_app.broker.lrange("celery", 0, -1))
    found = {text["headers"]["task"]: text["headers"] for text in texts}
    assert traces["called"]
    assert traces["called"] in found["called"][traced]
    return found


def names(said: dict[str, Any]) -> dict[str, Any]:
    """The names of headers, and of those that are nested in one, but for the supervisor's."""
    return {
        name: names(value) if isinstance(value, dict) else ""
        for name, value in said.items()
        if name not in SUPERVISED
    }


@pytest.mark.parametrize(
    ("tracer", "package", "traced"),
    [
        ("sentry", "sentry_sdk", "sentry-trace"),
        ("opentelemetry", "opentelemetry.instrumentation.celery", "traceparent"),
    ],
)
def test_runs_have_the_headers_of_a_tracer(
    deploy: Deploy, tracer: str, package: str, traced: str
) -> None:
    pytest.importorskip(package)
    plain = headers(deploy("listed", is_supervised=False, TRACER=tracer), traced)
    ours = headers(deploy("listed", is_supervised=True, TRACER=tracer), traced)
    assert {task: names(said) for task, said in ours.items()} == {
        task: names(said) for task, said in plain.items()
    }
