"""Python's collector of reference cycles, kept away from work that makes many objects at once.

Thousands of jobs are hundreds of thousands of objects, none of which is part of a cycle. The
collector would look at them again and again while they become more: a quarter of a scrape.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def left_alone() -> Iterator[None]:
    """No collection starts in here, in any thread; the first one after it makes up for it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
