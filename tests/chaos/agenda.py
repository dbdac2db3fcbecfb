"""What is to be done later, in the one thread that starts processes."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from itertools import count


class Agenda:
    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._entries, (time.monotonic() + seconds, next(self._order), action))

    def run_due(self) -> None:
        now = time.monotonic()
        while self._entries and self._entries[0][0] <= now:
            heapq.heappop(self._entries)[2]()

    @property
    def is_empty(self) -> bool:
        return not self._entries
