"""How often Python looks for reference cycles where thousands of jobs are dealt with at once.

A scrape and an emission make hundreds of thousands of objects, few of which are part of a cycle.
Looking at them as often as Python does by default takes a tenth of the time.
"""

from __future__ import annotations

import gc

RARELY = (100_000, 50, 100)


def collect_rarely() -> None:
    """From now on, in the whole process."""
    gc.set_threshold(*RARELY)
