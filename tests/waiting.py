"""Waiting in tests: for a condition, with a deadline that grows with how busy the machine is.

Deadlines are stated as seconds of a machine with nothing else to do. They last four times as long,
and on a busy machine longer in proportion: a test fails because nothing happens, not because it
happens slowly. So a deadline is no claim of how soon something happens.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

#: What comes soon is seen soon. Later on, to look more often would take time from what is awaited.
SECONDS_AT_FIRST = 0.02

#: A machine that is slower than this has another fault than being busy.
SLOWEST = 16.0

#: A machine may be slow without being busy, or become busy: a virtual one that waits for its host.
AT_LEAST = 4.0

_CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_LOADS = Path("/proc/loadavg")


def slowness() -> float:
    """How many times longer work takes now than on a machine with nothing else to do.

    As many times as there are processes for each CPU that want to run: over the last minute or at
    this moment, whichever is more.
    """
    wanting = os.getloadavg()[0]
    if _LOADS.exists():
        wanting = max(wanting, float(_LOADS.read_text().split()[3].partition("/")[0]))
    return min(max(1.0, wanting / _CPUS), SLOWEST)


def scaled(seconds: float) -> float:
    """What to give as a time-out to a call that waits by itself, and that is not to time out."""
    return seconds * max(slowness(), AT_LEAST)


class Deadline:
    """Over once `seconds` have passed, each of them as long as the machine may have been slow."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._looked_at = time.monotonic()

    def is_over(self) -> bool:
        looked_at, self._looked_at = self._looked_at, time.monotonic()
        self._left -= (self._looked_at - looked_at) / max(slowness(), AT_LEAST)
        return self._left < 0


def wait_until(predicate: Callable[[], T], timeout: float = 10, every: float = 0.06) -> T:
    """The first true answer; fails the test when there is none within `timeout` seconds.

    every: seconds between two looks, after the first second.
    """
    started, deadline = time.monotonic(), Deadline(timeout)
    while True:
        # Asked for before the look: what came in time counts however long the look took.
        is_over = deadline.is_over()
        answer = predicate()
        if answer:
            return answer
        waited = time.monotonic() - started
        if is_over:
            raise AssertionError(f"not within {timeout} s, which were {waited:.0f}: {predicate}")
        time.sleep(SECONDS_AT_FIRST if waited < 1 else every)


def let_pass(seconds: float) -> None:
    """For tests in which nothing is to happen meanwhile."""
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, seconds + 5)


def clear_of(period: float, seconds: float) -> None:
    """Returns once the hour, the minute or another such time is not to turn within so long.

    seconds: on a machine with nothing else to do, as for a deadline.
    """
    needed = scaled(seconds)
    wait_until(lambda: -time.time() % period > needed, 2 * seconds)


def status_of(process: subprocess.Popen[T], timeout: float = 30) -> int:
    """The exit status of a process that is about to end."""
    wait_until(lambda: process.poll() is not None, timeout)
    assert process.returncode is not None
    return process.returncode
