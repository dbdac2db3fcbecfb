"""Sends what waits for other servers, from a few threads.

1. What is to be sent waits in an outbox: that of the ledger for the leading beat, one in memory for
   `serve`. It has destinations, and each of them entries in an order.
2. At each turn `send_due` starts threads for destinations that are due, `MOST_THREADS` at most. One
   thread sends to one destination at a time: its entries in order, for up to `TURN_SECONDS`, and
   then those of the next destination.
3. An entry that was taken leaves the outbox; so does one that was refused, which is logged and
   counted as dropped.
4. A destination that is unavailable is put off: for `FIRST_WAIT`, then for twice as long each time,
   up to `LONGEST_WAIT`. Its other entries wait behind the first. After `GIVE_UP_AFTER` an entry is
   dropped.

Destinations that failed or were slow have half of the threads at most, so that others always find
one. A thread that takes longer than `HANGS_AFTER_SECONDS`, whatever its server does, is replaced,
up to `MOST_WITH_HANGING` threads; its destination is sent nothing else until it comes back. Nothing
waits for these threads: not beat's turn, and not the end of the process.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol, assert_never

from pydantic import ValidationError
from redis.exceptions import RedisError

from supervisor.features.outbound.answer import Answer
from supervisor.features.outbound.store import End, Kind, Unsent
from supervisor.logs import get_logger

log = get_logger("supervisor.outbound")

FIRST_WAIT = timedelta(seconds=5)
LONGEST_WAIT = timedelta(minutes=5)
GIVE_UP_AFTER = timedelta(days=1)

MOST_THREADS = 8
MOST_SLOW_THREADS = MOST_THREADS // 2

#: No entry is begun later than this; a destination that took longer is slow.
TURN_SECONDS = 3.0

#: Longer than a turn and an exchange that comes to its time-outs.
HANGS_AFTER_SECONDS = 20.0
MOST_WITH_HANGING = 4 * MOST_THREADS

#: Events of the log.
NOT_SENT = {kind: f"{kind} not sent" for kind in Kind}
DROPPED = {kind: f"{kind} dropped" for kind in Kind}


class Outbox(Protocol):
    """Where entries wait; those that write say whether the entry was still there."""

    def due(self, now: datetime) -> Iterable[str]: ...

    def unsent(self, destination: str, now: datetime) -> Sequence[Unsent]: ...

    def take_off(self, entry: Unsent, end: End) -> bool: ...

    def put_off(self, entry: Unsent, until: datetime) -> bool: ...


@dataclass(frozen=True, slots=True)
class Result:
    """What became of an attempt to send."""

    answer: Answer

    reason: str = ""
    """In words, without addresses and secrets."""

    fields: Mapping[str, str] = field(default_factory=dict)
    """More fields of a log line about it."""


Send = Callable[[Unsent], Result]


class Outbound:
    """Sends what is in an outbox: `senders` by kind."""

    def __init__(self, outbox: Outbox, senders: Mapping[str, Send]) -> None:
        self._outbox = outbox
        self._senders = senders
        self._due = deque[str]()
        self._sending: dict[str, float] = {}
        self._waits: dict[str, timedelta] = {}
        self._slow: set[str] = set()
        self._lock = threading.Lock()

    def send_due(self, now: datetime) -> None:
        """Returns at once; threads send what is due and end by themselves. Raises RedisError."""
        due = deque(self._outbox.due(now))
        with self._lock:
            self._due = due
        zero = now - timedelta(seconds=time.monotonic())
        while (destination := self._next()) is not None:
            threading.Thread(
                target=self._run, args=(destination, zero), name="supervisor-outbound", daemon=True
            ).start()

    def _next(self) -> str | None:
        """A destination that a thread may send to, which it then counts as begun."""
        with self._lock:
            began_by = time.monotonic() - HANGS_AFTER_SECONDS
            busy = {name for name, began in self._sending.items() if began > began_by}
            is_full = len(busy) >= MOST_THREADS or len(self._sending) >= MOST_WITH_HANGING
            for destination in () if is_full else self._due:
                is_slow = destination in self._slow
                has_room = not is_slow or len(busy & self._slow) < MOST_SLOW_THREADS
                if destination not in self._sending and has_room:
                    self._due.remove(destination)
                    self._sending[destination] = time.monotonic()
                    return destination
            return None

    def _run(self, first: str, zero: datetime) -> None:
        """Serves one destination after the other, until there is none that this thread may take.

        zero: by the outbox' clock, when the monotonic one of this process was 0.
        """
        destination: str | None = first
        while destination is not None:
            began, is_done = time.monotonic(), False
            try:
                is_done = self._send_all(destination, zero)
            except RedisError as error:
                log.warning("outbound not sent", destination=destination, error=str(error))
            finally:
                is_slow = not is_done or time.monotonic() - began > TURN_SECONDS
                with self._lock:
                    del self._sending[destination]
                    if destination in self._due:  # as it was before
                        self._due.remove(destination)
                    (self._slow.add if is_slow else self._slow.discard)(destination)
            destination = self._next()

    def _send_all(self, destination: str, zero: datetime) -> bool:
        """Whether none failed; those behind one that did wait with it."""

        def now() -> datetime:
            return zero + timedelta(seconds=time.monotonic())

        until = time.monotonic() + TURN_SECONDS
        for entry in self._outbox.unsent(destination, now()):
            if time.monotonic() > until:
                break
            if not self._is_done_with(entry, now):
                return False
        return True

    def _is_done_with(self, entry: Unsent, now: Callable[[], datetime]) -> bool:
        """Whether the next one of the destination may be sent."""
        result = self._result(entry)
        fields = {"destination": entry.name, **result.fields}
        if result.answer is not Answer.UNAVAILABLE:
            self._waits.pop(entry.destination, None)
        match result.answer:
            case Answer.TAKEN:
                if entry.kind is Kind.NOTICE:
                    log.info("notice sent", **fields)
                return self._outbox.take_off(entry, End.SENT)
            case Answer.UNWANTED:
                return self._outbox.take_off(entry, End.UNWANTED)
            case Answer.REFUSED:
                log.error(DROPPED[entry.kind], **fields, reason=result.reason)
                return self._outbox.take_off(entry, End.DROPPED)
            case Answer.UNAVAILABLE if now() - entry.since > GIVE_UP_AFTER:
                log.error(DROPPED[entry.kind], **fields, reason="too old", error=result.reason)
                self._outbox.take_off(entry, End.DROPPED)
                return False
            case Answer.UNAVAILABLE:
                wait = min(2 * self._waits.get(entry.destination, FIRST_WAIT / 2), LONGEST_WAIT)
                self._waits[entry.destination] = wait
                self._outbox.put_off(entry, now() + wait)
                seconds = wait.total_seconds()
                log.warning(NOT_SENT[entry.kind], **fields, error=result.reason, again_in=seconds)
                return False
            case _:
                assert_never(result.answer)

    def _result(self, entry: Unsent) -> Result:
        try:
            send = self._senders.get(entry.kind)
            return send(entry) if send else Result(Answer.UNWANTED)
        except RedisError:
            raise
        except ValidationError:
            return Result(Answer.REFUSED, "it cannot be read")
        except Exception as error:  # noqa: BLE001 - each service's code has errors of its own
            return Result(Answer.UNAVAILABLE, type(error).__name__)
