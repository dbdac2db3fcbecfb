"""The heartbeat of one worker: renews the leases of all its running runs, from its main process.

1. One thread, its own connection, made after the worker has started. It lives in the main process
   because a call in the child that holds the interpreter's lock would starve it there.
2. Every interval - a sixth of the shortest lease, at most `INTERVAL` - all leases are renewed in
   one round trip. The client does not retry: a late renewal has to say that it is late.
3. A child works for one run at a time: the next lease that it asks for takes the place of the last.
   A child that dies is known at once: its pidfd becomes readable. Its run is reported lost (or
   timed out, or cancelled, where the worker said so before) and the lock is free again. Where
   there are no pidfds, the next beat of the heart finds out.
4. A lease that went to another run is let go of; the ledger measures the overlap, if there was one.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog

from supervisor.ledger.connection import Unavailable
from supervisor.ledger.replies import Renewal
from supervisor.ledger.runs import Ledger
from supervisor.run import RunState, job_of

INTERVAL = timedelta(seconds=5)
RENEWALS_PER_TTL = 6

log = structlog.get_logger("supervisor.heartbeat")


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease that a child of this worker asks for.

    pid: the child's. is_active: whether the worker still waits for this delivery's task.
    """

    run_id: str
    token: str
    pid: int
    ttl: timedelta
    is_active: Callable[[], bool]


class Heartbeat(threading.Thread):
    def __init__(self, ledger: Ledger, publish: Callable[[Sequence[str]], Any]) -> None:
        super().__init__(name="supervisor-heartbeat", daemon=True)
        self._ledger = ledger
        self._publish = publish
        self._leases: dict[int, HeldLease] = {}
        self._pidfds: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = os.pipe()
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._stopping = False
        self._next_beat = time.monotonic()

    def watch(self, lease: HeldLease) -> None:
        """From now on the lease is renewed, as long as its child lives and its task is active."""
        self._leases[lease.pid] = lease
        self._wake()

    def mark(self, token: str, outcome: RunState) -> None:
        """The worker is about to end this attempt, for a hard time limit or a revoke."""
        for lease in [held for held in self._leases.copy().values() if held.token == token]:
            try:
                self._ledger.mark(lease.run_id, token, outcome)
            except Unavailable as error:
                log.warning("ending not marked", run=lease.run_id, error=str(error))

    def stop(self) -> None:
        self._stopping = True
        self._wake()

    def run(self) -> None:
        while not self._stopping:
            try:
                self._turn()
            except Exception:  # the loop outlives whatever one turn meets; leases depend on it
                log.exception("heartbeat stumbled")
                time.sleep(0.2)

    def _turn(self) -> None:
        for key, _ in self._selector.select(max(0.0, self._next_beat - time.monotonic())):
            if key.fileobj == self._wake_reader:
                os.read(self._wake_reader, 1024)
            else:
                self._bury(key.data)
        self._open_pidfds()
        if time.monotonic() >= self._next_beat:
            self._renew()
            self._next_beat = time.monotonic() + self._interval()
        else:
            self._next_beat = min(self._next_beat, time.monotonic() + self._interval())

    def _interval(self) -> float:
        ttls = [lease.ttl / RENEWALS_PER_TTL for lease in list(self._leases.values())]
        return min([INTERVAL, *ttls]).total_seconds()

    def _open_pidfds(self) -> None:
        if not hasattr(os, "pidfd_open"):
            return
        for pid in self._leases.keys() - self._pidfds.keys():
            try:
                self._pidfds[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                self._bury(pid)
                continue
            self._selector.register(self._pidfds[pid], selectors.EVENT_READ, pid)

    def _renew(self) -> None:
        for pid in list(self._leases):
            if not process_exists(pid):
                self._bury(pid)
        leases = list(self._leases.values())
        try:
            renewals = self._ledger.renew([(lease.run_id, lease.token) for lease in leases])
        except Unavailable as error:
            log.warning("leases not renewed", runs=[x.run_id for x in leases], error=str(error))
            return
        for lease, renewal in zip(leases, renewals, strict=True):
            self._note(lease, renewal)

    def _note(self, lease: HeldLease, renewal: Renewal) -> None:
        facts = {"job": job_of(lease.run_id), "run": lease.run_id}
        match renewal:
            case Renewal.LOST:
                # Kept: each further sign of life makes the measured overlap longer.
                log.error("lease lost", **facts)
            case Renewal.REASSERTED:
                log.warning("lease reasserted", **facts)
            case Renewal.ENDED:
                self._forget(lease)
            case Renewal.NOT_BEGUN:
                # The delivery was dropped: its child never begins the run.
                if not lease.is_active():
                    self._forget(lease)
            case Renewal.RENEWED:
                pass

    def _bury(self, pid: int) -> None:
        """A child is gone; its run, if it worked for one, is reported."""
        pidfd = self._pidfds.pop(pid, None)
        if pidfd is not None:
            self._selector.unregister(pidfd)
            os.close(pidfd)
        lease = self._leases.get(pid)
        if lease is None:
            return
        reason = f"worker process {pid} died"
        try:
            finished = self._ledger.finish(lease.run_id, lease.token, RunState.LOST, reason)
        except Unavailable as error:
            # The lease stays here: asked again at the next beat.
            log.warning("dead child not reported", run=lease.run_id, error=str(error))
            return
        self._forget(lease)
        if finished.next_up:
            log.warning("run rescued", run=lease.run_id, reason=reason, next_up=finished.next_up)
            self._publish(finished.next_up)

    def _forget(self, lease: HeldLease) -> None:
        if self._leases.get(lease.pid) is lease:
            del self._leases[lease.pid]

    def _wake(self) -> None:
        os.write(self._wake_writer, b"x")


def process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
