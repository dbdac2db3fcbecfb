"""A worker that cannot be supervised does not start: Celery would run the jobs without a guard."""

from __future__ import annotations

import subprocess
import sys

import pytest
from celery import Celery, signals

from supervisor.app import supervise


class Worker:
    def __init__(self, app: Celery) -> None:
        self.app = app


def test_a_worker_ends_whose_side_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a library of another version; Celery only logs an error of a signal's handler."""
    app = supervise(Celery("proj", broker="redis://127.0.0.1:1", set_as_current=False))
    monkeypatch.setitem(sys.modules, "supervisor.worker.startup", None)
    with pytest.raises(SystemExit, match="the worker cannot be supervised: "):
        signals.worker_init.send(sender=Worker(app))


def test_the_workers_side_is_imported_with_an_older_billiard() -> None:
    """billiard 4.2, which Celery 5.4 to 5.6 allow, has fewer names than 4.3."""
    code = (
        "import billiard.pool, billiard.common as common\n"
        "del common.terminate_handler_fired, common.clear_terminate_handler_fired\n"
        "import supervisor.worker.startup\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
