"""Whether the loop of a worker's main process turns, and its broker answers it."""

from __future__ import annotations

import sys
import threading
from typing import Any

from celery.bootsteps import RUN  # type: ignore[attr-defined]
from celery.concurrency import solo
from celery.worker import state

from supervisor.ledger.presence import PRESENCE_INTERVAL
from supervisor.worker.celery_fixes import TAKES_ANY, places

#: A minute: a healthy main loop turns in every round of this thread.
ROUNDS_WITHOUT_TURN = 12

#: Modules in which a main loop waits for the broker or the ledger.
WAITING = ("amqp.", "kombu.connection", "kombu.transport.", "kombu.utils.functional", "redis.")
SOCKETS = ("selectors", "socket", "ssl")


class MainLoop:
    """The loop of the worker's main process, which takes messages and hands them to the pool.

    It turns in a timer of its hub or, without a hub (gevent), when it asks for events. If it runs
    the tasks itself, or waits for a place in the pool, it may stand still while the pool is full.
    Redis answers it every second, with a message or without one.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._rounds = 0
        self._answers: int | None = None
        self._silent_rounds = 0

    def start(self) -> None:
        """Called in the main thread, before the loop begins."""
        if self._consumer.hub is not None:
            # The timer belongs to the hub, and outlives the connection.
            self._consumer.hub.call_repeatedly(PRESENCE_INTERVAL.total_seconds(), self._turn)

    def connected(self, connection: Any) -> Any:
        """Has the connection, which a loop without a hub asks for events, note each turn."""
        if self._consumer.hub is None:
            drain = connection.drain_events

            def drain_events(*args: Any, **options: Any) -> Any:
                self._turn()
                return drain(*args, **options)

            connection.drain_events = drain_events
        return connection

    def begin_again(self) -> None:
        self._rounds = self._silent_rounds = 0

    def _turn(self) -> None:
        self._rounds = 0

    def check(self, *, broker_answers: bool) -> tuple[str | None, bool]:
        """Why the loop does no work, or None if it does, and whether it waits for its broker.

        Called once in a round. Rounds are counted instead of seconds, because a process that was
        suspended has not turned for long either. broker_answers: whether the broker answers others.
        """
        if not self._is_running():
            return None, False
        self._rounds += 1
        if self._consumer.connection is None:
            self.begin_again()
            return None, True
        if self._is_full():
            self.begin_again()
        if self._rounds <= ROUNDS_WITHOUT_TURN:
            return self._check_broker(broker_answers)
        frame = innermost_frame()
        if module_of(frame).startswith(WAITING):
            return None, True
        place = f"{module_of(frame)}.{frame.f_code.co_name}" if frame else "no known place"
        still = seconds(self._rounds)
        return f"its main loop has not turned for {still}s, and is in {place}", False

    def _is_full(self) -> bool:
        """Whether the loop may wait for a place in its pool; prefork and threads have a queue."""
        pool = self._consumer.pool
        may_wait = self._consumer.hub is None or isinstance(pool, solo.TaskPool)
        return may_wait and len(state.active_requests) >= places(pool)

    def _check_broker(self, broker_answers: bool) -> tuple[str | None, bool]:
        """As `check`, for a loop that turns: whether Redis still answers its requests."""
        answers = getattr(self._consumer.connection, TAKES_ANY, None)
        if answers != self._answers or not self._may_take():
            self._answers, self._silent_rounds = answers, 0
            return None, False
        self._silent_rounds += 1
        if self._silent_rounds <= ROUNDS_WITHOUT_TURN:
            return None, False
        if self._consumer.task_consumer.channel._in_poll and not broker_answers:
            return None, True
        silent = seconds(self._silent_rounds)
        return f"its main loop turns, and has had no answer of its broker for {silent}s", False

    def _may_take(self) -> bool:
        channel: Any = getattr(self._consumer.task_consumer, "channel", None)
        return (
            hasattr(channel, "_in_poll")  # only with Redis
            and 0 < getattr(channel, "brpop_timeout", 1) <= PRESENCE_INTERVAL.total_seconds()
            and bool(consumed(self._consumer.task_consumer))
            and channel.qos.can_consume()
        )

    def _is_running(self) -> bool:
        """False once the worker is stopping: its loop has ended, and it waits for its tasks."""
        flags: tuple[Any, ...] = (state.should_stop, state.should_terminate)
        is_stopping = any(flag is not None and flag is not False for flag in flags)
        return bool(self._consumer.blueprint.state == RUN) and not is_stopping


def innermost_frame() -> Any:
    """The frame that the main thread is in, not counting sockets."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and module_of(frame) in SOCKETS:
        frame = frame.f_back
    return frame


def seconds(rounds: int) -> int:
    return round(rounds * PRESENCE_INTERVAL.total_seconds())


def module_of(frame: Any) -> str:
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


def consumed(task_consumer: Any) -> tuple[str, ...]:
    """The names of the queues; empty while the broker is unavailable or the worker is stopping."""
    if task_consumer is None:
        return ()
    names = (queue.name for queue in task_consumer.queues)
    return tuple(sorted(name for name in names if task_consumer.consuming_from(name)))
