"""The watchdog ends a process that hangs, and no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from supervisor.beat.scheduler import EXIT_STATUS, Watchdog
from tests.acceptance import warm
from tests.waiting import status_of

HANGS = """
import time
from supervisor.beat.scheduler import Watchdog
Watchdog(0.5).start()
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
    frozen = threading.Event()
    assert not frozen.wait(1.0)
    process.send_signal(signal.SIGCONT)
    assert not frozen.wait(0.1)
    assert process.poll() is None
    assert status_of(process, 30) == EXIT_STATUS
    process.stdout.close()


def test_a_dog_that_is_fed_does_not_bite() -> None:
    bitten = threading.Event()
    dog = Watchdog(0.3, bitten.set)
    dog.start()
    for _ in range(10):
        dog.feed()
        assert not bitten.wait(0.05)
    dog.stop()
    assert not dog.is_alive()
