"""The heartbeat of one worker: renews the leases of all its running runs, from its main process.

The way of a tick goes on in ledger/finish.lua, where a run ends.

1. One thread, its own connection, made after the worker has started. It lives in the main process
   because a call in the child that holds the interpreter's lock would starve it there.
2. Every interval - a sixth of the shortest lease, at most `INTERVAL` - all leases are renewed in
   one round trip. The client does not retry: a late renewal has to say that it is late.
3. A child works for one run at a time: the next lease that it asks for takes the place of the last.
   A child that dies is known at once: its pidfd becomes readable. Its run is reported lost (or
   timed out, or cancelled, where that was said before) and the lock is free again; another thread
   publishes the run whose turn it is (handover.py). Where there are no pidfds, the next beat of the
   heart finds out. A child that had done its work, and could not report it, is reported with that.
4. A renewal also says what is to end: a run that was cancelled or replaced, and one whose lease is
   another's. So does the clock: a lease that could not be renewed is trusted for two thirds of its
   life. Its child is told (interrupts.py), and killed when it does not end within its grace.
   A ledger that hangs must not delay that: no call begins that would, if it took as long as the
   last one did, outlast the moment at which somebody is to be told or killed. Nor must one that
   refuses: whatever it says of a call, the clock is asked, and no run stands in another's way.
5. A server that has forgotten a run is told of it again: the work goes on, and so does its lease.
6. A server that has forgotten a run's end says that it goes on: a replica was promoted that had not
   heard of it. Its lease is renewed no longer, and rescue deals with it as `on_crash` says.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import structlog

from supervisor.errors import WrongSchema
from supervisor.guard import child_table, interrupts
from supervisor.guard.leases import HeldLease, process_exists
from supervisor.guard.pidfds import Pidfds
from supervisor.job.run import RunState
from supervisor.ledger.connection import RedisError, may_pass
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Ending, Finished, LeaseState, Renewal
from supervisor.ledger.scripts import HANDOVER_GRACE
from supervisor.times import clock

# Ends work whose lease is gone, or whose run is to end: it is told, and killed after its grace.


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
    is_at_work = lease.pid != os.getpid() and child_table.is_at_work(lease.pid, lease.token)
    if lease.is_active() and is_at_work:
        log.error("run killed", job=lease.work.job, run=lease.run_id, pid=lease.pid)
        interrupts.send(signal.SIGKILL, lease.pid, pidfd)
    lease.kill_at = None


# Publishes the runs whose turn came with the death of a child, beside its worker's heartbeat.
#
# A broker that hangs holds up this thread, and no lease. What is not published here in time is
# published by beat: it lies in the outbox until the broker has it.


class HandOver:
    """`publish` sends the messages of the runs it is given; its thread begins with the first."""

    def __init__(self, publish: Callable[[Sequence[str]], Any]) -> None:
        self._publish = publish
        self._given: SimpleQueue[tuple[float, Sequence[str]]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def give(self, run_ids: Sequence[str]) -> None:
        """Returns at once. To be called from one thread only."""
        self._given.put((time.monotonic() + HANDOVER_GRACE.total_seconds(), run_ids))
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="supervisor-handover", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        while True:
            until, run_ids = self._given.get()
            if time.monotonic() > until:  # an earlier one was held up: beat has sent these
                continue
            try:
                self._publish(run_ids)
            except Exception:  # the loop outlives whatever one of them meets
                log.exception("hand-over stumbled")


INTERVAL = timedelta(seconds=5)
SHORTEST_SECONDS = 0.1

#: Whatever comes of a call: the server is away, refuses it, or another version writes the ledger.
FAULTS = (RedisError, WrongSchema)


class Heartbeat(threading.Thread):
    def __init__(self, ledger: Ledger, publish: Callable[[Sequence[str]], Any]) -> None:
        super().__init__(name="supervisor-heartbeat", daemon=True)
        self._ledger = ledger
        self._hand_over = HandOver(publish)
        self._leases: dict[Hashable, HeldLease] = {}
        self._pidfds = Pidfds()
        self._stopping = False
        self._hung_seconds = 0.0
        self._next_beat = time.monotonic()

    def watch(self, lease: HeldLease) -> None:
        """From now on the lease is renewed, as long as its child lives and its task is active."""
        self._leases[lease.place] = lease
        # The thread is left alone if it knows the child and is in time: waking it costs the main
        # process as much as the rest of a short run.
        soon_enough = self._next_beat <= time.monotonic() + lease.renewal_seconds
        if lease.pid not in self._pidfds or not soon_enough:
            self._pidfds.wake()

    def mark(self, token: str, outcome: RunState) -> None:
        """The worker is about to end this attempt, for a hard time limit or a revoke."""
        reason = "hard time limit" if outcome is RunState.TIMED_OUT else "revoked"
        for lease in [held for held in self._leases.copy().values() if held.token == token]:
            try:
                self._ledger.mark(lease.run_id, token, outcome, reason)
            except FAULTS as error:
                log.warning("ending not marked", run=lease.run_id, error=str(error))

    def stop(self) -> None:
        self._stopping = True
        self._pidfds.wake()

    def run(self) -> None:
        while not self._stopping:
            try:
                self._turn()
            except Exception:  # the loop outlives whatever one turn meets; leases depend on it
                log.exception("heartbeat stumbled")
                time.sleep(0.2)

    def _turn(self) -> None:
        try:
            self._hear()
        finally:
            if time.monotonic() >= self._next_beat:
                self._beat()
            else:
                self._next_beat = min(self._next_beat, time.monotonic() + self._interval())

    def _hear(self) -> None:
        """Waits until it is time, or somebody has died, or is new."""
        for pid in self._pidfds.wait(self._next_beat - time.monotonic()):
            self._bury(pid)
        for pid in self._pidfds.open(lease.pid for lease in self._with_child()):
            self._bury(pid)

    def _beat(self) -> None:
        try:
            if self._has_time_to_ask():
                self._renew()
                self._report_gone()
        finally:
            self._enforce()
            # A lease that is watched while this is computed without it wakes the thread again.
            self._next_beat = math.inf
            self._next_beat = time.monotonic() + self._interval()

    def _interval(self) -> float:
        # An end that is still to be told is told before rescue gives the run up.
        own = [lease.renewal_seconds for lease in list(self._leases.values())]
        deadlines = [lease.deadline - clock() for lease in self._with_child()]
        return max(SHORTEST_SECONDS, min([INTERVAL.total_seconds(), *own, *deadlines]))

    def _has_time_to_ask(self) -> bool:
        if not self._hung_seconds:
            return True
        answered_at = clock() + self._hung_seconds
        return all(lease.deadline > answered_at for lease in self._with_child())

    def _with_child(self) -> list[HeldLease]:
        return [lease for lease in list(self._leases.values()) if not lease.is_gone]

    def _renew(self) -> None:
        for lease in self._with_child():
            if not process_exists(lease.pid):
                self._pidfds.close(lease.pid)
                lease.is_gone = True
        leases = self._with_child()
        sent_at = clock()
        try:
            renewals = self._ledger.renew([(x.run_id, x.token, x.begun) for x in leases])
        except FAULTS as error:
            self._hung_seconds = clock() - sent_at
            log.warning("leases not renewed", runs=[x.run_id for x in leases], error=str(error))
        else:
            self._hung_seconds = 0.0
            for lease, renewal in zip(leases, renewals, strict=True):
                self._note(lease, renewal, sent_at)

    def _enforce(self) -> None:
        for lease in self._with_child():
            if clock() > lease.trusted_until and lease.has_surely_begun:
                lose(lease, None, lease.trusted_until, self._pidfds.get(lease.pid))
            if lease.kill_at is not None and clock() > lease.kill_at:
                kill(lease, self._pidfds.get(lease.pid))

    def _note(self, lease: HeldLease, renewal: Renewal, sent_at: float) -> None:
        if self._leases.get(lease.place) is not lease:  # its child is at another run by now
            return
        if renewal.state is LeaseState.UNKNOWN and lease.should_be_known:
            renewal = self._restored(lease)
        match renewal.state:
            case LeaseState.RENEWED | LeaseState.REASSERTED | LeaseState.STOP:
                if lease.is_over():
                    log.warning("end forgotten", job=lease.work.job, run=lease.run_id)
                    self._forget(lease)
                    return
                lease.has_begun = True
                lease.is_lost = lease.is_lost and lease.was_told
                lease.trust_from(sent_at)
                if renewal.state is LeaseState.REASSERTED:
                    log.warning("lease reasserted", job=lease.work.job, run=lease.run_id)
                if renewal.state is LeaseState.STOP:
                    kill_at = clock() + lease.stop_grace.total_seconds()
                    pidfd = self._pidfds.get(lease.pid)
                    interrupt(lease, interrupts.CANCELLED, kill_at, pidfd)
            case LeaseState.LOST:
                # Only what has begun is lost. Kept: each further sign of life makes the measured
                # overlap longer.
                lease.has_begun = lease.is_anothers = True
                lose(lease, renewal.detail, clock(), self._pidfds.get(lease.pid))
            case LeaseState.ENDED:
                self._forget(lease)
            case LeaseState.FAILED:
                log.error("lease not renewed", run=lease.run_id, error=renewal.detail)
            case LeaseState.NOT_BEGUN | LeaseState.UNKNOWN:
                lease.trust_from(sent_at)
                # The delivery was dropped: its child never begins the run.
                if not lease.is_active():
                    self._forget(lease)

    def _restored(self, lease: HeldLease) -> Renewal:
        try:
            return self._ledger.restore(lease.work, lease.token, lease.asked())
        except FAULTS as error:
            return Renewal(LeaseState.FAILED, str(error))

    def _bury(self, pid: int) -> None:
        """A child is gone; its run, if it worked for one, is reported."""
        self._pidfds.close(pid)
        lease = self._leases.get(pid)
        if lease is not None:
            lease.is_gone = True
            self._report_dead(lease)

    def _report_gone(self) -> None:
        """Those whose end could not be told before; after the renewals, which cannot wait."""
        for lease in [lease for lease in list(self._leases.values()) if lease.is_gone]:
            self._report_dead(lease)

    def _report_dead(self, lease: HeldLease) -> None:
        if not self._has_time_to_ask():
            return
        asked_at = clock()
        try:
            finished = self._finish_for(lease)
        except FAULTS as error:
            self._hung_seconds = clock() - asked_at
            log.warning("dead child not reported", run=lease.run_id, error=str(error))
            if isinstance(error, RedisError) and not may_pass(error):
                # Asked again, it would say the same. The lease runs out, and rescue sees to it.
                self._forget(lease)
            return
        self._forget(lease)
        if finished.next_up:
            log.warning("run rescued", run=lease.run_id, next_up=finished.next_up)
            self._hand_over.give(finished.next_up)

    def _finish_for(self, lease: HeldLease) -> Finished:
        """What the child has told of its run's end, else that it died at work."""
        reason = f"worker process {lease.pid} died"
        told = child_table.end_of(lease.pid, lease.token)
        if told is None:
            return self._ledger.report_dead(lease.run_id, lease.token, reason)
        outcome, ended_at = told
        note = "" if outcome is RunState.SUCCEEDED else f"{reason} before it could say why"
        finished = self._ledger.finish(lease.run_id, lease.token, outcome, note, ended_at=ended_at)
        if finished.ending is Ending.ENDED:  # not by the child itself before
            log.warning("run ended", job=lease.work.job, run=lease.run_id, outcome=outcome.value)
        return finished

    def _forget(self, lease: HeldLease) -> None:
        if self._leases.get(lease.place) is lease:
            del self._leases[lease.place]
