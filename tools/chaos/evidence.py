"""All that is known of one job after the chaos, from the witness, the ledger and the chronicle."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tools.chaos.books import Row
from tools.chaos.chronicle import Window
from tools.chaos.intervals import Interval
from tools.chaos.jobs import ChaosJob
from tools.chaos.witness import Execution


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one job after a campaign."""

    job: ChaosJob

    rows: Sequence[Row]
    """From the books."""

    counters: Mapping[str, int]
    """The ledger's."""

    executions: Sequence[Execution]

    windows: Sequence[Window]
    """Of all faults."""

    chaos: Interval
    """From when all were ready until the jobs were paused."""

    until: float
    """When the books were read."""

    ends: Sequence[tuple[int, float]] = ()
    """Of processes."""

    followed: Sequence[Row] = ()
    """Rows of the job that this one follows."""

    messages: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """When workers took one for a run."""

    repeated: Collection[str] = ()
    """Runs of messages that the broker brought twice."""

    edits: Sequence[tuple[int, float]] = ()
    """Versions of the job, and when the ledger was seen to have them."""

    def counted(self, *kinds: str) -> int:
        """``counted("finished")`` adds up all its outcomes."""
        return sum(n for what, n in self.counters.items() if what.partition(":")[0] in kinds)


@dataclass(frozen=True, slots=True)
class Finding:
    """A promise that was not kept."""

    kind: str
    job: str
    detail: str
