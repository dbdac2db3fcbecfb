"""Waiting in tests: for a condition, with a deadline, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


#: What comes soon is seen soon. Later on, to look more often would take time from what is awaited.
SECONDS_AT_FIRST = 0.02


def wait_until(predicate: Callable[[], T], timeout: float = 10, every: float = 0.06) -> T:
    """The first true answer; fails the test when there is none within `timeout` seconds.

    every: seconds between two looks, after the first second.
    """
    started = time.monotonic()
    while True:
        answer = predicate()
        if answer:
            return answer
        waited = time.monotonic() - started
        if waited > timeout:
            raise AssertionError(f"not within {timeout} s: {predicate}")
        time.sleep(SECONDS_AT_FIRST if waited < 1 else every)
