"""Proof of a worker's life for the other processes of its machine: a lock that the kernel keeps.

1. Before it forks its pool, a worker makes a file in the directory of locks and locks it (flock).
   Its name ends in its inode: a copy, as a backup brings it back, proves nothing.
   Its children inherit the lock: it is free when the worker and all of its children are gone, and
   never before.
2. A run that begins records the file's name as its `process`, with the token of the attempt. An
   attempt whose own token is not recorded there proves nothing, whatever an earlier attempt did.
3. A worker that starts, and every worker and beat once a second, tries to lock the files of the
   others. The process that can lock one knows that nothing of that worker is left, and reports the
   worker's running runs in its ledger as dead. It goes on doing so for a while, because a call to
   `begin` may still be on its way.
4. Nothing is concluded from anything else. A file that is missing or cannot be read proves nothing,
   and the lease decides. The same holds for a file of another machine that shares the directory,
   or from before a reboot: the names of files begin with the boot's id.

Containers have this proof of each other if they share the directory. A restarted container has it
of the one before if the directory outlives it.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from supervisor.ledger.ledger import Ledger
from supervisor.logs import RUN_EVENTS, get_logger
from supervisor.process import make_private
from supervisor.store.connection import RedisError, explained, may_pass
from supervisor.times import clock

log = get_logger("supervisor.guard")

#: The variable that names the directory of locks.
DIRECTORY_VARIABLE = "SUPERVISOR_LOCK_DIR"

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

#: The directory may have other files.
FILE_NAME = re.compile(r"[0-9a-f-]{36}\.[0-9a-f]{16}(-\d+|\.new)")

LOOK_SECONDS = 1.0

#: For how long a worker that is gone is reported.
REPORTED_SECONDS = 10.0

#: A living worker touches its file every TOUCHED_EACH; a file older than OLD belongs to a dead one.
TOUCHED_EACH = timedelta(minutes=1)
OLD = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class OwnFile:
    process: str
    path: Path
    fd: int

    def is_open(self) -> bool:
        """Whether this process still has it open: code of the app may have closed it."""
        try:
            return self.process.endswith(f"-{os.fstat(self.fd).st_ino}")
        except OSError:
            return False


#: This worker's lock file; its children inherit the descriptor.
_own: OwnFile | None = None


def own_process() -> str:
    """What runs of this worker record as their `process`; empty without a proof of life."""
    return _own.process if _own and _own.is_open() else ""


def hold() -> None:
    """Makes this worker's file and locks it, before the pool forks."""
    global _own
    let_go()
    locks = directory()
    if locks is None:
        return
    try:
        remove_old(locks)
        _own = new_file(locks)
    except OSError as error:
        log.warning("proof of life not written", directory=str(locks), error=str(error))


def new_file(locks: Path) -> OwnFile:
    """Makes a locked file with its inode in its name, so that a copy of it proves nothing."""
    new = locks / f"{boot()}.{uuid4().hex[:16]}.new"
    fd = os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path = new.with_name(f"{new.stem}-{os.fstat(fd).st_ino}")
        new.rename(path)  # no process finds it before it is locked
    except OSError:
        os.close(fd)
        with suppress(OSError):
            new.unlink()
        raise
    return OwnFile(path.suffix.removeprefix("."), path, fd)


def remove_old(locks: Path) -> None:
    """Removes the files of workers that died long enough ago for every reaper to have noticed."""
    for path in locks.iterdir():
        if not FILE_NAME.fullmatch(path.name):
            continue
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > OLD.total_seconds():
                with locked(path) as inode:
                    if inode is not None:
                        path.unlink(missing_ok=True)


def let_go() -> None:
    """Removes this worker's file as it stops.

    Runs that its children still have are then settled by their leases.
    """
    global _own
    own, _own = _own, None
    if own is None:
        return
    with suppress(OSError):
        own.path.unlink()
    if own.is_open():  # else the descriptor's number may be another file's by now
        os.close(own.fd)


def check_own_file() -> None:
    """Touches this worker's file, to show that the worker is still there.

    Removes the file if code of the app has closed it in this process, since it then proves nothing.
    """
    own = _own
    if own is None:
        return
    with suppress(OSError):
        status = own.path.stat()
        if os.path.samestat(os.fstat(own.fd), status):
            if time.time() - status.st_mtime > TOUCHED_EACH.total_seconds():
                os.utime(own.path)
            return
    with suppress(OSError):
        own.path.unlink()


def directory() -> Path | None:
    """The directory of locks, made if it is missing. None if there can be no proof of life."""
    named = os.environ.get(DIRECTORY_VARIABLE)
    if named == "":
        return None
    try:
        boot()
    except OSError:  # not Linux, or a sandbox without it
        return None
    default = Path(tempfile.gettempdir()) / f"celery-beat-supervisor-{os.getuid()}"
    locks = Path(named) if named else default
    try:
        make_private(locks)
        status = locks.lstat()
    except OSError as error:
        log.warning("proof of life not written", directory=str(locks), error=str(error))
        return None
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not (named or (is_own and not status.st_mode & 0o022)):
        log.warning(
            "proof of life not written", directory=str(locks), error="it is not this user's alone"
        )
        return None
    return locks


def boot() -> str:
    """The id of this boot of the machine, with which the names of its files begin."""
    with BOOT_ID.open("rb", buffering=0) as file:  # half the time of reading it as text
        return file.read().decode().strip()


@contextmanager
def locked(path: Path) -> Iterator[int | None]:
    """Yields the file's inode with the file locked, or None if it could not be locked."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # another reaper has removed it
        yield None
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield None
    else:
        yield os.fstat(fd).st_ino
    finally:
        # A child that the pool has forked meanwhile has inherited the descriptor, and with it the
        # lock, which closing the file here would not release.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


class Reaper:
    """Looks for dead workers of this machine, and reports their runs."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._directory = directory()
        self._gone_since: dict[str, float] = {}
        self._is_failing = False

    def look(self) -> None:
        """Reports the runs of workers that are gone. Call it each second.

        Whatever goes wrong is logged when it begins and when it is over: a later look reports them,
        or their leases run out. A run that Redis cannot process, such as one with a damaged record,
        is logged and skipped.
        """
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - it must stop neither a worker nor beat
            if not self._is_failing:
                text = explained(error) if isinstance(error, RedisError) else repr(error)
                log.warning("witness failed", error=text)
            self._is_failing = True
        else:
            if self._is_failing:
                log.info("witness recovered")
            self._is_failing = False

    def _look(self) -> None:
        gone = set(self._gone())
        self._report(gone)
        for process in gone:
            self._gone_since.setdefault(process, clock())

    def _gone(self) -> Iterator[str]:
        """Yields the workers that are gone. A dead worker stays dead, so no lock is kept."""
        for path in self._files():
            process = path.suffix.removeprefix(".")
            since = self._gone_since.get(process, clock())
            is_own = _own is not None and process == _own.process
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


class ReaperThread(threading.Thread):
    """Looks each second, beside a worker's main loop."""

    def __init__(self, reaper: Reaper) -> None:
        super().__init__(name="supervisor-reaper", daemon=True)
        self._reaper = reaper
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            check_own_file()
            self._reaper.look()

    def stop(self) -> None:
        self._stopping.set()
