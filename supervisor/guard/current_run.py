"""What a job's code may ask of the run it works for, and what it may say of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisor.guard.progress import Report
    from supervisor.job.run import Number


@dataclass(frozen=True, slots=True)
class CurrentRun:
    """The run at work.

    nominal_at: the time the schedule named, aware UTC; of a run triggered by hand, when that was.
    attempt: 1 for the first start, one more for each retry and each rerun after a crash.
    fencing_token: grows with every lease of the same lock; a store that remembers the highest
    one it saw can refuse the writes of a run that lost its lease without knowing.
    step: of a run of several steps the one at work, and then attempt and fencing token are its own;
    item: of a batch the number of its item, from 0; params: what the stages before handed on.
    """

    job: str
    run_id: str
    nominal_at: datetime
    attempt: int
    fencing_token: int
    step: str | None = None
    item: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    _report: Report | None = field(default=None, repr=False, compare=False)

    def progress(self, done: Number, total: Number | None = None, text: str = "") -> None:
        """Says how far the run is; in a loop as often as it likes, the last word counts."""
        if self._report is not None:
            self._report.progress(done, total, text)

    def log(self, text: str, *args: object) -> None:
        """Adds to the run's log, as in logging: ``log("loaded %s rows", n)``."""
        if self._report is not None:
            self._report.log(formatted(text, args))


_current: ContextVar[CurrentRun | None] = ContextVar("supervisor_current_run", default=None)


def current_run() -> CurrentRun | None:
    """The supervised run this code works for; None outside of one."""
    return _current.get()


def set_current_run(run: CurrentRun | None) -> None:
    _current.set(run)


def formatted(text: str, args: tuple[object, ...]) -> str:
    """A mistake in a line of a log is seen there, and fails no job."""
    try:
        return str(text) % args if args else str(text)
    except (TypeError, ValueError, KeyError):
        return f"{text} {args}"
