"""Ends work whose lease is gone, or whose run is to end: it is told, and killed after its grace."""

from __future__ import annotations

import os
import signal

import structlog

from supervisor.execution import at_work, interrupts
from supervisor.execution.leases import HeldLease

log = structlog.get_logger("supervisor.heartbeat")


def lose(lease: HeldLease, other: str | None, since: float, pidfd: int | None) -> None:
    """The lease may be another's, or is: then `other` is the run that began meanwhile.

    since: when it was no longer trusted, or that was heard; the grace counts from then.
    """
    facts = {"job": lease.work.job, "run": lease.run_id}
    if other and not lease.has_overlapped:
        lease.has_overlapped = True
        log.error("runs overlapped", **facts, other=other)
    if not lease.is_lost:
        lease.is_lost = True
        log.error("lease lost", **facts, aborts=lease.aborts_when_lost)
        if lease.aborts_when_lost:
            kill_at = since + lease.abort_grace.total_seconds()
            interrupt(lease, interrupts.LEASE_LOST, kill_at, pidfd)


def interrupt(lease: HeldLease, number: signal.Signals, kill_at: float, pidfd: int | None) -> None:
    """Tells the child, once; the earliest end of its graces counts."""
    if lease.was_told:
        lease.kill_at = None if lease.kill_at is None else min(lease.kill_at, kill_at)
        return
    if not lease.is_active():
        return
    was_sent = interrupts.send(number, lease.pid, pidfd)
    event = "run interrupted" if was_sent else "run not interrupted"
    log.warning(event, job=lease.work.job, run=lease.run_id, signal=number.name)
    lease.was_told = True
    lease.kill_at = kill_at


def kill(lease: HeldLease, pidfd: int | None) -> None:
    # In the pools without children the process is this worker itself. A child that is past the
    # job's code only has its end to report.
    is_at_work = lease.pid != os.getpid() and at_work.is_at_work(lease.pid, lease.token)
    if lease.is_active() and is_at_work:
        log.error("run killed", job=lease.work.job, run=lease.run_id, pid=lease.pid)
        interrupts.send(signal.SIGKILL, lease.pid, pidfd)
    lease.kill_at = None
