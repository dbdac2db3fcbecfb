"""An axis of time: where moments are on it, and its labels. Places are per cent of the width."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from supervisor.times import DAY
from supervisor.web.clock import zone

MINUTE = timedelta(minutes=1)

STEPS = (
    *(timedelta(seconds=s) for s in (15, 30)),
    *(timedelta(minutes=m) for m in (1, 2, 5, 10, 15, 30)),
    *(timedelta(hours=h) for h in (1, 2, 3, 6, 12, 24)),
)
MOST_LABELS = 8


@dataclass(frozen=True, slots=True)
class Label:
    x: float
    text: str


@dataclass(frozen=True, slots=True)
class Window:
    start: datetime
    end: datetime

    def x(self, moment: datetime) -> float:
        share = (moment - self.start) / (self.end - self.start)
        return round(100 * min(1.0, max(0.0, share)), 3)

    def width(self, start: datetime, end: datetime) -> float:
        return round(max(0.0, self.x(end) - self.x(start)), 3)

    def shows(self, start: datetime, end: datetime) -> bool:
        return end >= self.start and start <= self.end


def labels_of(window: Window) -> Iterable[Label]:
    """Labels at round times of the zone in which times are shown."""
    length = window.end - window.start
    step = next((step for step in STEPS if length / step <= MOST_LABELS), STEPS[-1])
    form = "%b %d" if step >= DAY else "%H:%M" if step >= MINUTE else "%H:%M:%S"
    start = window.start.astimezone(zone())
    midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
    moment = midnight + ((start - midnight) // step + 1) * step
    while moment <= window.end:
        yield Label(window.x(moment), f"{moment:{form}}")
        moment += step
