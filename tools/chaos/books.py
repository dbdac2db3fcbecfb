"""The ledger's rows, read again and again: it keeps the last 200 of a job, the books keep all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from supervisor.job.run import Run, RunState
from supervisor.ledger.ledger import Ledger
from tools.chaos.jobs import JOBS

ROWS = 1000

#: What was due that long before the ledger had become older has the row that it has there: of the
#: last 200 ticks none is younger.
FORGOTTEN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Row:
    """One tick, or a range of ticks that became no runs."""

    run: str
    state: RunState

    first: int
    """In seconds since the epoch, as `nominal`."""

    nominal: int
    ticks: int = 1

    due_at: float = 0.0
    """On the monotonic clock, as `ended_at`."""

    ended_at: float | None = None

    outcomes: tuple[tuple[int, str | None], ...] = ()
    """Of its attempts, by number."""


class Books:
    """`epoch`: when the monotonic clock was 0, in seconds since 1970."""

    def __init__(self, epoch: float) -> None:
        self._epoch = epoch
        self._rows: dict[str, dict[str, Row]] = {job.name: {} for job in JOBS}

    def read(self, ledger: Ledger) -> None:
        for job, rows in self._rows.items():
            rows.update((run.id, self._row(run)) for run in ledger.history(job, ROWS))

    def forget(self, since: float) -> None:
        """The ledger has become older: its own rows, which are read again, are what counts."""
        for rows in self._rows.values():
            for run in [run for run, row in rows.items() if row.due_at > since - FORGOTTEN_SECONDS]:
                del rows[run]

    @property
    def rows(self) -> Mapping[str, Sequence[Row]]:
        return {job: tuple(rows.values()) for job, rows in self._rows.items()}

    @property
    def open_runs(self) -> list[str]:
        return [r.run for rows in self._rows.values() for r in rows.values() if r.state.is_open]

    def _row(self, run: Run) -> Row:
        return Row(
            run=run.id,
            state=run.state,
            first=round((run.first_nominal_at or run.nominal_at).timestamp()),
            nominal=round(run.nominal_at.timestamp()),
            ticks=run.ticks,
            due_at=self._monotonic(run.nominal_at),
            ended_at=self._monotonic(run.finished_at) if run.finished_at else None,
            outcomes=tuple((attempt.number, attempt.outcome) for attempt in run.attempts),
        )

    def _monotonic(self, moment: datetime) -> float:
        return moment.timestamp() - self._epoch
