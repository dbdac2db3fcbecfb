"""How long ago something was, on a machine that may have slept since."""

from __future__ import annotations

import time


def clock() -> float:
    """Seconds that go on while the machine sleeps, where there is such a clock.

    The same for all processes of the machine.
    """
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def ms_since(moment: float) -> int:
    """Whole milliseconds since then, by `clock`."""
    return max(0, round(1000 * (clock() - moment)))
