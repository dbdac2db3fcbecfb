"""An independent witness of who worked when: it does not ask the guard, and the guard not it.

Each execution of an example leaves two lines in `witness.jsonl`, at its start and at its end.
Every line is one write to a file opened with O_APPEND, so the order of the lines is the order of
the events, without any trust in clocks: an execution whose end stands above another's start was
over before that one began.

An execution that is killed writes no end. For that the kernel is the witness: each execution
holds a `flock` on a file of its job, which the kernel takes back the moment the process is gone,
and not while it is merely stopped. An execution that finds the lock free writes `alone: true`.
So these are overlaps, for two executions of one job:

1. the later one's start stands above the earlier one's end;
2. the later one was not alone: the other still lived, even if it never came to write its end.

And an execution without an end was over, killed, when a later one found itself alone.

The lock is taken without waiting and refuses nothing: it observes. It is one machine's; witnesses
of two machines cannot be joined.

    python -m examples.witness .supervisor/witness.jsonl
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from examples.storage import directory
from supervisor import current_run

FILE = "witness.jsonl"

#: Past this the file is put aside as `witness.jsonl.1`, in place of the one before.
MAX_BYTES = 20_000_000


@dataclass(slots=True)
class Execution:
    """One call of an example's task: an attempt of a run. `began` and `ended` are line numbers."""

    job: str
    run: str | None
    pid: int
    began: int
    alone: bool
    ended: int | None = None

    def __str__(self) -> str:
        return f"{self.run or self.job} (pid {self.pid})"


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two executions of one job at the same time; `first` is None when its line was put aside."""

    first: Execution | None
    second: Execution

    def __str__(self) -> str:
        return f"{self.second.job}: {self.second} began while {self.first or 'another'} was at work"


@dataclass(frozen=True, slots=True)
class Testimony:
    """What a witness file says; `unreadable` lines were torn by a kill in the middle of a write."""

    executions: list[Execution]
    overlaps: list[Overlap]
    unreadable: int


@contextmanager
def witness(job: str) -> Iterator[None]:
    """Around the work of an example: its start, its end, and whether it was alone."""
    run = current_run()
    who = {"job": job, "run": run and run.run_id, "attempt": run and run.attempt}
    lock = os.open(directory() / f"witness.{job}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _append(who | {"event": "start", "alone": _try_lock(lock)})
        try:
            yield
        finally:
            _append(who | {"event": "end"})
    finally:
        os.close(lock)


def bound(max_bytes: int = MAX_BYTES) -> None:
    """Keeps the witness file from growing for ever; for one caller at a time."""
    path = directory() / FILE
    if path.exists() and path.stat().st_size > max_bytes:
        path.replace(path.with_name(f"{FILE}.1"))


def overlaps(path: Path) -> list[Overlap]:
    """The pairs of executions of one job that overlapped, in the order of their discovery."""
    return read(path).overlaps


def read(path: Path) -> Testimony:
    executions: list[Execution] = []
    working: dict[tuple[str, str | None, int], Execution] = {}
    unreadable = 0
    for number, line in enumerate(path.read_text().splitlines()):
        try:
            event = json.loads(line)
            who = (event["job"], event["run"], event["pid"])
            starts = event["event"] == "start"
            execution = Execution(*who, began=number, alone=starts and event["alone"])
        except (ValueError, LookupError, TypeError):
            unreadable += 1
            continue
        if starts:
            executions.append(execution)
            working[who] = execution
        elif who in working:
            working.pop(who).ended = number
    return Testimony(executions, list(_overlaps(executions)), unreadable)


def _overlaps(executions: Sequence[Execution]) -> Iterator[Overlap]:
    at_work: dict[str, list[Execution]] = {}
    for later in executions:
        others = at_work.setdefault(later.job, [])
        others[:] = [earlier for earlier in others if not _is_over(earlier, later)]
        yield from (Overlap(earlier, later) for earlier in others)
        if not later.alone and not others:
            yield Overlap(None, later)
        others.append(later)


def _is_over(earlier: Execution, later: Execution) -> bool:
    """Whether `earlier` was done, or killed, when `later` began."""
    if earlier.ended is None:
        return later.alone
    return earlier.ended < later.began


def _append(event: dict[str, Any]) -> None:
    clocks = {"at": datetime.now(UTC).isoformat(), "monotonic": time.monotonic()}
    line = json.dumps(event | {"pid": os.getpid()} | clocks) + "\n"
    file = os.open(directory() / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def main(arguments: Sequence[str]) -> int:
    """Prints the verdict; 0: no overlap, 1: overlaps, 2: there is nothing to read."""
    out = sys.stdout.write
    if len(arguments) != 1 or not Path(arguments[0]).is_file():
        out("usage: python -m examples.witness FILE\n")
        return 2
    testimony = read(Path(arguments[0]))
    unended = sum(execution.ended is None for execution in testimony.executions)
    for overlap in testimony.overlaps:
        out(f"overlap: {overlap}\n")
    out(
        f"{len(testimony.executions)} executions, {unended} without an end,"
        f" {testimony.unreadable} unreadable lines, {len(testimony.overlaps)} overlaps\n"
    )
    return 1 if testimony.overlaps else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
