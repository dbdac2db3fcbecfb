"""A worker says that it is there, and what it consumes, from the moment it is ready until it stops.

A thread of its own, with its own connection, in the worker's main process: a call that hangs must
not make the heartbeat late.
"""

from __future__ import annotations

import threading
from typing import Any

import structlog
from celery import Celery, bootsteps, signals
from celery.platforms import EX_FAILURE
from celery.worker import state

from supervisor.app import broker_address, required_settings
from supervisor.errors import WrongSchema
from supervisor.ledger.connection import RedisError, connect_for_heartbeat
from supervisor.ledger.keys import Keys
from supervisor.ledger.presence import (
    PRESENCE_INTERVAL,
    Attendance,
    Broker,
    WorkerFacts,
    digest_of,
)
from supervisor.redis_url import same_database
from supervisor.settings import Settings

log = structlog.get_logger("supervisor.attendance")

_present: dict[str, WorkerAttendance] = {}


class WorkerAttendance(threading.Thread):
    """Tells what the worker's consumer says of itself, each time anew."""

    def __init__(self, consumer: Any) -> None:
        super().__init__(name="supervisor-attendance", daemon=True)
        self._consumer = consumer
        app = consumer.app
        settings = required_settings(app)
        client = connect_for_heartbeat(settings)
        self._attendance = Attendance(client, Keys(settings.prefix), broker_of(app, settings))
        self._tasks = [name for name in app.tasks if not name.startswith("celery.")]
        self._digest = digest_of(self._tasks)
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._attendance.say(self._facts(), self._tasks)
            except (RedisError, OSError) as error:
                log.warning("presence not told", error=str(error))
            except WrongSchema as error:
                log.critical("worker stops", error=str(error))
                # A warm shutdown, by the consumer's own loop; Celery declares it as None.
                state.should_stop = EX_FAILURE  # type: ignore[assignment]
                return
            except (
                Exception
            ):  # the loop outlives whatever a worker that is changing shows of itself
                log.exception("attendance stumbled")
            self._stopping.wait(PRESENCE_INTERVAL.total_seconds())

    def stop(self) -> None:
        self._stopping.set()
        # A call that is under way would say again that the worker is there.
        self.join(PRESENCE_INTERVAL.total_seconds())
        try:
            self._attendance.leave()
        except (RedisError, OSError) as error:
            log.warning("leave not taken", error=str(error))

    def _facts(self) -> WorkerFacts:
        return WorkerFacts(
            name=self._consumer.hostname,
            queues=consumed(self._consumer.task_consumer),
            pool_size=size_of(self._consumer.pool),
            tasks=self._digest,
        )


def consumed(task_consumer: Any) -> tuple[str, ...]:
    """None while the connection to the broker is away, or once the worker is told to stop."""
    if task_consumer is None:
        return ()
    names = (queue.name for queue in task_consumer.queues)
    return tuple(sorted(name for name in names if task_consumer.consuming_from(name)))


def size_of(pool: Any) -> int:
    """None once it has been stopped, which comes before the worker's own end."""
    return 0 if getattr(pool, "_pool", pool) is None else int(pool.num_processes or 0)


def broker_of(app: Celery, settings: Settings) -> Broker:
    return Broker(
        default_queue=str(app.conf.task_default_queue),
        is_ledger=same_database(broker_address(app), settings.redis_url),
    )


class Attends(bootsteps.Step):
    """From when the worker consumes its queues. Not every worker sends `worker_ready`."""

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        own = parent.init_callback

        def ready(consumer: Any) -> None:
            _present[consumer.hostname] = WorkerAttendance(consumer)
            _present[consumer.hostname].start()
            if own:
                own(consumer)

        parent.init_callback = ready


def attend(app: Celery) -> None:
    """Every worker of this app does, from when it is ready."""
    app.steps["consumer"].add(Attends)
    signals.worker_shutdown.connect(end, weak=False)


def end(sender: Any, **_: Any) -> None:
    attendance = _present.pop(sender.hostname, None)
    if attendance is not None:
        attendance.stop()
