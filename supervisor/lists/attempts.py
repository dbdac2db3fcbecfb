"""The features that do something with each attempt of a run, in a worker's child."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from supervisor.features.opentelemetry import tracing as opentelemetry
from supervisor.features.run_log import lines as run_log
from supervisor.guard.attempt import Attempt

#: What they do around the body of the task, which is given as well.
AROUND: list[Callable[[Any, Attempt], AbstractContextManager[None]]] = [
    run_log.captured,
    opentelemetry.traced,
]

#: What they keep, with a failed attempt, of what its code raised.
TEXTS_OF_FAILURES: list[Callable[[BaseException, Attempt], str]] = [
    run_log.traceback_of,
]
