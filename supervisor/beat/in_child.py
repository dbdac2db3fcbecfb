"""Work that needs much memory for a moment, done in a child process: the memory ends with it.

Python's heap rarely shrinks: what lives on lies between what was needed for a moment. Who reads ten
thousand jobs once keeps as much memory for ever as it needed then.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar, cast

from supervisor.child_processes import die_with_parent

T = TypeVar("T")

EACH_SECONDS = 1


def in_child(work: Callable[[], T], meanwhile: Callable[[], object] = lambda: None) -> T:
    """What `work` returns or raises, which must be picklable, once the child has ended.

    meanwhile: called in this process each second until then.

    The child is a fork: it has all that this process has, but for its threads, and ends with it.
    Raises ChildProcessError when it was killed.
    """
    fork = get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=_work, args=(work, sender, os.getpid()))
    child.start()
    sender.close()
    try:
        while not receiver.poll(EACH_SECONDS):
            meanwhile()
        succeeded, outcome = receiver.recv()
    except EOFError:
        child.join()
        raise ChildProcessError(f"a child was ended, exit code {child.exitcode}") from None
    finally:
        receiver.close()
        child.join()
    if not succeeded:
        raise outcome
    return cast(T, outcome)


def sendable(error: Exception) -> Exception:
    """The error, or its words where it cannot be made anew from its arguments."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever its own code raises
        return ChildProcessError(f"{type(error).__name__}: {error}")
    return error


def _work(work: Callable[[], Any], sender: Connection, parent: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # what the parent would do when it is told to stop
    die_with_parent()
    if os.getppid() != parent:  # it was gone already
        os._exit(1)
    try:
        sender.send((True, work()))
    except Exception as error:  # noqa: BLE001 - raised where the outcome is waited for
        sender.send((False, sendable(error)))
    sender.close()
    os._exit(0)  # the parent's exit handlers are the parent's
