"""Refuses runs of other ledgers, and those that need what the worker's pool lacks.

The message is dropped, and beat sends it again until another worker takes it or the run expires.
The run says what kept it from starting, also where Celery refuses its message or keeps it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from logging import getLogger
from typing import Any

from billiard import get_start_method

from supervisor.catalog.fitness import has_own_strategy
from supervisor.errors import WrongSchema
from supervisor.guard.delivery import LEDGER, Delivery, note_shared_queue, run_header
from supervisor.job.policies import OverlapPolicy
from supervisor.job.topology import Needs, pool_name
from supervisor.logs import get_logger
from supervisor.sending.app_settings import required_settings
from supervisor.sending.publisher import publisher_of
from supervisor.store.failures import RedisError
from supervisor.times import clock

log = get_logger("supervisor.intake")

#: Seconds between two reports of the same.
REPORTED_EVERY = 60

POOLS_HINT = (
    "have its queue consumed by workers that were started with -P prefork alone, or remove from the"
    " job what it needs (docs/how-to/adopting.md, Pools)"
)


LIMITS_HINT = (
    "Celery ignores it in this pool. If it has to hold, have its queue consumed by workers that"
    " were started with -P prefork"
)


class RefusedRuns:
    """All methods are called in the worker's main loop."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._prefix = required_settings(consumer.app).prefix
        self._pool = pool_name(type(consumer.pool))
        self._reported: dict[str, float] = {}
        self._no_notes_before = 0.0

    def refuses(self, message: Any, header: Mapping[str, Any]) -> bool:
        """Whether the run is not to begin here. Its message is dropped then."""
        delivery = Delivery(header, "")
        if delivery.prefix != self._prefix:
            if self._is_to_report(f"{delivery.queue} {delivery.prefix}"):
                note_shared_queue(publisher_of(self._consumer.app).ledger, delivery)
        elif unmet := self._unmet(header, message.headers):
            if self._is_to_report(delivery.job):
                need = {"needs": unmet, "pool": self._pool}
                log.error("run refused", job=delivery.job, **need, hint=POOLS_HINT)
            self.note_obstacle(message, f"its pool, {self._pool}, lacks {unmet}")
        else:
            return False
        message.ack_log_error(getLogger(__name__), self._consumer.connection_errors)
        return True

    def note_obstacle(self, message: Any, text: str, *, is_minor: bool = False) -> None:
        """Notes with its run, if it is one of this ledger, why it does not start here.

        For each message, but for a while after a ledger that is unavailable. is_minor: it takes the
        place of no other obstacle.
        """
        header = run_header(message)
        ledger_of_run = header.get(LEDGER) if header else None
        is_ours = isinstance(ledger_of_run, list) and ledger_of_run[:1] == [self._prefix]
        if header is None or not is_ours or clock() < self._no_notes_before:
            return
        try:
            ledger = publisher_of(self._consumer.app).ledger
            by = self._consumer.hostname
            ledger.note_obstacle([header["run"]], by, text, is_minor=is_minor)
        except (RedisError, WrongSchema):
            self._no_notes_before = clock() + REPORTED_EVERY

    def _is_to_report(self, what: str) -> bool:
        """Each once a minute."""
        now = clock()
        is_due = now - self._reported.get(what, -REPORTED_EVERY) >= REPORTED_EVERY
        if is_due:
            self._reported[what] = now
        return is_due

    def _unmet(self, header: Mapping[str, Any], headers: Mapping[str, Any]) -> str | None:
        """What the run needs and this worker lacks."""
        task = self._consumer.app.tasks.get(headers["task"])
        if task and has_own_strategy(task):
            return "a task without a Strategy of its own"
        if self._pool == "prefork":
            return None if forks(self._consumer.controller) else "children that are forked"
        hard, soft = headers.get("timelimit") or (None, None)
        own_hard, own_soft = (
            getattr(task, "time_limit", None),
            getattr(task, "soft_time_limit", None),
        )
        needs = Needs(
            time_limit=hard not in (None, own_hard),
            soft_time_limit=soft not in (None, own_soft),
            replace=header["rules"].get("overlap") == OverlapPolicy.REPLACE,
        )
        if unmet := needs.unmet_by(self._pool):
            return unmet
        if without := Needs(bool(own_hard), bool(own_soft)).unmet_by(self._pool):
            self._warn_of_limit(headers["task"], without)
        return None

    def _warn_of_limit(self, task: str, limit: str) -> None:
        if self._is_to_report(f"{task} {limit}"):
            log.warning(
                "limit of a task has no effect",
                task=task,
                limit=limit,
                pool=self._pool,
                hint=LIMITS_HINT,
            )


def forks(worker: Any) -> bool:
    """Whether the worker forks its children: others would know neither the app nor each other."""
    # Celery before 5.7 has no other way to make them.
    return {getattr(worker, "pool_start_method", "fork"), get_start_method()} == {"fork"}
