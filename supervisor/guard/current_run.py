"""What a job's code may ask of its run, and report of it.

Each log record that is made in a run's code names the run, whatever makes, filters and formats the
app's records (`CurrentRun.log_fields`); structlog's contextvars have the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from supervisor.logs import RUN_FIELDS

if TYPE_CHECKING:
    from supervisor.guard.attempt import Attempt
    from supervisor.job.reports import Number


@dataclass(frozen=True, slots=True)
class CurrentRun:
    """The run that the calling code belongs to."""

    job: str
    """The name of its job."""

    run_id: str

    nominal_at: datetime
    """The scheduled time, in UTC. For a run triggered by hand, when it was triggered."""

    attempt: int
    """1 for the first start, and one more for each retry and each start after a crash."""

    fencing_token: int
    """It grows with each lease of a lock. A store that remembers the highest token can refuse the
    writes of a run that has lost its lease without knowing it."""

    step: str | None = None
    """The name of the step, if the run has several. `attempt` and `fencing_token` are then those of
    the step."""

    item: int | None = None
    """The number of the item in a batch, from 0."""

    params: Mapping[str, Any] = field(default_factory=dict)
    """The values that earlier stages passed on."""

    _attempt: Attempt | None = field(default=None, repr=False, compare=False)

    def progress(self, done: Number, total: Number | None = None, text: str = "") -> None:
        """Reports the progress of the run. You can call it often: only the latest call counts."""
        if self._attempt is not None and self._attempt.report is not None:
            self._attempt.report.progress(done, total, text)

    @property
    def should_end(self) -> bool:
        """Whether the run should end, because it was cancelled or replaced, or lost its lease."""
        return self._attempt is not None and self._attempt.reason_to_end is not None

    def check(self) -> None:
        """Raises RunCancelled or LeaseLost if the run should end.

        Call it in pools of threads or greenlets, where they cannot be raised from outside.
        """
        if self._attempt is not None and self._attempt.reason_to_end is not None:
            raise self._attempt.reason_to_end

    def log(self, text: str, *args: object) -> None:
        """Adds a line to the run's log: ``log("loaded %s rows", n)``."""
        if self._attempt is not None:
            self._attempt.log(formatted(text, args))

    @property
    def log_fields(self) -> dict[str, str | int]:
        """The fields of its log records, such as ``supervisor_job`` and ``supervisor_run``.

        Pass them on in threads that the run starts: ``logger.info(..., extra=fields)``.
        """
        fields: dict[str, str | int] = {
            "job": self.job,
            "run": self.run_id,
            "attempt": self.attempt,
        }
        if self.step is not None:
            fields["step"] = self.step if self.item is None else f"{self.step}#{self.item}"
        return {RUN_FIELDS[name]: value for name, value in fields.items()}


_current: ContextVar[CurrentRun | None] = ContextVar("supervisor_current_run", default=None)


def current_run() -> CurrentRun | None:
    """Returns the supervised run that the calling code belongs to, or None outside of a run."""
    return _current.get()


def current_attempt() -> Attempt | None:
    """The attempt that this code works for; None outside of one, and once its end is reported."""
    run = _current.get()
    return run._attempt if run else None


def set_current_run(run: CurrentRun | None) -> None:
    _current.set(run)


def mark_records() -> None:
    """From now on, log records that are made in a run's code name the run."""
    make = logging.getLogRecordFactory()
    if getattr(make, "marks_runs", False):
        return

    def made(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        run = current_run()
        if run is not None:
            vars(record).update(run.log_fields)
        return record

    made.marks_runs = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(made)


def formatted(text: str, args: tuple[object, ...]) -> str:
    """The text with its arguments. A mistake in the format shows in the line, and fails no job."""
    try:
        return str(text) % args if args else str(text)
    except (TypeError, ValueError, KeyError):
        return f"{text} {args}"
