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
import locale
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import IO, Any

#: How long a program's group has to end by itself.
STOP_GRACE_SECONDS = 5.0

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
    if options.get("stdin") is None:
        options["stdin"] = subprocess.PIPE
    codec = codec_of(options)
    with TemporaryFile() as sent, TemporaryFile() as out, TemporaryFile() as err:
        # A file in the place of each pipe: a pipe is to be read and written meanwhile, and whatever
        # the program leaves behind may hold it open.
        files = {"stdin": sent, "stdout": out, "stderr": err}
        options |= {n: file for n, file in files.items() if options.get(n) == subprocess.PIPE}
        sent.write(input.encode(*codec) if codec and input is not None else input or b"")
        sent.seek(0)
        written = [file if options.get(n) is file else None for n, file in files.items()][1:]
        try:
            status = status_of(command, options, timeout, stop_grace)
        except subprocess.TimeoutExpired as late:
            late.stdout, late.stderr = map(content_of, written)
            raise
        outputs = [decoded(content_of(file), codec) for file in written]
    if check and status:
        raise subprocess.CalledProcessError(status, command, *outputs)
    return subprocess.CompletedProcess(command, status, *outputs)


def status_of(
    command: str | Sequence[str | os.PathLike[str]],
    options: Mapping[str, Any],
    timeout: float | None,
    stop_grace: float,
) -> int:
    """Runs the program until it ends, and ends its group with it."""
    with (
        watched_group() as group,
        subprocess.Popen(command, process_group=group, **options) as process,
    ):
        try:
            return process.wait(timeout)
        except BaseException:
            end(group, process, stop_grace)
            raise


def refuse_contradictions(options: Mapping[str, Any], input: Any, capture_output: bool) -> None:
    """As subprocess.run does."""
    if input is not None and options.get("stdin") is not None:
        raise ValueError("stdin and input may not both be used")
    if capture_output and not (options.get("stdout") is options.get("stderr") is None):
        raise ValueError("stdout and stderr may not be used with capture_output")


def content_of(file: IO[bytes] | None) -> bytes | None:
    """Read without moving the place at which a program that was left behind still writes."""
    return None if file is None else os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)


def codec_of(options: dict[str, Any]) -> tuple[str, str] | None:
    """Takes what subprocess calls text mode out of the options; None for bytes."""
    is_text = [options.pop(name, None) for name in ("text", "universal_newlines")]
    encoding, errors = options.pop("encoding", None), options.pop("errors", None)
    if not (any(is_text) or encoding or errors):
        return None
    return encoding or locale.getencoding(), errors or "strict"


def decoded(output: bytes | None, codec: tuple[str, str] | None) -> Any:
    if output is None or codec is None:
        return output
    return io.TextIOWrapper(io.BytesIO(output), *codec).read()


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
