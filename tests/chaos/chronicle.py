"""What was done to the processes, and when: the kills, and the windows that excuse delays."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from tests.chaos.intervals import Interval


class Kind(StrEnum):
    """REDIS: from its kill until it answers again. FROZEN: a worker and its children, between
    SIGSTOP and SIGCONT. NO_LEADER: from a fault of a beat, or of Redis, until a beat leads."""

    REDIS = "redis away"
    FROZEN = "worker frozen"
    NO_LEADER = "no leader"


@dataclass(frozen=True, slots=True)
class Window:
    """group: the process group that was frozen; 0 for what is nobody's."""

    kind: Kind
    interval: Interval
    group: int = 0


@dataclass(slots=True)
class OpenWindow:
    kind: Kind
    start: float
    group: int = 0


@dataclass
class Chronicle:
    """kills: signals that end something, by fault; pauses: those that only stop it.

    unasked: ends of processes that nobody had told to end. strikes: when each fault began, in the
    time of the logs.
    """

    kills: Counter[str] = field(default_factory=Counter)
    unasked: Counter[str] = field(default_factory=Counter)
    pauses: Counter[str] = field(default_factory=Counter)
    strikes: list[tuple[str, str]] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    open_windows: list[OpenWindow] = field(default_factory=list)

    def struck(self, fault: str, is_kill: bool) -> None:
        counter = self.kills if is_kill else self.pauses
        counter[fault] += 1
        self.strikes.append((datetime.now(UTC).isoformat(), fault))

    def opened(self, kind: Kind, group: int = 0) -> OpenWindow:
        window = OpenWindow(kind, time.monotonic(), group)
        self.open_windows.append(window)
        return window

    def closed(self, window: OpenWindow) -> None:
        self.open_windows.remove(window)
        interval = Interval(window.start, time.monotonic())
        self.windows.append(Window(window.kind, interval, window.group))

    def close_all(self) -> None:
        for window in list(self.open_windows):
            self.closed(window)
