"""One beat or worker as an init system runs it: its own process group, its own log, restarts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from supervisor.process import die_with_parent
from tests.processes import started
from tests.proxy import Proxy


@dataclass
class Member:
    name: str
    arguments: tuple[str, ...]

    ready_words: tuple[bytes, ...]
    """One of them in the log says that the process does its work."""

    directory: Path
    environment: Mapping[str, str]

    way: Proxy
    """Its link to Redis."""

    frozen: bool = False

    cut_off: bool = False
    """The link does not carry everything now."""

    was_struck: bool = False
    """Its end was asked for; it takes no more work, and its end is expected."""

    restart_planned: bool = False
    _process: subprocess.Popen[bytes] | None = None
    _log_start: int = 0

    def start(self) -> None:
        """To be called from the main thread: the child dies with the thread that started it."""
        self.was_struck = False
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._process = started(
            [sys.executable, "-m", "celery", "-A", "tools.chaos.app", *self.arguments],
            self.directory,
            self.log,
            self.environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_ready(self) -> bool:
        if not self.is_alive or self.frozen or self.cut_off or self.was_struck:
            return False
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            said = log.read()
        return any(word in said for word in self.ready_words)

    def children(self) -> list[int]:
        """The pool's processes; whichever thread of the main process forked them."""
        seen: list[int] = []
        with suppress(OSError):  # it may end while it is looked at, and its threads as well
            for thread in list(Path(f"/proc/{self.pid}/task").iterdir()):
                with suppress(OSError):
                    seen += map(int, (thread / "children").read_text().split())
        return seen

    def send(self, number: signal.Signals) -> None:
        self.was_struck = True
        if self._process is not None:
            self._process.send_signal(number)

    def freeze(self) -> None:
        self.frozen = True
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        self.frozen = False
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGCONT)

    def reap(self, timeout_seconds: float) -> bool:
        """Whether the process has ended within the time."""
        if self._process is None:
            return True
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_seconds)
        return self._process.poll() is not None

    def cut(self, *, replies_alone: bool) -> None:
        self.cut_off = True
        if replies_alone:
            self.way.hold_replies()
        else:
            self.way.freeze()

    def join(self) -> None:
        self.cut_off = False
        self.way.thaw()

    @property
    def log(self) -> Path:
        return self.directory / f"{self.name}.log"
