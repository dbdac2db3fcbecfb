"""Which children of a worker are inside a job's code: told by them, read by the main process.

A child that has done its work and cannot report it, because the ledger is away, must not be killed
as one that works without a lease. The table is memory that the children share with their main
process: it is made before they are forked. A child's byte is found by its process id.
"""

from __future__ import annotations

import mmap
import os

SIZE = 1 << 16
IDLE, AT_WORK = b"\0", b"\1"

_table: mmap.mmap | None = None


def share() -> None:
    """Makes the table; in a worker's main process, before the pool forks."""
    global _table
    _table = _table or mmap.mmap(-1, SIZE)


def tell(at_work: bool) -> None:
    """This process enters or leaves a job's code."""
    if _table is not None:
        place = os.getpid() % SIZE
        _table[place : place + 1] = AT_WORK if at_work else IDLE


def is_at_work(pid: int) -> bool:
    """True also when it cannot be known."""
    return _table is None or _table[pid % SIZE : pid % SIZE + 1] == AT_WORK
