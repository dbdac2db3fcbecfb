"""Programs that a job runs, and that do not outlive it.

1. A watcher starts first: a shell in a process group of its own, which reads from a pipe that is
   never written to. Only the job's process holds the other end.
2. The program starts in the watcher's group, and with it all that it starts itself.
3. When the program ends, or an exception ends the wait for it, `run_command` ends the group.
4. If the job's process is killed - for its hard time limit, with its worker, by hand - it cannot
   end anything. The kernel closes its end of the pipe; the watcher reads the end of the file and
   kills its group, including itself.

The watcher is in the group that it kills. So the group's number is not given to another process
while it may be used: not while the watcher lives, nor before its exit status was read.

What leaves the group (setsid, a daemon) is not ended, and a process that the job forks without
starting a program (multiprocessing) holds the pipe as the job does: the group lives as long.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import IO, Any

#: How long a program's group has to end by itself.
STOP_GRACE_SECONDS = 5.0

#: How often to check whether the program has ended while others hold its pipes.
POLL_SECONDS = 0.5

#: How long to read from processes that left the program's group and still hold its pipes.
LAST_WORDS_SECONDS = 1.0

#: The watcher ignores signals that people send to the group: they are for the program.
WATCH = "trap '' HUP INT QUIT TERM USR1 USR2; read -r _; kill -s KILL 0"


def run_command(
    command: str | Sequence[str | os.PathLike[str]],
    *,
    check: bool = True,
    input: Any = None,
    capture_output: bool = False,
    timeout: float | None = None,
    stop_grace: float = STOP_GRACE_SECONDS,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Runs a program that does not outlive the run, even if the job's process is killed.

    It takes the parameters of subprocess.run, but `check` is True by default, and standard input is
    empty unless `input` or `stdin` is given. The program runs in a process group of its own, which
    is ended when the program, the run or the job's process ends.

    - `timeout`: after so many seconds the program is ended, and TimeoutExpired is raised.
    - `stop_grace`: how many seconds the group has to end after SIGTERM, before it is killed.

    Raises CalledProcessError if the program exits with a status other than 0, unless `check` is
    False. If the run is cancelled, loses its lease or exceeds its soft time limit meanwhile, the
    group is ended and RunCancelled, LeaseLost or SoftTimeLimitExceeded is raised.
    """
    refuse_contradictions(options, input, capture_output)
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with (
        standard_input(input, options) as stdin,
        watched_group() as group,
        subprocess.Popen(command, process_group=group, **{**options, "stdin": stdin}) as process,
    ):
        try:
            stdout, stderr = outputs_of(process, group, timeout)
        except BaseException:
            end(group, process, stop_grace)
            raise
    status = process.returncode
    if check and status:
        raise subprocess.CalledProcessError(status, command, stdout, stderr)
    return subprocess.CompletedProcess(command, status, stdout, stderr)


def refuse_contradictions(options: Mapping[str, Any], input: Any, capture_output: bool) -> None:
    """As subprocess.run does."""
    if input is not None and options.get("stdin") is not None:
        raise ValueError("stdin and input may not both be used")
    if capture_output and not (options.get("stdout") is options.get("stderr") is None):
        raise ValueError("stdout and stderr may not be used with capture_output")


@contextmanager
def standard_input(input: Any, options: Mapping[str, Any]) -> Iterator[Any]:
    """A file with the input: nothing has to write while the program reads."""
    if input is None:
        given = options.get("stdin")
        yield subprocess.DEVNULL if given is None else given
        return
    encoding, errors = options.get("encoding"), options.get("errors")
    is_text = encoding or errors or options.get("text") or options.get("universal_newlines")
    with TemporaryFile("w+" if is_text else "w+b", encoding=encoding, errors=errors) as file:
        file.write(input)
        file.seek(0)
        yield file


def outputs_of(
    process: subprocess.Popen[Any], group: int, timeout: float | None
) -> tuple[Any, Any]:
    """Standard output and standard error until the program ends, None for what is not captured.

    Popen.communicate alone would wait for all that the program left behind with its pipes. Here the
    group is ended, and what has left the group is read for LAST_WORDS_SECONDS.
    """
    if not (process.stdout or process.stderr):
        return process.communicate(timeout=timeout)
    deadline = float("inf") if timeout is None else time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        try:
            return process.communicate(timeout=min(left, POLL_SECONDS))
        except subprocess.TimeoutExpired as late:
            if process.poll() is not None:
                break
            if timeout is not None and left <= POLL_SECONDS:
                late.timeout = timeout
                raise
    signal_group(group, signal.SIGKILL)
    try:
        return process.communicate(timeout=LAST_WORDS_SECONDS)
    except subprocess.TimeoutExpired as late:
        return decoded(late.stdout, process.stdout), decoded(late.stderr, process.stderr)


def decoded(output: bytes | None, pipe: IO[Any] | None) -> Any:
    """As communicate gives what it read from the pipe."""
    if pipe is None:
        return None
    if isinstance(pipe, io.TextIOWrapper):
        return io.TextIOWrapper(io.BytesIO(output or b""), pipe.encoding, pipe.errors).read()
    return output or b""


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
        with contextlib.suppress(subprocess.TimeoutExpired, UnicodeError):
            outputs_of(process, group, stop_grace)  # it may have to write before it ends
    finally:
        signal_group(group, signal.SIGKILL)
        process.kill()  # one that has left its group


def signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
