"""Finds the dead workers of this machine, and reports their runs.

A worker that starts, and every worker and beat once a second, tries to lock the files of the other
workers (lock_file.py). The process that can lock one reports that worker's running runs in its
ledger as dead. It goes on doing so for a while, because a call to `begin` may still be on its way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from supervisor.guard.lock_file import LockFile, boot, directory, locked
from supervisor.ledger.ledger import Ledger
from supervisor.logs import RUN_EVENTS, get_logger
from supervisor.store.failures import RedisError, explained, may_pass
from supervisor.times import clock

log = get_logger("supervisor.guard")

#: For how long a worker that is gone is reported.
REPORTED_SECONDS = 10.0


class Reaper:
    """own: the file of the worker that reaps, if it is one."""

    def __init__(self, ledger: Ledger, own: LockFile | None = None) -> None:
        self._ledger = ledger
        self._own = own
        self._directory = directory()
        self._gone_since: dict[str, float] = {}
        self._is_failing = False

    def reap(self) -> None:
        """Reports the runs of workers that are gone. Call it each second.

        Whatever goes wrong is logged when it begins and when it is over: a later call reports them,
        or their leases run out. A run that Redis cannot process, such as one with a damaged record,
        is logged and skipped.
        """
        try:
            self._reap()
        except Exception as error:  # noqa: BLE001 - it must stop neither a worker nor beat
            if not self._is_failing:
                text = explained(error) if isinstance(error, RedisError) else repr(error)
                log.warning("reaper failed", error=text)
            self._is_failing = True
        else:
            if self._is_failing:
                log.info("reaper recovered")
            self._is_failing = False

    def _reap(self) -> None:
        gone = set(self._gone())
        self._report(gone)
        for process in gone:
            self._gone_since.setdefault(process, clock())

    def _gone(self) -> Iterator[str]:
        """Yields the workers that are gone. A dead worker stays dead, so no lock is kept."""
        for path in self._files():
            process = path.suffix.removeprefix(".")
            since = self._gone_since.get(process, clock())
            is_own = self._own is not None and process == self._own.name
            if is_own or process == "new" or clock() - since > REPORTED_SECONDS:
                continue
            with locked(path) as inode:
                if process.endswith(f"-{inode}"):
                    yield process

    def _files(self) -> list[Path]:
        """Those of this boot. Where there are none, an idle beat does not ask which boot it is."""
        if self._directory is None:
            return []
        try:
            paths = [*self._directory.iterdir()]
        except FileNotFoundError:
            return []
        beginning = f"{boot()}." if paths else ""
        return [path for path in paths if path.name.startswith(beginning)]

    def _report(self, gone: Collection[str]) -> None:
        for run_id, token, worker in self._ledger.at_work_in(gone):
            reason = f"worker {worker} is gone"
            try:
                finished = self._ledger.report_dead(run_id, token, reason)
            except RedisError as error:
                if may_pass(error):
                    raise
                log.error("dead worker not reported", run=run_id, error=str(error))
                continue
            if finished.is_first:
                _, event = RUN_EVENTS[finished.ending]
                log.warning(event, run=run_id, reason=reason)
