"""A worker or a beat that cannot be supervised does not start: Celery would go on without it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from celery import Celery, signals
from celery.utils.dispatch import Signal

from supervisor.app import supervise


class Program:
    """What Celery gives to the handlers of a signal, of a worker and of a beat."""

    def __init__(self, app: Celery) -> None:
        self.app = app


@pytest.mark.parametrize(
    ("signal", "module"),
    [
        (signals.worker_init, "supervisor.worker.startup"),
        (signals.beat_init, "supervisor.beat.scheduler"),
    ],
    ids=["worker", "beat"],
)
def test_a_program_ends_whose_side_cannot_be_imported(
    signal: Signal, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a library of another version; Celery only logs an error of a signal's handler."""
    app = supervise(Celery("proj", broker="redis://127.0.0.1:1", set_as_current=False))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit, match="this process cannot be supervised: "):
        signal.send(sender=Program(app))


def test_the_workers_side_is_imported_with_an_older_billiard() -> None:
    """billiard 4.2, which Celery 5.4 to 5.6 allow, has fewer names than 4.3."""
    code = (
        "import billiard.pool, billiard.common as common\n"
        "del common.terminate_handler_fired, common.clear_terminate_handler_fired\n"
        "import supervisor.worker.startup\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
