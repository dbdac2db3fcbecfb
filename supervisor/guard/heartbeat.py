"""The heartbeat of one worker: renews the leases of all its running runs, from its main process.

A tick's path, step 5 of 6. Next: ledger/finish.lua.

1. One thread, its own connection, made after the worker has started. It lives in the main process
   because a call in the child that holds the interpreter's lock would starve it there.
2. Every interval - a sixth of the shortest lease, at most `INTERVAL` - all leases are renewed in
   one round trip. The client does not retry: a lease is trusted from when its renewal was sent.
3. A child has one run at a time: the next lease that it asks for replaces the last. The death of a
   child is noticed at once, because its pidfd becomes readable, or without pidfds in the next
   round. Its run is reported as lost, or as timed out or cancelled if its worker ended it for that,
   which frees the lock for the run whose turn it is. The report says when the child was last seen
   at work: at a renewal, or when it was killed. If the child had recorded how its work ended, and
   could not report it, that end is reported instead. A child that gets no reply to `begin`, and
   gives up before the body, tells this process by how its delivery ends; the begin is undone once
   the ledger answers.
   The worker's loop hears from a child that it has accepted a delivery, just before the child
   begins the run. A loop that has ended, or that waits for its broker, hears nothing. So a delivery
   is expected from when a child is to get it, and until it is accepted each round looks into the
   child table whether that child is inside the run's code.
4. A renewal also says which runs are to end: those that were cancelled or replaced, and those whose
   lease is now another attempt's. The clock says it of a lease that is no longer trusted
   (lease.py). The child is interrupted (interrupts.py), and killed if it does not end within its
   grace. If the last call hung, no new call is made that could end later than the next moment at
   which a child must be interrupted or killed. Interrupts and kills are decided by the clock after
   every call, whether it succeeded or not, and no run holds up another.
5. If the server has forgotten a run, or is older than the attempt, the run or the attempt is
   written again; its work and its lease go on (ledger/comebacks.lua).
6. If the server says that a run goes on whose end was reported, a replica was promoted that had
   not received the end. The lease is no longer renewed, and rescue acts by `on_crash`.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from supervisor.errors import WrongSchema
from supervisor.guard.child_table import ChildTable
from supervisor.guard.interrupts import CANCELLED, LEASE_LOST, Children, is_alive
from supervisor.guard.lease import Lease, State
from supervisor.guard.ledger_calls import finish
from supervisor.job.run import RunState
from supervisor.ledger.attempt import Ending, LeaseState, Renewal
from supervisor.ledger.ledger import Ledger
from supervisor.logs import RUN_EVENTS, get_logger
from supervisor.store.failures import RedisError, may_pass
from supervisor.times import clock

log = get_logger("supervisor.heartbeat")

INTERVAL = timedelta(seconds=5)
SHORTEST_SECONDS = 0.1

#: Of the ends that the worker itself makes.
REASONS = {RunState.TIMED_OUT: "hard time limit", RunState.CANCELLED: "revoked"}

#: What a call may raise: no server, a server that refuses it, a ledger of another version.
FAULTS = (RedisError, WrongSchema)


@dataclass(frozen=True, slots=True)
class Expected:
    """A delivery that a child is to get, and whose acceptance this worker has not heard of."""

    child: Callable[[], int | None]
    """Returns the pid of the child that it was written to, if it was."""

    lease: Callable[[int, float], Lease]
    """Makes the lease of the child with this pid, which asked for it at this time."""

    renewal_seconds: float


class Heartbeat(threading.Thread):
    def __init__(self, ledger: Ledger, table: ChildTable) -> None:
        super().__init__(name="supervisor-heartbeat", daemon=True)
        self._ledger = ledger
        self._table = table
        self._leases: dict[Hashable, Lease] = {}
        self._expected: dict[str, Expected] = {}
        self._to_undo: list[Lease] = []
        self._children = Children()
        self._stopping = False
        self._hung_seconds = 0.0
        self._next_round_at = time.monotonic()

    def expect(self, token: str, expected: Expected) -> None:
        """From now on a child may get this delivery and begin the run, heard of or not."""
        self._expected[token] = expected
        if not self._is_soon(expected.renewal_seconds):
            self._children.wake()

    def expect_no_more(self, token: str) -> None:
        """The delivery was taken back before any child got it."""
        self._expected.pop(token, None)

    def watch(self, lease: Lease) -> None:
        """Renews the lease from now on, as long as its child lives and its task is active."""
        self._expected.pop(lease.token, None)
        watched = self._leases.get(lease.key)
        if watched is not None and watched.token == lease.token:  # by the child table, before
            return
        self._leases[lease.key] = lease
        # The thread is not woken if it knows the child and will renew in time: waking it costs the
        # main process as much as the rest of a short run.
        if lease.pid not in self._children or not self._is_soon(lease.renewal_seconds):
            self._children.wake()

    def _is_soon(self, seconds: float) -> bool:
        return self._next_round_at <= time.monotonic() + seconds

    def note_ending(self, token: str, outcome: RunState) -> None:
        """The worker is about to end this attempt, for a hard time limit or a revoke."""
        if lease := self._lease_of(token):
            lease.ending = outcome
            if is_alive(lease.pid):
                lease.note_work()
            try:
                self._ledger.note_ending(lease.run_id, token, outcome, REASONS[outcome])
            except FAULTS as error:
                log.warning("ending not noted", run=lease.run_id, error=str(error))

    def undo_begin(self, token: str, reason: str) -> None:
        """A child gave up before the body, and does not know whether the lease was granted."""
        if lease := self._lease_of(token):
            self._forget(lease)
            lease.unbegun = reason
            self._to_undo.append(lease)

    def _lease_of(self, token: str) -> Lease | None:
        return next((lease for lease in list(self._leases.values()) if lease.token == token), None)

    def stop(self) -> None:
        self._stopping = True
        self._children.wake()

    def run(self) -> None:
        while not self._stopping:
            try:
                self._turn()
            except Exception:  # the loop outlives whatever one turn meets; leases depend on it
                log.exception("heartbeat failed")
                time.sleep(0.2)

    def _turn(self) -> None:
        try:
            self._wait()
        finally:
            if time.monotonic() >= self._next_round_at:
                self._renewal_round()
            else:
                soon = time.monotonic() + self._interval()
                self._next_round_at = min(self._next_round_at, soon)

    def _wait(self) -> None:
        """Waits until a round is due, a child has died, or there is a new child."""
        died = self._children.wait(self._next_round_at - time.monotonic())
        died += self._children.open(lease.pid for lease in self._with_child())
        # All of them are noted before the first is reported: that call may hang.
        for lease in self._note_deaths(died):
            if not self._report(lease):
                return

    def _renewal_round(self) -> None:
        try:
            self._find_expected()
            if self._has_time_to_ask():
                self._renew()
                self._report_all()
        finally:
            self._enforce()
            # Set to infinity first: `watch` then wakes the thread for a lease that is added while
            # the interval is computed.
            self._next_round_at = math.inf
            self._next_round_at = time.monotonic() + self._interval()

    def _interval(self) -> float:
        # With the dead children's leases: their ends are reported before rescue gives the runs up.
        own = [lease.renewal_seconds for lease in list(self._leases.values())]
        own += [expected.renewal_seconds for expected in list(self._expected.values())]
        deadlines = [lease.deadline - clock() for lease in self._with_child()]
        return max(SHORTEST_SECONDS, min([INTERVAL.total_seconds(), *own, *deadlines]))

    def _has_time_to_ask(self) -> bool:
        if not self._hung_seconds:
            return True
        answered_at = clock() + self._hung_seconds
        return all(lease.deadline > answered_at for lease in self._with_child())

    def _with_child(self) -> list[Lease]:
        leases = list(self._leases.values())
        return [lease for lease in leases if lease.state is not State.DEAD]

    def _find_expected(self) -> None:
        """Watches what children have begun, whether or not they will be heard of."""
        for token, expected in list(self._expected.items()):
            pid = expected.child()
            requested_at = pid and self._table.requested_at(pid, token)
            if pid and requested_at is not None:
                self.watch(expected.lease(pid, requested_at))

    def _renew(self) -> None:
        # Also those that died during a call that hung: they are at work no more.
        self._note_deaths(x.pid for x in self._with_child() if not is_alive(x.pid))
        leases = self._with_child()
        for lease in leases:
            lease.note_work()
        sent_at = clock()
        try:
            renewals = self._ledger.renew([(x.run_id, x.token, x.phase, x.granted) for x in leases])
        except FAULTS as error:
            self._hung_seconds = clock() - sent_at
            log.warning("leases not renewed", runs=[x.run_id for x in leases], error=str(error))
        else:
            self._hung_seconds = 0.0
            for lease, renewal in zip(leases, renewals, strict=True):
                self._note(lease, renewal, sent_at)

    def _note(self, lease: Lease, renewal: Renewal, sent_at: float) -> None:
        if self._leases.get(lease.key) is not lease:  # its child has another run by now
            return
        if renewal.state is LeaseState.UNKNOWN and lease.should_be_known:
            renewal = self._restored(lease)
        if renewal.state is LeaseState.LOST and not renewal.detail and not lease.is_at_work:
            self._forget(lease)  # it has ended since this was asked
            return
        match renewal.state:
            case LeaseState.RENEWED | LeaseState.REASSERTED | LeaseState.STOP:
                if lease.is_over():
                    log.warning("end forgotten", job=lease.work.job, run=lease.run_id)
                    self._forget(lease)
                    return
                lease.renewed(sent_at)
                if renewal.state is LeaseState.REASSERTED:
                    log.warning("lease reasserted", job=lease.work.job, run=lease.run_id)
                    self._note_overlap(lease, renewal.detail)
                if renewal.state is LeaseState.STOP:
                    kill_at = clock() + lease.stop_grace.total_seconds()
                    self._interrupt(lease, CANCELLED, kill_at)
            case LeaseState.LOST:
                # Kept: each further renewal makes the measured overlap longer.
                self._note_taken(lease, renewal.detail)
            case LeaseState.ENDED:
                self._forget(lease)
            case LeaseState.FAILED:
                log.error("lease not renewed", run=lease.run_id, error=renewal.detail)
            case LeaseState.NOT_BEGUN | LeaseState.UNKNOWN:
                lease.trust_from(sent_at)
                # The delivery was dropped: its child will never begin the run.
                if not lease.is_active():
                    self._forget(lease)

    def _restored(self, lease: Lease) -> Renewal:
        if lease.granted is None:
            return Renewal(LeaseState.FAILED, "it is not known what was granted")
        try:
            return self._ledger.restore(lease.work, lease.token, lease.granted, lease.call())
        except FAULTS as error:
            return Renewal(LeaseState.FAILED, str(error))

    def _enforce(self) -> None:
        """Interrupts and kills the children that must end by now."""
        for lease in self._with_child():
            is_trusted = clock() <= lease.trusted_until
            if not (is_trusted or lease.is_lost) and lease.has_surely_begun:
                lease.distrust()
                self._abort(lease, lease.trusted_until)
            if lease.kill_at is not None and clock() > lease.kill_at:
                self._kill(lease)

    def _note_taken(self, lease: Lease, other: str | None) -> None:
        """The ledger says that the lease is another attempt's.

        other: the run that has begun, of an overlap that was counted just now.
        """
        self._note_overlap(lease, other)
        was_lost, lease.state = lease.is_lost, State.TAKEN
        if not was_lost:
            self._abort(lease, clock())

    def _note_overlap(self, lease: Lease, other: str | None) -> None:
        if other:
            log.error("runs overlapped", job=lease.work.job, run=lease.run_id, other=other)

    def _abort(self, lease: Lease, since: float) -> None:
        """The lease has been lost since `since`; a job may go on without it (`on_lease_lost`)."""
        aborts = lease.aborts_when_lost
        log.error("lease lost", job=lease.work.job, run=lease.run_id, aborts=aborts)
        if lease.aborts_when_lost:
            kill_at = since + lease.abort_grace.total_seconds()
            self._interrupt(lease, LEASE_LOST, kill_at)

    def _interrupt(self, lease: Lease, number: signal.Signals, kill_at: float) -> None:
        """Signals the child once. If it is interrupted twice, the earlier `kill_at` counts."""
        if lease.is_interrupted:
            lease.kill_at = None if lease.kill_at is None else min(lease.kill_at, kill_at)
            return
        if not lease.is_active():
            return
        if lease.has_child:
            self._children.send(number, lease.pid)
            was_raised = True
        else:
            was_raised = self._table.interrupt(lease.token, number)
        event = "run interrupted" if was_raised else "run asked to end"
        log.warning(event, job=lease.work.job, run=lease.run_id, signal=number.name)
        lease.is_interrupted = True
        lease.kill_at = kill_at

    def _kill(self, lease: Lease) -> None:
        """Kills the child, unless it has left the job's code and only reports its end."""
        if lease.is_active() and self._table.is_running(lease.pid, lease.token):
            event = "run killed" if lease.has_child else "run cannot be killed"
            log.error(event, job=lease.work.job, run=lease.run_id, pid=lease.pid)
            if lease.has_child:
                if is_alive(lease.pid):
                    lease.note_work()
                self._children.send(signal.SIGKILL, lease.pid)
        lease.kill_at = None

    def _note_deaths(self, pids: Iterable[int]) -> list[Lease]:
        """The leases of children that are gone: their ends are to be reported."""
        leases = []
        for pid in pids:
            self._children.close(pid)
            if (lease := self._leases.get(pid)) is not None:
                lease.state = State.DEAD
                leases.append(lease)
        return leases

    def _report_all(self) -> None:
        """Reports what could not be reported before; after the renewals, which cannot wait."""
        dead = [lease for lease in list(self._leases.values()) if lease.state is State.DEAD]
        for lease in [*dead, *self._to_undo]:
            if not self._report(lease):
                return

    def _report(self, lease: Lease) -> bool:
        """Returns False if the report has to be repeated in the next round.

        The callers then stop, since the ledger is unavailable.
        """
        if not self._has_time_to_ask():
            return False
        requested_at = clock()
        try:
            self._finish_for(lease)
        except FAULTS as error:
            self._hung_seconds = clock() - requested_at
            event = "begin not undone" if lease in self._to_undo else "dead child not reported"
            log.warning(event, run=lease.run_id, error=str(error))
            if not isinstance(error, RedisError) or may_pass(error):
                return False
            # The server would refuse it again. The lease runs out, and rescue deals with the run.
            self._forget(lease)
            return True
        self._forget(lease)
        return True

    def _finish_for(self, lease: Lease) -> None:
        """Reports the end that the child recorded, or that it was ended for, or that it died."""
        if lease in self._to_undo:
            finished = self._ledger.undo_begin(lease.run_id, lease.token)
            if finished.ending is Ending.RESCUED:
                log.warning("begin undone", job=lease.work.job, run=lease.run_id)
            text = f"its worker could not begin it: {lease.unbegun}"
            self._ledger.note_obstacle([lease.run_id], lease.work.worker, text)
            return
        run, token, granted = lease.run_id, lease.token, lease.granted
        reason = f"worker process {lease.pid} died"
        recorded = self._table.end_of(lease.pid, token)
        outcome, ended_at = recorded or (lease.ending, lease.at_work_at)
        if outcome is None:
            finished = self._ledger.report_dead(run, token, reason, granted, ended_at)
        else:
            why = f"{reason} before it could say why" if recorded else REASONS[outcome]
            note = "" if outcome is RunState.SUCCEEDED else why
            end = (run, token, outcome, note)
            report = partial(self._ledger.finish, *end, ended_at=ended_at, granted=granted)
            finished = finish(self._ledger, lease.work, token, granted, report)
        self._note_overlap(lease, finished.overlapped_with)
        if finished.is_first:  # not what the child reported before it died
            _, event = RUN_EVENTS[finished.ending]
            of_end = {"outcome": outcome.value} if outcome else {}
            log.warning(event, job=lease.work.job, run=run, **of_end, reason=reason)
        elif finished.ending is Ending.STALE:  # it had not begun, or its run is to start again
            self._ledger.note_obstacle([run], lease.work.worker, reason)

    def _forget(self, lease: Lease) -> None:
        if lease in self._to_undo:
            self._to_undo.remove(lease)
        elif self._leases.get(lease.key) is lease:
            del self._leases[lease.key]
