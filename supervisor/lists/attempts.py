"""The features that do something with each attempt of a run, in a worker's child."""

from __future__ import annotations

from supervisor.features import run_log
from supervisor.guard.attempt import Hook

HOOKS: list[Hook] = [
    run_log.KeptLines(),
]
