"""Supervises periodic Celery jobs from schedule file to end state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

# PyPI's `supervisor` (supervisord) installs into a folder of the same name: mixed, both break.
_INTRUDERS = [
    name
    for name in ("supervisord.py", "supervisorctl.py")
    if Path(__file__).with_name(name).exists()
]
if _INTRUDERS:
    raise ImportError(
        f"{Path(__file__).parent} also holds {' and '.join(_INTRUDERS)} of PyPI's 'supervisor'"
        " (supervisord): it and 'celery-beat-supervisor' cannot share an environment."
        " Uninstall both, then install only 'celery-beat-supervisor'."
    )

from supervisor.errors import LeaseLost, RunCancelled  # noqa: E402
from supervisor.guard.commands import run_command  # noqa: E402  (after the check above)
from supervisor.guard.current_run import CurrentRun, current_run  # noqa: E402

__all__ = ["CurrentRun", "LeaseLost", "RunCancelled", "current_run", "run_command", "start"]

if TYPE_CHECKING:
    from supervisor.sending.starting import start
else:

    def __getattr__(name: str) -> Any:
        # Celery and Redis are loaded by those who start something.
        if name == "start":
            from supervisor.sending.starting import start

            return start
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
