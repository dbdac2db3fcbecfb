"""Programs that a job runs, and that do not outlive it.

1. A watcher starts first: a shell in a process group of its own, which reads from a pipe that
   nobody writes to. The job's process alone holds the other end.
2. The program starts in the watcher's group, and with it all that it starts itself.
3. When the program ends, or an exception ends the wait for it, `run_command` ends the group.
4. A job's process that is killed - for its hard time limit, with its worker, by hand - can end
   nothing. The kernel closes its end of the pipe; the watcher reads the end of the file and kills
   its group, itself as well.

The watcher is in the group that it kills. So the group's number is not given to anybody else as
long as it may be used: not while the watcher lives, nor before we have asked how it ended.

What leaves the group (setsid, a daemon) is not ended, and a process that the job forks without
starting a program (multiprocessing) holds the pipe as the job does: the group lives as long.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

#: What a program's group is given to end by itself.
STOP_GRACE_SECONDS = 5.0

#: Signals that people send to a group are for the program.
WATCH = "trap '' HUP INT QUIT TERM USR1 USR2; read -r _; kill -s KILL 0"


def run_command(
    command: Sequence[str],
    *,
    check: bool = True,
    input: Any = None,
    timeout: float | None = None,
    stop_grace: float = STOP_GRACE_SECONDS,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Runs a program in a process group that ends with it, with the run, and with the process.

    options: of subprocess.Popen, such as cwd, env, text, stdout; standard input is empty without
    `input`. timeout, stop_grace: seconds. Raises CalledProcessError when it exits with another
    status than 0, unless `check` is False, TimeoutExpired, and what is raised in the job while it
    waits (RunCancelled, LeaseLost, SoftTimeLimitExceeded): then the group gets SIGTERM, and what is
    left of it after the program's end, or after `stop_grace`, is killed.
    """
    options.setdefault("stdin", subprocess.DEVNULL if input is None else subprocess.PIPE)
    with (
        watched_group() as group,
        subprocess.Popen(command, process_group=group, **options) as process,
    ):
        try:
            stdout, stderr = process.communicate(input, timeout)
        except BaseException:
            end(group, process, stop_grace)
            raise
    status = process.returncode
    if check and status:
        raise subprocess.CalledProcessError(status, command, stdout, stderr)
    return subprocess.CompletedProcess(command, status, stdout, stderr)


@contextmanager
def watched_group() -> Iterator[int]:
    """A process group that is gone when this is left, or when this process is gone."""
    watcher = subprocess.Popen(
        ("/bin/sh", "-c", WATCH),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    try:
        yield watcher.pid
    finally:
        signal_group(watcher.pid, signal.SIGKILL)
        with watcher:  # closes the pipe, and asks how it ended
            pass


def end(group: int, process: subprocess.Popen[Any], stop_grace: float) -> None:
    try:
        signal_group(group, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(stop_grace)
    finally:
        signal_group(group, signal.SIGKILL)
        process.kill()  # one that has left its group


def signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
