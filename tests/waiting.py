"""Waiting in tests: for a condition, with a deadline, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], timeout: float = 10, every: float = 0.02) -> T:
    """The first true answer; fails the test when there is none within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        answer = predicate()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {predicate}")
        time.sleep(every)
