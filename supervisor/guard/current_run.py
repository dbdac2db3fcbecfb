"""What a job's code may ask of its run, and report of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from supervisor.logs import RUN_FIELDS

if TYPE_CHECKING:
    from supervisor.guard.attempt import Attempt
    from supervisor.job.run import Number


@dataclass(frozen=True, slots=True)
class CurrentRun:
    """The run that this code works for.

    nominal_at: the time the schedule named, aware UTC; of a run triggered by hand, when that was.
    attempt: 1 for the first start, one more for each retry and each rerun after a crash.
    fencing_token: grows with every lease of the same lock; a store that remembers the highest
    one it saw can refuse the writes of a run that lost its lease without knowing.
    step: the running step of a run of several steps; attempt and fencing token are then its own.
    item: of a batch the number of its item, from 0. params: what the stages before handed on.
    """

    job: str
    run_id: str
    nominal_at: datetime
    attempt: int
    fencing_token: int
    step: str | None = None
    item: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    _attempt: Attempt | None = field(default=None, repr=False, compare=False)

    def progress(self, done: Number, total: Number | None = None, text: str = "") -> None:
        """Reports how far the run is. Call it as often as you like: the latest call counts."""
        if self._attempt is not None and self._attempt.report is not None:
            self._attempt.report.progress(done, total, text)

    @property
    def should_end(self) -> bool:
        """Whether the run is asked to end: cancelled, replaced, or without its lease."""
        return self._attempt is not None and self._attempt.asked_to_end is not None

    def check(self) -> None:
        """Raises RunCancelled or LeaseLost once the run is asked to end.

        For pools of threads, where they cannot be raised from outside.
        """
        if self._attempt is not None and self._attempt.asked_to_end is not None:
            raise self._attempt.asked_to_end

    def log(self, text: str, *args: object) -> None:
        """Adds to the run's log, as in logging: ``log("loaded %s rows", n)``."""
        if self._attempt is not None:
            self._attempt.log(formatted(text, args))

    @property
    def log_fields(self) -> dict[str, str | int]:
        """What log records of its code have: ``supervisor_job``, ``_run``, ``_attempt``, ``_step``.

        A thread that does not know its run can give them: ``logger.info(..., extra=fields)``.
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
    """The supervised run this code works for; None outside of one."""
    return _current.get()


def current_attempt() -> Attempt | None:
    """The attempt that this code works for; None outside of one, and once its end is reported."""
    run = _current.get()
    return run._attempt if run else None


def set_current_run(run: CurrentRun | None) -> None:
    _current.set(run)


def formatted(text: str, args: tuple[object, ...]) -> str:
    """A mistake in the format shows in the line itself, and does not fail the job."""
    try:
        return str(text) % args if args else str(text)
    except (TypeError, ValueError, KeyError):
        return f"{text} {args}"
