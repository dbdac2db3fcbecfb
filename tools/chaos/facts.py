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
class Facts:
    """rows: from the books; counters: the ledger's. windows: of all faults; ends: of processes.

    chaos: from when all were ready until the jobs were paused. until: the last look. followed: rows
    of the job that this one follows. messages: when workers took one for a run. repeated: runs of
    messages that the broker brought twice. edits: versions of the job, and when the ledger was
    seen to have them.
    """

    job: ChaosJob
    rows: Sequence[Row]
    counters: Mapping[str, int]
    executions: Sequence[Execution]
    windows: Sequence[Window]
    chaos: Interval
    until: float
    ends: Sequence[tuple[int, float]] = ()
    followed: Sequence[Row] = ()
    messages: Mapping[str, Sequence[float]] = field(default_factory=dict)
    repeated: Collection[str] = ()
    edits: Sequence[tuple[int, float]] = ()

    def counted(self, *kinds: str) -> int:
        """``counted("finished")`` adds up all its outcomes."""
        return sum(n for what, n in self.counters.items() if what.partition(":")[0] in kinds)


@dataclass(frozen=True, slots=True)
class Finding:
    """A promise that was not kept."""

    kind: str
    job: str
    detail: str
