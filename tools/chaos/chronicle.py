"""What was done to the processes, and when: the kills, and the windows that excuse delays."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from supervisor.guard.lease import SURELY_OVER_SECONDS
from supervisor.ledger.leader import GRACE
from tools.chaos.intervals import Interval
from tools.chaos.jobs import LEASE_TTL


class Kind(StrEnum):
    """REDIS: from its kill until it answers again. HUNG: Redis, between SIGSTOP and SIGCONT.

    OLDER: from the moment of whose state Redis comes back until it does. FROZEN: a worker and its
    children, as HUNG. LINK: while nothing, or no reply, came to a worker from Redis. NO_LEADER:
    from a fault of a beat, or of Redis, until a beat leads. NO_WORKER: while all are starting.
    """

    REDIS = "redis killed"
    HUNG = "redis frozen"
    FROZEN = "worker frozen"
    LINK = "worker cut off"
    OLDER = "ledger older"
    NO_LEADER = "no leader"
    NO_WORKER = "no worker"


#: For so long after such a window nothing begins, or nothing is rescued, on purpose: where no beat
#: has looked for a while, Redis may have been unavailable. A run whose end is lost is renewed for
#: some time, and then has its lease.
GRACE_SECONDS = {
    Kind.REDIS: LEASE_TTL,
    Kind.HUNG: GRACE.total_seconds(),
    Kind.OLDER: SURELY_OVER_SECONDS + 2 * LEASE_TTL,
    Kind.NO_LEADER: GRACE.total_seconds(),
}


@dataclass(frozen=True, slots=True)
class Window:
    kind: Kind
    interval: Interval

    group: int = 0
    """The process group of the worker that it is about; 0 for the others."""

    @property
    def with_grace(self) -> Interval:
        """Until everything may go on."""
        grace = GRACE_SECONDS.get(self.kind, 0)
        return Interval(self.interval.start, self.interval.end + grace)


@dataclass(slots=True)
class OpenWindow:
    kind: Kind
    start: float
    group: int = 0


@dataclass
class Chronicle:
    kills: Counter[str] = field(default_factory=Counter)
    """Signals that end something, by fault."""

    unasked: Counter[str] = field(default_factory=Counter)
    """Ends of processes that no fault had ended."""

    others: Counter[str] = field(default_factory=Counter)
    """Signals that end nothing, by fault."""

    strikes: list[tuple[str, str]] = field(default_factory=list)
    """When each fault began, in the time of the logs."""

    ends: list[tuple[int, float]] = field(default_factory=list)
    """Pids of workers and children, and when they were killed, asked to end, or seen to have ended;
    0 for a message that was lost."""

    windows: list[Window] = field(default_factory=list)
    open_windows: list[OpenWindow] = field(default_factory=list)

    def struck(self, fault: str, is_kill: bool) -> None:
        counter = self.kills if is_kill else self.others
        counter[fault] += 1
        self.strikes.append((datetime.now(UTC).isoformat(), fault))

    def ended(self, pid: int) -> None:
        self.ends.append((pid, time.monotonic()))

    def opened(self, kind: Kind, group: int = 0) -> OpenWindow:
        window = OpenWindow(kind, time.monotonic(), group)
        self.open_windows.append(window)
        return window

    def closed(self, window: OpenWindow) -> None:
        self.open_windows.remove(window)
        interval = Interval(window.start, time.monotonic())
        self.windows.append(Window(window.kind, interval, window.group))

    def is_open(self, kind: Kind) -> bool:
        return any(window.kind is kind for window in self.open_windows)

    def windows_until(self, now: float) -> list[Window]:
        """All of them, as if those that are open ended now."""
        still_open = (Window(w.kind, Interval(w.start, now), w.group) for w in self.open_windows)
        return [*self.windows, *still_open]

    def close_all(self) -> None:
        for window in list(self.open_windows):
            self.closed(window)
