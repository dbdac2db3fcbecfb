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
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, Self

from supervisor.errors import OutputTooLarge

#: How long a program's group has to end by itself.
STOP_GRACE_SECONDS = 5.0

#: How much of each output stream is kept, which bounds the worker's memory.
MOST_OUTPUT_BYTES = 16 * 1024 * 1024

CHUNK_BYTES = 65_536

#: How often to check whether the program has ended while others hold its pipes.
POLL_SECONDS = 0.1

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
    max_output: int = MOST_OUTPUT_BYTES,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Runs a program that does not outlive the run, even if the job's process is killed.

    It takes the parameters of subprocess.run, but `check` is True by default, and standard input is
    empty unless `input` or `stdin` is given. The program runs in a process group of its own, which
    is ended when the program, the run or the job's process ends.

    - `timeout`: after so many seconds the program is ended, and TimeoutExpired is raised.
    - `stop_grace`: how many seconds the group has to end after SIGTERM, before it is killed.
    - `max_output`: how many bytes of each captured stream are kept; more raise OutputTooLarge.

    Raises CalledProcessError if the program exits with a status other than 0, unless `check` is
    False. If the run is cancelled, loses its lease or exceeds its soft time limit meanwhile, the
    group is ended and RunCancelled, LeaseLost or SoftTimeLimitExceeded is raised.
    """
    pipes = pipes_of(options, input, capture_output)
    codec = codec_of(options)
    with (
        watched_group() as group,
        subprocess.Popen(command, process_group=group, **{**options, **pipes}) as process,
    ):
        try:
            sent = input.encode(*codec) if codec and input is not None else input
            stdout, stderr = exchange(process, group, sent or b"", timeout, max_output)
        except BaseException:
            end(group, process, stop_grace)
            raise
    status = process.returncode
    outputs = decoded(stdout, codec), decoded(stderr, codec)
    if check and status:
        raise subprocess.CalledProcessError(status, command, *outputs)
    return subprocess.CompletedProcess(command, status, *outputs)


def pipes_of(options: Mapping[str, Any], input: Any, capture_output: bool) -> dict[str, Any]:
    """Refuses options that contradict each other, as subprocess.run does."""
    if input is not None and options.get("stdin") is not None:
        raise ValueError("stdin and input may not both be used")
    if capture_output and not (options.get("stdout") is options.get("stderr") is None):
        raise ValueError("stdout and stderr may not be used with capture_output")
    named = {"stdin": subprocess.PIPE if input is not None else subprocess.DEVNULL}
    if options.get("stdin") is not None:
        named = {}
    if capture_output:
        named |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return named


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


def exchange(
    process: subprocess.Popen[bytes], group: int, sent: bytes, timeout: float | None, limit: int
) -> tuple[bytes | None, bytes | None]:
    """What the program wrote to its pipes until it ended; what it left behind ends with it.

    Raises TimeoutExpired with what was written so far, and OutputTooLarge.
    """
    deadline = float("inf") if timeout is None else time.monotonic() + timeout
    with Pipes(process, sent, limit) as pipes:
        while process.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(process.args, timeout or 0, *pipes.outputs)
            if pipes.are_open:
                pipes.move(min(POLL_SECONDS, left))
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(None if timeout is None else left)
        signal_group(group, signal.SIGKILL)
        last = time.monotonic() + LAST_WORDS_SECONDS
        while pipes.are_open and time.monotonic() < last:
            pipes.move(POLL_SECONDS)
        return pipes.outputs


class Pipes:
    """The pipes to and from a program: each is closed when nothing more can come through it."""

    def __init__(self, process: subprocess.Popen[bytes], sent: bytes, limit: int) -> None:
        self._process = process
        self._unsent = sent
        self._limit = limit
        self._written = {pipe: bytearray() for pipe in (process.stdout, process.stderr) if pipe}
        self._open = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        for pipe in self._written:
            self._open.register(pipe, selectors.EVENT_READ)
        if self._process.stdin:
            os.set_blocking(self._process.stdin.fileno(), False)
            self._open.register(self._process.stdin, selectors.EVENT_WRITE)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def are_open(self) -> bool:
        return bool(self._open.get_map())

    @property
    def outputs(self) -> tuple[bytes | None, bytes | None]:
        """Standard output and standard error; None for one that is no pipe."""
        out, err = (
            bytes(self._written[pipe]) if pipe else None
            for pipe in (self._process.stdout, self._process.stderr)
        )
        return out, err

    def move(self, seconds: float) -> None:
        """Waits up to `seconds` for a pipe, and moves what it has. Raises OutputTooLarge."""
        for key, _ in self._open.select(seconds):
            pipe: IO[bytes] = key.fileobj  # type: ignore[assignment]
            if not (self._write(pipe) if pipe is self._process.stdin else self._read(pipe)):
                self._open.unregister(pipe)
                pipe.close()

    def _read(self, pipe: IO[bytes]) -> bool:
        chunk = os.read(pipe.fileno(), CHUNK_BYTES)
        self._written[pipe] += chunk
        if len(self._written[pipe]) > self._limit:
            what = f"the program wrote more than {self._limit:,} bytes (max_output)"
            raise OutputTooLarge(f"{what}; let it write to a file")
        return bool(chunk)

    def _write(self, pipe: IO[bytes]) -> bool:
        try:
            count = os.write(pipe.fileno(), self._unsent[:CHUNK_BYTES])
        except BrokenPipeError:  # it reads no more
            return False
        self._unsent = self._unsent[count:]
        return bool(self._unsent)


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
