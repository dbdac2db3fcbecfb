"""Tells Celery's result backend of calls that ended before they began.

Who called may wait for the result, alone or in a chord. How a run ended is told by the worker that
had it; of one that was skipped, cancelled or expired before, nobody would ever hear.

1. The scripts that end such runs leave a word in the ledger, whoever called them.
2. At each tick beat looks whether there are any. A thread tells them, for a backend may hang, and
   takes each out of the ledger once it is told.
3. A backend that is away is tried again. What it has not taken after `GIVE_UP_AFTER` is dropped.
4. A beat that dies in between, or two that lead in turn, may tell the same thing twice: the second
   time it changes nothing.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from threading import Thread

import structlog
from celery import Celery
from redis.exceptions import RedisError

from supervisor.ledger.runs import Ledger
from supervisor.ledger.untold import Untold, Word
from supervisor.sending.calls import context_of

GIVE_UP_AFTER = timedelta(minutes=10)
PAUSE_SECONDS = 5.0

WORDS_PER_LOOK = 1_000

#: In one look; what fails more often is not the fault of one call.
MOST_FAILURES = 3

log = structlog.get_logger("supervisor.telling")


class Teller:
    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger
        self._untold = Untold(ledger.client, ledger.keys)
        self._thread: Thread | None = None
        self._next_try = 0.0

    def look(self, now: datetime) -> None:
        """Returns at once; the telling goes on in a thread that ends by itself."""
        is_telling = self._thread is not None and self._thread.is_alive()
        if not is_telling and time.monotonic() >= self._next_try:
            self._thread = Thread(
                target=self._run, args=(now,), name="supervisor-telling", daemon=True
            )
            self._thread.start()

    def _run(self, now: datetime) -> None:
        failures = 0
        try:
            for word in self._untold.oldest(WORDS_PER_LOOK):
                failures += not self._is_done_with(word, now)
                if failures == MOST_FAILURES:
                    break
        except RedisError as error:
            log.warning("calls not told", error=str(error))
        if failures:
            self._next_try = time.monotonic() + PAUSE_SECONDS

    def _is_done_with(self, word: Word, now: datetime) -> bool:
        facts = {"job": word.job, "run": word.run}
        try:
            self._tell(word)
        except Exception as error:  # noqa: BLE001 - each backend has errors of its own
            if now - word.at <= GIVE_UP_AFTER:
                log.warning("call not told", **facts, error=str(error))
                return False
            log.error("call not told", **facts, error=str(error), reason="given up")
        self._untold.done(word)
        return True

    def _tell(self, word: Word) -> None:
        task = self._app.tasks.get(word.job)
        backend = self._app.backend if task is None else task.backend
        options = next((run.options for run in self._ledger.runs([word.run])), {})
        said = f"{word.outcome}: {word.reason}" if word.reason else word.outcome
        backend.mark_as_revoked(word.run, said, request=context_of(word.run, options))
