"""What a worker reports of itself from ready until it stops, and of workers here that are gone.

A thread of the worker's main process does so, with a connection of its own, so that a call that
hangs cannot make the heartbeat late. If the main loop hangs, the thread goes on and reports it.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from celery import bootsteps, signals
from celery.platforms import EX_FAILURE
from celery.worker import state

from supervisor.errors import WrongSchema
from supervisor.guard.reaper import Reaper
from supervisor.job.topology import pool_name
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.presence import (
    PRESENCE_INTERVAL,
    Registration,
    WorkerProcess,
    digest_of,
)
from supervisor.logs import get_logger
from supervisor.sending.app_settings import required_settings
from supervisor.sending.queues import broker_of
from supervisor.store.failures import RedisError
from supervisor.worker.celery_fixes import places
from supervisor.worker.main_loop import MainLoop, consumed
from supervisor.worker.main_process import main_process_of

log = get_logger("supervisor.registration")

#: Between two looks for workers that are gone.
REAP_SECONDS = 1.0


class WorkerRegistration(threading.Thread):
    """Looks for dead workers every second, and writes the worker's presence every
    PRESENCE_INTERVAL, from what its consumer shows."""

    def __init__(self, consumer: Any, loop: MainLoop) -> None:
        super().__init__(name="supervisor-registration", daemon=True)
        self._consumer = consumer
        app = consumer.app
        settings = required_settings(app)
        ledger, broker = Ledger.open_without_retries(settings), broker_of(app, settings)
        self._registration = Registration(ledger, broker)
        self._has_brokers_ledger = broker.is_ledger
        self._lock_file = main_process_of(app).lock_file
        self._reaper = Reaper(ledger, self._lock_file)
        self._tasks = [name for name in app.tasks if not name.startswith("celery.")]
        self._digest = digest_of(self._tasks)
        self._loop = loop
        self._stopping = threading.Event()

    def run(self) -> None:
        next_at = time.monotonic()
        while not self._stopping.is_set():
            self._lock_file.check()
            self._reaper.reap()
            if time.monotonic() >= next_at:
                next_at = time.monotonic() + PRESENCE_INTERVAL.total_seconds()
                self._write()
            self._stopping.wait(REAP_SECONDS)

    def _write(self) -> None:
        try:
            fault, is_waiting = self._loop.check(broker_answers=self._has_brokers_ledger)
            self._registration.say(self._record(), self._tasks, fault, is_waiting=is_waiting)
        except (RedisError, OSError) as error:
            log.warning("presence not written", error=str(error))
            self._loop.begin_again()  # if the ledger is silent too, the loop is not at fault
        except WrongSchema as error:
            log.critical("worker stopped", error=str(error))
            # A warm shutdown, by the consumer's own loop; Celery declares it as None.
            state.should_stop = EX_FAILURE  # type: ignore[assignment]
            self._stopping.set()
        except Exception:  # a worker that is starting or stopping may lack any of this
            log.exception("presence failed")

    def stop(self) -> None:
        self._stopping.set()
        # A call in progress would write again that the worker is there.
        self.join(PRESENCE_INTERVAL.total_seconds())
        try:
            self._registration.leave()
        except (RedisError, OSError) as error:
            log.warning("presence not removed", error=str(error))

    def _record(self) -> WorkerProcess:
        return WorkerProcess(
            name=self._consumer.hostname,
            queues=consumed(self._consumer.task_consumer),
            pool_size=size_of(self._consumer.pool),
            tasks=self._digest,
            pool=pool_name(type(self._consumer.pool)),
        )


def size_of(pool: Any) -> int:
    """The pool's size; 0 once it has been stopped, which is before the worker ends."""
    return 0 if getattr(pool, "_pool", pool) is None else places(pool)


class Attends(bootsteps.StartStopStep):
    """Keeps a presence from when the worker consumes its queues until it has stopped.

    Not by signals alone: not every worker sends `worker_ready`, and a worker that an app's tests
    start in a thread sends no `worker_shutdown`.
    """

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._consumer = parent
        self._registration: WorkerRegistration | None = None
        own, connect, loop = parent.init_callback, parent.connect, MainLoop(parent)

        def ready(consumer: Any) -> None:
            loop.start()
            self._registration = WorkerRegistration(consumer, loop)
            self._registration.start()
            if own:
                own(consumer)

        parent.init_callback = ready
        parent.connect = lambda: loop.connected(connect())
        signals.worker_shutdown.connect(self._shut_down, weak=False)

    def shutdown(self, consumer: Any) -> None:
        registration, self._registration = self._registration, None
        if registration is not None:
            registration.stop()
        main_process_of(consumer.app).lock_file.let_go()  # its thread looks at the file

    def _shut_down(self, sender: Any, **_: Any) -> None:
        if sender.hostname == self._consumer.hostname:
            self.shutdown(self._consumer)
