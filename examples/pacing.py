"""Long work that leaves the machine to others: slices with short rests between them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def spread(items: Sequence[Item], seconds: float) -> Iterator[Item]:
    """The items one by one, evenly over `seconds`; without rests when the work is slower."""
    began = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        time.sleep(max(0.0, began + seconds * done / len(items) - time.monotonic()))
