"""A program that is kept running: started, restarted with back-off, and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from supervisor.logs import get_logger
from supervisor.process import die_with_parent

#: A child that lived this long has started well: its next death is restarted at once.
SETTLED_SECONDS = 60
LONGEST_BACKOFF_SECONDS = 30

log = get_logger("supervisor.up")


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run; `cold_signal` ends it when it does not end on SIGTERM soon enough."""

    name: str
    command: tuple[str, ...]
    cold_signal: signal.Signals = signal.SIGKILL


class Child:
    """One running program in a process group of its own. To be used from the main thread only:
    the kernel ends the child when the thread that started it is gone."""

    def __init__(self, spec: ChildSpec, environment: Mapping[str, str]) -> None:
        self.spec = spec
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._restart_at = 0.0
        self._deaths = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self._started_at = time.monotonic()
        self._process = subprocess.Popen(
            self.spec.command,
            env=dict(self._environment),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )

    def keep_running(self) -> None:
        """Restarts a child that died: at once the first time, then after 1, 2, 4 ... 30 seconds."""
        if self.is_alive:
            return
        now = time.monotonic()
        if self._process is not None:
            self._bury(now)
        if self._process is None and now >= self._restart_at:
            self.start()
            log.info("child restarted", child=self.spec.name, pid=self.pid)

    def send(self, number: signal.Signals) -> None:
        if self.is_alive and self._process:
            self._process.send_signal(number)

    def kill_group(self) -> None:
        """Ends what is left of the child and of the processes it started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _bury(self, now: float) -> None:
        assert self._process is not None
        settled = now - self._started_at > SETTLED_SECONDS
        self._deaths = 1 if settled else self._deaths + 1
        backoff = 0 if self._deaths == 1 else min(2 ** (self._deaths - 2), LONGEST_BACKOFF_SECONDS)
        self._restart_at = now + backoff
        log.error(
            "child died",
            child=self.spec.name,
            pid=self._process.pid,
            exit_status=self._process.returncode,
            restart_in_seconds=backoff,
        )
        self.kill_group()
        self._process = None


def end_all(children: Sequence[Child], warm_seconds: float, cold_seconds: float) -> None:
    """SIGTERM to all; after `warm_seconds` each one's cold signal; after `cold_seconds` SIGKILL.

    At the end all that is left of their process groups is killed.
    """
    started = time.monotonic()
    for child in children:
        child.send(signal.SIGTERM)
    if not wait_for(children, started + warm_seconds):
        for child in children:
            child.send(child.spec.cold_signal)
        wait_for(children, started + cold_seconds)
    for child in children:
        child.kill_group()


def wait_for(children: Sequence[Child], deadline: float) -> bool:
    while any(child.is_alive for child in children):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
