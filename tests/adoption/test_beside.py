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
from tests.adoption.stranger import Stranger
from tests.ports import free_port
from tests.waiting import patience, wait_until
from tests.written import whole_lines


@pytest.mark.parametrize("which", ["eager", "worker"])
@pytest.mark.parametrize("is_supervised", [False, True], ids=["plain", "supervised"])
def test_an_apps_own_tests_pass(which: str, is_supervised: bool, deploy: Deploy) -> None:
    stranger = deploy("tested", is_supervised)
    environ = {**stranger.environment(), **({"EAGER": "1"} if which == "eager" else {})}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    done = subprocess.run(
        [*command, "--rootdir", ".", "own_tests.py", "-k", which],
        cwd=stranger.directory,
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
        self.listens = threading.Event()
        self._state = State()

    def hear(self, event: dict[str, Any]) -> None:
        self._state.event(event)
        if event["type"].startswith("task-"):
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
            assert exporter.listens.wait(patience(10))
            yield exporter
        finally:
            exporter.should_stop = True
            listener.join()


def watched(stranger: Stranger) -> tuple[list[str], Counter[str], dict[str, str]]:
    """What Sentry, an exporter and Flower saw of the app's calls."""
    port = free_port()
    stranger.environ = {"FLOWER_UNAUTHENTICATED_API": "true"}
    with exporter_at(stranger.url) as exporter:
        stranger.worker("-E", "-c", "1")
        stranger.start("flower", "flower", f"--port={port}", "--address=127.0.0.1", is_cold=True)
        wait_until(lambda: tasks_in_flower(port) is not None, 60)
        stranger.results(stranger.send())
        wait_until(lambda: exporter.counted.keys() >= ENDS, 30)
        wait_until(lambda: sorted((tasks_in_flower(port) or {}).values()) == ENDED, 30)
        flower = tasks_in_flower(port) or {}
    # A transaction ends after its task, and after what tells of that.
    wait_until(lambda: sum("transaction " in line for line in seen_by_sentry(stranger)) > 1, 30)
    return seen_by_sentry(stranger), exporter.counted, flower


ENDS = {"task-failed breaks", "task-succeeded works"}
ENDED = ["FAILURE", "SUCCESS"]


def tasks_in_flower(port: int) -> dict[str, str] | None:
    """State by name; None while Flower does not answer."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/tasks") as answer:
            tasks = json.load(answer)
    except (URLError, ConnectionError):
        return None
    return {task["name"]: task["state"] for task in tasks.values()}


def seen_by_sentry(stranger: Stranger) -> list[str]:
    lines = map(json.loads, whole_lines(stranger.directory / "sentry"))
    return sorted(f"{kind} {transaction} {errors}" for kind, transaction, errors, _ in lines)


def test_those_who_watch_see_the_same(deploy: Deploy) -> None:
    pytest.importorskip("sentry_sdk")
    pytest.importorskip("flower")
    plain = watched(deploy("watched", is_supervised=False))
    stranger = deploy("watched", is_supervised=True)
    assert watched(stranger) == plain
    stranger.schedule("jobs: {own: {every: 1s, task: works}}\n")
    stranger.start("beat", "beat", "-l", "info")
    wait_until(lambda: "own" in stranger.ledger.scheduled(), 30)
    wait_until(lambda: stranger.ledger.job("own").counters.get("finished:succeeded"), 30)
    wait_until(lambda: seen_by_sentry(stranger).count("transaction works []") > 1, 30)
