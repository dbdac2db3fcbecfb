"""Processes of Celery that are there at once: forked off one that has imported it and the package.

Half of a worker's start is imports, and the tests start hundreds. What is started is a process of
its own all the same: only its parent is another one than the test.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import time
import types
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from select import select
from tempfile import TemporaryFile
from typing import IO, Any

#: Read when modules are imported: a process that has one of these imports them itself.
READ_AT_IMPORT = {"REMAP_SIGTERM"}

LONGEST_REQUEST = 1 << 17


class Started(subprocess.Popen[bytes]):
    """A process that the parent of all has forked, which also knows how it ended."""

    def __init__(
        self,
        words: Sequence[str],
        cwd: Path,
        environ: Mapping[str, str],
        out: IO[Any],
        error: IO[Any],
    ) -> None:
        """words: as after `python`: `-m celery ...`, or `-c` and code."""
        self.args = list(words)
        self.returncode = None
        request = {"words": self.args, "cwd": str(cwd), "environ": dict(environ)}
        self.pid = asked(request, [out.fileno(), error.fileno()])
        self._ends = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        if self.returncode is None and select([self._ends], [], [], 0)[0]:
            self.returncode = asked({"ended": self.pid})
            os.close(self._ends)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select([self._ends], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.poll() or 0


def run(
    words: Sequence[str], cwd: Path, environ: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Returns when the process has ended."""
    with TemporaryFile("w+") as out, TemporaryFile("w+") as error:
        status = Started(words, cwd, environ, out, error).wait()
        for file in (out, error):
            file.seek(0)
        return subprocess.CompletedProcess(words, status, out.read(), error.read())


@cache
def parent() -> socket.socket:
    """The way to the process that forks, which ends with the one that asks."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", __name__, str(its.fileno())]
    with its:
        forks = subprocess.Popen(command, pass_fds=[its.fileno()], stdout=subprocess.DEVNULL)

    def end() -> None:
        ours.close()
        forks.wait()

    atexit.register(end)
    return ours


def asked(request: Mapping[str, Any], files: Sequence[int] = ()) -> int:
    message = json.dumps(request).encode()
    socket.send_fds(parent(), [message], files)
    return int(parent().recv(64))


def serve(channel: socket.socket) -> dict[str, Any] | None:
    """Forks for each request. Returns what a child is to do, and None once no more can come."""
    while True:
        message, files, _, _ = socket.recv_fds(channel, LONGEST_REQUEST, 2)
        if not message:
            return None
        request: dict[str, Any] = json.loads(message)
        if "ended" in request:
            channel.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(request["ended"], 0)[1]))
            continue
        if pid := os.fork():
            channel.send(b"%d" % pid)
        else:
            channel.close()
            for number, file in enumerate(files, start=1):
                os.dup2(file, number)
        for file in files:
            os.close(file)
        if not pid:
            return request


def become(words: list[str], cwd: str, environ: dict[str, str]) -> None:
    """What Python does with these words in this directory and environment."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    sys.path[:0] = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    flag, what, *arguments = words
    if flag == "-m":
        sys.argv = [what, *arguments]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [flag, *arguments]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(what, vars(main))


def main() -> None:
    import celery.bin.celery
    import celery.concurrency.prefork
    import celery.worker.consumer  # noqa: F401
    import kombu.transport.redis  # noqa: F401

    import supervisor.beat.scheduler
    import supervisor.cli
    import supervisor.worker.task  # noqa: F401

    sys.path.pop(0)
    metadata.version = cache(metadata.version)  # of which redis-py asks for each connection
    metadata.version("redis")
    # Else each child copies all of it at its end, to free it: most take longer for that than for
    # what they do.
    gc.freeze()
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        become(**request)


if __name__ == "__main__":
    main()
