"""Supervises periodic Celery jobs from schedule file to end state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import supervisor.installed  # noqa: F401  (before all others)
from supervisor.errors import LeaseLost, RunCancelled
from supervisor.guard.commands import run_command
from supervisor.guard.current_run import CurrentRun, current_run
from supervisor.logs import RunFilter

__all__ = [
    "CurrentRun",
    "LeaseLost",
    "RunCancelled",
    "RunFilter",
    "current_run",
    "run_command",
    "start",
]

if TYPE_CHECKING:
    from supervisor.sending.calls import start
else:

    def __getattr__(name: str) -> Any:
        # Celery and Redis are loaded only when something is started.
        if name == "start":
            from supervisor.sending.calls import start

            return start
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
