"""What a scheduler starts, and when."""

from __future__ import annotations

import threading
from pathlib import Path

from celery import Celery

from supervisor.app import supervise
from supervisor.beat.scheduler import SupervisedScheduler


def test_a_scheduler_that_never_ticks_starts_no_threads(redis_url: str, tmp_path: Path) -> None:
    """Celery makes one for its banner: a watchdog of it would starve, and end a healthy beat."""
    app = supervise(Celery("idle", broker=redis_url), schedules=tmp_path)
    before = set(threading.enumerate())
    idle = SupervisedScheduler(app, lazy=True)
    assert set(threading.enumerate()) == before
    ticking = SupervisedScheduler(app, lazy=True)
    for _ in range(3):
        ticking.tick()
    names = sorted(thread.name for thread in set(threading.enumerate()) - before)
    assert names == ["supervisor-watchdog"]
    ticking.close()
    assert idle is not ticking
    app.close()
