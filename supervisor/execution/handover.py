"""Publishes the runs whose turn came with the death of a child, beside its worker's heartbeat.

A broker that hangs holds up this thread, and no lease. What is not published here in time is
published by beat: it lies in the outbox until the broker has it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import structlog

from supervisor.ledger.scripts import HANDOVER_GRACE

log = structlog.get_logger("supervisor.handover")


class HandOver:
    """`publish` sends the messages of the runs it is given; its thread begins with the first."""

    def __init__(self, publish: Callable[[Sequence[str]], Any]) -> None:
        self._publish = publish
        self._given: SimpleQueue[tuple[float, Sequence[str]]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def give(self, run_ids: Sequence[str]) -> None:
        """Returns at once. To be called from one thread only."""
        self._given.put((time.monotonic() + HANDOVER_GRACE.total_seconds(), run_ids))
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="supervisor-handover", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        while True:
            until, run_ids = self._given.get()
            if time.monotonic() > until:  # an earlier one was held up: beat has sent these
                continue
            try:
                self._publish(run_ids)
            except Exception:  # the loop outlives whatever one of them meets
                log.exception("hand-over stumbled")
