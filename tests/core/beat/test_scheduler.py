"""What a scheduler starts and decides, and the watchdog that ends it when it hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from celery import Celery

from supervisor.app import supervise
from supervisor.beat.emitter import emissions_of
from supervisor.beat.scheduler import SupervisedScheduler
from supervisor.beat.watchdog import EXIT_STATUS, Watchdog
from supervisor.catalog.entries import DueEntry
from supervisor.job.spec import JobSpec
from supervisor.ledger.job_record import Mark
from tests.acceptance import warm
from tests.waiting import let_pass, status_of

# What a scheduler starts, and when


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


# What is due for each of many jobs

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def due(name: str, watermark: datetime) -> DueEntry:
    return DueEntry(name, JobSpec(name=name, task="t", every="1s"), Mark(watermark, None, None))


def test_a_job_that_cannot_be_decided_on_keeps_no_other_from_its_ticks() -> None:
    without_zone = NOW.replace(tzinfo=None)
    entries = [due("broken", without_zone), due("sound", NOW.replace(second=0))]
    found, errors = emissions_of(entries, NOW, lambda spec: spec)
    assert [emission.spec.name for emission in found] == ["sound"]
    assert [*errors] == ["broken"]


# The watchdog ends a process that hangs, and no other

HANGS = """
import time
from supervisor.beat.watchdog import Watchdog
Watchdog(2).start()
print("hangs", flush=True)
time.sleep(60)
"""


def test_a_process_that_hangs_is_ended() -> None:
    assert warm.run(["-c", HANGS], Path.cwd(), os.environ).returncode == EXIT_STATUS


def test_a_process_that_was_frozen_has_all_its_time_when_it_wakes_up() -> None:
    process = subprocess.Popen([sys.executable, "-c", HANGS], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"hangs\n"
    process.send_signal(signal.SIGSTOP)
    let_pass(2.5)
    awake_at = time.monotonic()
    process.send_signal(signal.SIGCONT)
    assert status_of(process, 30) == EXIT_STATUS
    assert time.monotonic() - awake_at > 0.5
    process.stdout.close()


def test_a_dog_that_is_fed_does_not_bite() -> None:
    bitten = threading.Event()
    dog = Watchdog(2, bitten.set)
    dog.start()
    for _ in range(50):
        dog.feed()
        assert not bitten.wait(0.05)
    dog.stop()
    assert not dog.is_alive()
