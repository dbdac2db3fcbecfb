"""Supervises periodic Celery jobs from schedule file to end state."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import supervisor.installed  # noqa: F401  (before all others)
from supervisor.errors import LeaseLost, RunCancelled

__all__ = [
    "CurrentRun",
    "GuardedResult",
    "LeaseLost",
    "RunCancelled",
    "RunFilter",
    "current_run",
    "run_command",
    "start",
]

if TYPE_CHECKING:
    from supervisor.guard.commands import run_command
    from supervisor.guard.current_run import CurrentRun, current_run
    from supervisor.logs import RunFilter
    from supervisor.sending.results import GuardedResult
    from supervisor.sending.starting import start
else:
    #: Loaded by their first use: every program imports this package, and few of them need these.
    MODULES = {
        "CurrentRun": "supervisor.guard.current_run",
        "GuardedResult": "supervisor.sending.results",
        "RunFilter": "supervisor.logs",
        "current_run": "supervisor.guard.current_run",
        "run_command": "supervisor.guard.commands",
        "start": "supervisor.sending.starting",
    }

    def __getattr__(name: str) -> Any:
        if name not in MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(MODULES[name]), name)
        return value

    def __dir__() -> list[str]:
        """Also the names that are not loaded yet, so that a shell completes them."""
        return sorted({*globals(), *MODULES})
