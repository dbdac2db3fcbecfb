"""Proof of a worker's life for the other processes of its machine: a lock that the kernel keeps.

1. Before it forks its pool, a worker makes a file in the directory of locks and locks it (flock).
   Its name ends in its inode: a copy, as a backup brings it back, proves nothing.
   Its children inherit the lock: it is free when the worker and all of its children are gone, and
   never before.
2. A run that begins records the file's name as its `process`, with the token of the attempt. An
   attempt whose own token is not recorded there proves nothing, whatever an earlier attempt did.
3. The process that can lock the file of another worker knows that nothing of that worker is left
   (reaper.py).
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
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from supervisor.logs import get_logger
from supervisor.process import make_private

log = get_logger("supervisor.guard")

#: The variable that names the directory of locks.
DIRECTORY_VARIABLE = "SUPERVISOR_LOCK_DIR"

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

#: The directory may have other files.
FILE_NAME = re.compile(r"[0-9a-f-]{36}\.[0-9a-f]{16}(-\d+|\.new)")

#: A living worker touches its file every TOUCHED_EACH; a file older than OLD belongs to a dead one.
TOUCHED_EACH = timedelta(minutes=1)
OLD = timedelta(minutes=10)


class LockFile:
    """A worker's own, which its children inherit."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self._fd = -1

    @property
    def name(self) -> str:
        """Of the worker, in the names of files; empty without a file."""
        return self.path.suffix.removeprefix(".") if self.path else ""

    @property
    def process(self) -> str:
        """What runs of this worker record as their `process`; empty without a proof of life."""
        return self.name if self._is_open() else ""

    def hold(self) -> None:
        """Makes the file and locks it, before the pool forks."""
        self.let_go()
        locks = directory()
        if locks is None:
            return
        try:
            remove_old(locks)
            self.path, self._fd = new_file(locks)
        except OSError as error:
            log.warning("proof of life not written", directory=str(locks), error=str(error))

    def let_go(self) -> None:
        """Removes the file as the worker stops.

        Runs that its children still have are then rescued when their leases run out.
        """
        if self.path is None:
            return
        with suppress(OSError):
            self.path.unlink()
        if self._is_open():  # else the descriptor's number may be another file's by now
            os.close(self._fd)
        self.path = None

    def check(self) -> None:
        """Touches the file, to show that the worker is still there.

        Removes it if code of the app has closed it in this process, since it then proves nothing.
        """
        if self.path is None:
            return
        with suppress(OSError):
            status = self.path.stat()
            if os.path.samestat(os.fstat(self._fd), status):
                if time.time() - status.st_mtime > TOUCHED_EACH.total_seconds():
                    os.utime(self.path)
                return
        with suppress(OSError):
            self.path.unlink()

    def _is_open(self) -> bool:
        """Whether this process still has it open: code of the app may have closed it."""
        try:
            return bool(self.name) and self.name.endswith(f"-{os.fstat(self._fd).st_ino}")
        except OSError:
            return False


def new_file(locks: Path) -> tuple[Path, int]:
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
    return path, fd


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
