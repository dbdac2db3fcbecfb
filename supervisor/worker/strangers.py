"""Messages of another ledger's runs, that come because two deployments share a queue.

The message of a run names its ledger. A worker of another one cannot begin the run, and gives the
message back to its queue, behind those that wait there, for a worker of its own ledger:

1. It is held for `HELD` first, so that messages that only strangers consume cost little. While up
   to `MOST_HELD` are held the worker takes others; with more, it takes fewer until they are back.
2. Both sides report it: this worker in its log and in what it says of itself, and the message
   carries the note for the worker that begins the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog
from celery import Celery
from celery.utils.log import get_logger

from supervisor.errors import WrongSchema
from supervisor.guard.delivery import LEDGER, RETURNED_BY, supervised
from supervisor.ledger.connection import RedisError
from supervisor.sending.app_settings import owner_of, required_settings
from supervisor.sending.publisher import publisher_of
from supervisor.times import clock

#: Seconds; shorter than beat waits before it takes a message for vanished.
HELD = 1.0
MOST_HELD = 100

#: Seconds between two log lines about one of them, and for how long one is reported.
LOGGED_EVERY = 60
REPORTED_FOR = 900

#: Headers are made by whoever can write to the queue.
MOST_KNOWN = 20
LONGEST_NAME = 200

HINT = "give each deployment queues of its own (docs/settings.md, Two deployments on one Redis)"

log = structlog.get_logger("supervisor.strangers")

#: Of this process: other ledger and queue -> when it was seen last, and when it was logged.
_seen: dict[tuple[str, str], tuple[float, float]] = {}


def shared_queues() -> list[tuple[str, str]]:
    """Each other ledger that uses a queue of this worker, and the queue; seen lately."""
    limit = clock() - REPORTED_FOR
    return sorted(both for both, (seen, _) in list(_seen.items()) if seen > limit)


class Strangers:
    """Of one consumer. All of it is called in the worker's main loop."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._app: Celery = consumer.app
        self._own = [required_settings(self._app).prefix, owner_of(self._app)]
        self._held = 0

    def takes(self, message: Any) -> bool:
        """Whether the message is another ledger's, and goes back."""
        headers = message.headers
        header = supervised(headers, str(headers.get("id"))) if headers else None
        if header is None:
            return False
        theirs = identity_in(header)
        if theirs is None or not self._is_stranger(theirs, header):
            if returned_by := headers.get(RETURNED_BY):
                self._note(str(returned_by)[:LONGEST_NAME], message, "run came late")
            return False
        self._note(named(theirs), message, "message of another ledger returned")
        headers[RETURNED_BY] = named(self._own)  # Redis keeps it; other brokers give back their own
        self._hold(message)
        return True

    def _is_stranger(self, theirs: list[str], header: Mapping[str, Any]) -> bool:
        if theirs == self._own:
            return False
        if theirs[0] != self._own[0]:
            return True
        # The same prefix: the app was given another name, or its ledger is in another database.
        try:
            return not publisher_of(self._app).ledger.runs([str(header["run"])])
        except (RedisError, WrongSchema):
            return False

    def _hold(self, message: Any) -> None:
        qos = self._consumer.qos if self._held < MOST_HELD else None
        self._held += 1
        if qos:
            qos.increment_eventually()

        def give_back() -> None:
            self._held -= 1
            if qos:
                qos.decrement_eventually()
            errors = self._consumer.connection_errors
            message.reject_log_error(get_logger(__name__), errors, requeue=True)

        self._consumer.timer.call_after(HELD, give_back)

    def _note(self, other: str, message: Any, event: str) -> None:
        queue = str(message.delivery_info.get("routing_key"))[:LONGEST_NAME]
        now, both = clock(), (other, queue)
        if both not in _seen and len(_seen) >= MOST_KNOWN:
            return
        _, logged = _seen.get(both, (now, 0.0))
        if now - logged > LOGGED_EVERY or not logged:
            log.error(event, ledger=named(self._own), other=other, queue=queue, hint=HINT)
            logged = now
        _seen[both] = now, logged


def identity_in(header: Mapping[str, Any]) -> list[str] | None:
    """None of an older version's message."""
    match header.get(LEDGER):
        case [str(prefix), str(owner)]:
            return [prefix, owner]
        case _:
            return None


def named(identity: list[str]) -> str:
    prefix, owner = identity
    return f"{prefix} of {owner}"[:LONGEST_NAME]
