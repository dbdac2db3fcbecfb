"""What the main process of a worker has for its runs: one of each, made before it forks.

A child has copies of it: of the table its memory, of the lock file the lock. The heartbeat begins
with the first run, after the children are forked.
"""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import Any

from celery import Celery, signals

from supervisor.guard.child_table import ChildTable
from supervisor.guard.heartbeat import Heartbeat
from supervisor.guard.lock_file import LockFile
from supervisor.ledger.ledger import Ledger
from supervisor.sending.app_settings import required_settings


class MainProcess:
    def __init__(self, app: Celery) -> None:
        self._app = app
        self.table = ChildTable()
        self.lock_file = LockFile()
        self._heartbeat: Heartbeat | None = None
        self._starting = Lock()

    @property
    def heartbeat(self) -> Heartbeat:
        """Started with the first run: nothing of it exists when children are forked."""
        with self._starting:  # in a pool of threads, tasks are accepted side by side
            if self._heartbeat is None:
                ledger = Ledger.open_without_retries(required_settings(self._app))
                self._heartbeat = Heartbeat(ledger, self.table)
                self._heartbeat.start()
            return self._heartbeat

    def stop(self) -> None:
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat:
            heartbeat.stop()


@cache
def main_process_of(app: Celery) -> MainProcess:
    return MainProcess(app)


@signals.worker_shutdown.connect(weak=False)
def stop_heartbeat(sender: Any, **_: Any) -> None:
    main_process_of(sender.app).stop()
