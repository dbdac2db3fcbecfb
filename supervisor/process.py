"""Child processes that do not outlive their parent, and that cannot use more than they are given.

`Child` is for work on untrusted input, and for work that needs much memory for a moment: its parent
never has to wait for it, and the memory is freed when it ends. Python's heap rarely shrinks: a
process that once reads ten thousand jobs keeps the memory that it needed for them.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import re
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe, current_process
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1

#: A child runs at low priority, because it shares the processors with its parent.
NICE = 10

#: A killed process that is still there after this hangs in the kernel, and is left behind.
GONE_SECONDS = 2

#: `reserve_closed_files` leaves so many for the process itself.
FILES_LEFT = 256


def process_name(pid: int | None = None) -> str:
    """This process, or another of this machine, as people see it: ``vm:1234``."""
    return f"{socket.gethostname()}:{pid or os.getpid()}"


ForkedWork = Callable[[], Any]
"""Done in the child; what it returns or raises must be picklable."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a child may use: seconds of processor time, and bytes on top of its parent's."""

    cpu_seconds: int
    memory: int


class Fork(ForkProcess):
    """Does nothing of what libraries have registered to be done first in a child.

    kombu has the app's connections closed: one that had waited for messages would wait for its
    reply there, on the socket of the parent, which may be for ever.
    """

    @staticmethod
    def _after_fork() -> None:
        pass


class Child:
    """A fork that works beside this process: a copy of it without its threads.

    The work may not use connections of kombu, which are those of its parent.
    """

    def __init__(self, work: ForkedWork, limits: Limits) -> None:
        self._started_at = time.monotonic()
        self._pipe, theirs = Pipe()
        # multiprocessing allows a daemonic process no children, which would outlive it: not these.
        current_process().daemon = False
        self._process = Fork(
            target=_run, args=(work, theirs, self._pipe, limits, os.getpid()), daemon=True
        )
        self._process.start()
        theirs.close()

    @property
    def age_seconds(self) -> float:
        return time.monotonic() - self._started_at

    def has_ended(self, seconds: float = 0) -> bool:
        """Whether the work is done, or the child was killed, within `seconds`."""
        return self._pipe.poll(max(0.0, seconds))

    def result(self) -> Any:
        """What the work returned; waits for it, and ends the child.

        Raises what the work raised, and ChildProcessError when the child was killed.
        """
        try:
            succeeded, outcome = self._pipe.recv()
        except (EOFError, OSError):
            self.end()
            raise ChildProcessError(_end_of(self._process.exitcode)) from None
        self.end()
        if not succeeded:
            raise outcome
        return outcome

    def end(self) -> None:
        """Kills it if it is still there."""
        self._process.kill()
        self._process.join(GONE_SECONDS)
        self._pipe.close()


def make_private(directory: Path) -> None:
    """Makes the directory, and those above it that are missing, for this user alone."""
    for each in (*reversed(directory.parents), directory):
        each.mkdir(mode=0o700, exist_ok=True)


def die_with_parent() -> None:
    """For a child: the kernel sends it SIGTERM when the thread that started it is gone.

    Linux only; elsewhere a child whose parent was killed has to be ended by hand.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def reserve_closed_files() -> None:
    """For a process whose files were closed while objects that opened them are still there.

    Such an object closes, and may write into, whatever file has its number later. So /dev/null
    takes all numbers that the process can have had. Linux only.
    """
    if sys.platform == "linux":
        table = re.search(r"^FDSize:\s*(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_LEFT
        numbers = min(int(table[1]), most) if table else 0
        while os.open(os.devnull, os.O_RDWR) < numbers - 1:  # each takes the lowest that is free
            pass


def sendable(error: Exception) -> Exception:
    """The error, or one with its text if it cannot be unpickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever its own code raises
        return ChildProcessError(f"{type(error).__name__}: {error}")
    return error


def _run(
    work: ForkedWork,
    pipe: Connection,
    parents: Connection,
    limits: Limits,
    parent: int,
) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # the parent's handler is not the child's
    die_with_parent()
    if os.getppid() != parent:  # it was gone already
        os._exit(1)
    parents.close()
    gc.freeze()  # what the parent has thrown away ends there: it may have a connection to close
    status = 1
    try:
        _limit(limits)
        os.nice(NICE)
        try:
            pipe.send((True, work()))
        except Exception as error:  # noqa: BLE001 - raised where the outcome is waited for
            pipe.send((False, sendable(error)))
        status = 0
    finally:
        os._exit(status)  # the parent's exit handlers are the parent's


def _limit(limits: Limits) -> None:
    _lower(resource.RLIMIT_CPU, limits.cpu_seconds)
    _lower(resource.RLIMIT_CORE, 0)
    if sys.platform == "linux":  # elsewhere the kernel does not hold to it
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _lower(resource.RLIMIT_AS, pages * resource.getpagesize() + limits.memory)


def _lower(what: int, limit: int) -> None:
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _end_of(exit_code: int | None) -> str:
    if exit_code == -signal.SIGXCPU:
        return "it took more processor time than it is given"
    return f"a child was ended, exit code {exit_code}"


# Garbage collection in processes that deal with thousands of jobs at once.
#
# A scrape and an emission make hundreds of thousands of objects, few of which are part of a cycle.
# Looking at them as often as Python does by default takes a tenth of the time.


RARELY = (100_000, 50, 100)


def collect_rarely() -> None:
    """Makes garbage collection rare, from now on and in the whole process."""
    gc.set_threshold(*RARELY)
