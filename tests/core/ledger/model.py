"""The ledger in plain Python: one job, one lock, no clock. What the documentation promises."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from supervisor.job.fields import LARGEST_COUNT
from supervisor.job.policies import AfterPolicy, OnCrash, OnMaxSkips, SkipReason
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.attempt import GrantedAttempt
from tests.core.ledger.overlap import Decision, Situation, Verdict, decide

NOTHING = GrantedAttempt(0, 0, 0)


@dataclass
class Attempt:
    """A worker's process at work on a run, from its grant to its end or its death."""

    run: str
    token: str
    is_alive: bool = True
    has_lease: bool = True
    is_forgotten: bool = False
    """The ledger's data was lost while this had its lease."""
    was_counted: bool = False
    granted: GrantedAttempt = NOTHING
    succeeds: set[str] = field(default_factory=set)
    """The tokens of those that were given up, and that overlap with it from its begin on."""


@dataclass
class ModelRun:
    id: str
    state: RunState = RunState.WAITING
    slot: int | None = None

    rank: tuple[int, ...] = ()
    """Its place among those that wait."""

    since: int = 0
    """When it was given its slot."""

    token: str = ""
    last_token: str = ""
    ending: RunState | None = None

    is_silent: bool = False
    """Its lease or its deadline ran out, and no call has noticed yet."""

    requeues: int = 0
    crashes: int = 0
    attempt: int = 0
    has_started: bool = False
    awaits: tuple[str, AfterPolicy] | None = None
    """The run that it waits for, whatever the lock, and how that has to end."""

    given_up: set[str] = field(default_factory=set)
    """Tokens whose leases ran out."""

    over: set[str] = field(default_factory=set)
    """Tokens whose ends are known."""

    fence: int = 0
    """Of the attempt that began last."""


@dataclass(frozen=True)
class End:
    """How a run ended, and the runs that waited for it by then."""

    state: RunState
    followers: tuple[str, ...]


class Model:
    """Methods answer as the ledger should have."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self.most = spec.most_running
        self._clock = 0
        self.attempts: dict[str, Attempt] = {}
        self.forget()

    def forget(self) -> None:
        """The data is gone; living workers are not."""
        self.runs: dict[str, ModelRun] = {}
        self.waiting: list[ModelRun] = []
        self.counters: Counter[str] = Counter()
        self.skips = self.slots = 0
        self.in_grace = True
        self.overtaken: set[str] = set()
        self.began: dict[int, int] = {}
        """Of each slot the fencing token of the attempt that began there last."""
        self.followers: dict[str, list[str]] = {}
        self.endings: list[End | str] = []
        for attempt in self.attempts.values():
            attempt.is_forgotten = attempt.has_lease and attempt.is_alive

    def end_grace(self) -> None:
        """Who has not come back to the server that forgot it is given up."""
        self.in_grace = False
        for attempt in self.attempts.values():
            if attempt.is_forgotten:
                attempt.has_lease = False

    def in_state(self, *states: RunState) -> list[str]:
        return [run.id for run in self.runs.values() if run.state in states]

    @property
    def delayed(self) -> list[str]:
        """Those that a time will bring forward: retries, and what was put off."""
        placed = {run.id for run in self.waiting}
        late = self.in_state(RunState.WAITING, RunState.RETRYING)
        return [run for run in late if run not in placed and not self.runs[run].awaits]

    @property
    def holders(self) -> list[ModelRun]:
        held = [run for run in self.runs.values() if run.slot is not None]
        return sorted(held, key=lambda run: run.slot or 0)

    @property
    def has_room(self) -> bool:
        return self.most is None or len(self.holders) < self.most

    def admit(self, run_id: str, kind: str) -> Verdict:
        self.counters[kind] += 1
        run = self.runs[run_id] = ModelRun(run_id)
        return self._place(run)

    def hold(self, run_id: str, after: str, policy: AfterPolicy) -> None:
        """A run that is to follow another, which may have ended."""
        self.counters["triggered"] += 1
        self.runs[run_id] = ModelRun(run_id, awaits=(after, policy))
        self.followers.setdefault(after, []).append(run_id)
        self.endings.append(run_id)

    def follow(self) -> None:
        """Beat looks at all runs that came to wait, and at all that ended and are followed."""
        while self.endings:
            looked_at, self.endings = self.endings, []
            ended = {run.id: run.state for run in self.runs.values() if not run.state.is_open}
            for noted in looked_at:
                if isinstance(noted, End):
                    for follower in noted.followers:
                        self._let_go(follower, noted.state)
                elif (awaited := self.runs[noted].awaits) and awaited[0] in ended:
                    self._let_go(noted, ended[awaited[0]])

    def _let_go(self, run_id: str, state: RunState) -> None:
        run = self.runs[run_id]
        if run.awaits is None or run.state is not RunState.WAITING:
            return
        policy, run.awaits = run.awaits[1], None
        if state is RunState.SUCCEEDED or policy is AfterPolicy.DONE:
            self._place(run)
        else:
            self._skip(run, SkipReason.UPSTREAM)

    def _note_end(self, run: ModelRun) -> None:
        if run.id in self.followers:
            self.endings.append(End(run.state, tuple(self.followers[run.id])))

    def begin(self, run_id: str, token: str) -> str:
        run = self.runs.get(run_id)
        if run is None:
            return "unknown"
        if run.state is not RunState.QUEUED:
            self.counters["duplicates"] += 1
            return "duplicate"
        if run.is_silent:
            self._rescue(run)
            if not self.in_grace:
                return "expired"
        if self.in_grace:
            return "grace"
        self._start(run, Attempt(run_id, token))
        return "begin"

    def granted(self, token: str, granted: GrantedAttempt) -> None:
        """What the ledger said when it let the attempt begin."""
        attempt = self.attempts[token]
        attempt.granted = granted
        self._note_begin(self.runs[attempt.run], attempt)

    def _note_begin(self, run: ModelRun, attempt: Attempt) -> None:
        run.fence = attempt.granted.fencing_token
        if self.most is not None and run.slot:
            self.began[run.slot] = run.fence

    def _start(self, run: ModelRun, attempt: Attempt) -> None:
        run.attempt += 1
        self.counters["started"] += not run.has_started
        run.has_started = True
        self.skips = 0
        self._grant(run, attempt)

    def renew(self, attempt: Attempt) -> str:
        run, token = self.runs.get(attempt.run), attempt.token
        if run is None:
            return "unknown"
        if run.state is RunState.RUNNING and run.token == token:
            verdict = "reasserted" if run.is_silent else "renewed"
            self.counters["reasserted"] += run.is_silent
            run.is_silent = False
            return "stop" if run.ending else verdict
        if token in run.given_up:
            is_next = run.state is RunState.QUEUED and not run.is_silent
            if is_next and run.last_token == token:
                self._take_back(run, attempt)
                self.counters["reasserted"] += 1
                return "reasserted"
            self._count_overlap(attempt)
            return "lost"
        if token in run.over or run.last_token == token:
            return "lost"
        if not run.state.is_open:
            return "unknown"
        return "reasserted" if self._write_back(run, attempt) else "lost"

    def restore(self, attempt: Attempt) -> str:
        """The ledger does not know the run."""
        run = self.runs[attempt.run] = ModelRun(attempt.run)  # for it counts as one that is running
        if not self._write_back(run, attempt):
            del self.runs[attempt.run]
            return "lost"
        self.counters["restored"] += 1
        return "reasserted"

    def _write_back(self, run: ModelRun, attempt: Attempt) -> bool:
        """The ledger is older than the attempt: it goes on, unless others began after it."""
        own = attempt.granted.fencing_token
        later = sum(fence > own for fence in self.began.values())
        is_overtaken = self.most is not None and later >= self.most
        slot = None if is_overtaken else self._slot_for(run, attempt)
        if slot is None or run.fence > own:
            run.given_up.add(attempt.token)
            if is_overtaken:
                self.overtaken.add(attempt.token)
                self._count_overlap(attempt)
            return False
        if run.state is RunState.RUNNING:  # an earlier attempt of it
            run.given_up.add(run.token)
            self._end_attempt(run)
        self._leave_waiting(run)
        self._give_way(slot, run)
        attempt.is_forgotten, attempt.has_lease, attempt.was_counted = False, True, False
        run.slot, run.attempt, run.since = slot, attempt.granted.number, self._tick()
        run.is_silent, run.awaits = False, None
        self.counters["started"] += not run.has_started
        run.has_started, self.skips = True, 0
        self._note_begin(run, attempt)
        self._grant(run, attempt)
        if holder := next((r for r in self.holders if r is not run and r.slot == slot), None):
            self._put_back(holder)
        return True

    def _slot_for(self, run: ModelRun, attempt: Attempt) -> int | None:
        """Its run's own, a free one, one of a queued run, one of a run that began before."""
        if run.slot is not None:
            return run.slot
        if self.most is None:
            return self._slot_of_its_own()
        held = {holder.slot: holder for holder in self.holders}
        slots = sorted(range(1, self.most + 1), key=lambda slot: slot != attempt.granted.slot)
        running = RunState.RUNNING
        return (
            next((slot for slot in slots if slot not in held), None)
            or next((slot for slot in slots if held[slot].state is not running), None)
            or next((s for s in slots if held[s].fence < attempt.granted.fencing_token), None)
        )

    def _give_way(self, slot: int, run: ModelRun) -> None:
        """What holds the slot was over when the attempt began that comes back."""
        for other in self.holders:
            if other is not run and other.slot == slot and other.state is RunState.RUNNING:
                other.given_up.add(other.token)
                self._crash(other)

    def finish(self, attempt: Attempt, outcome: RunState) -> str:
        """`outcome` retrying: the attempt failed and is to be followed by another."""
        run, token = self.runs.get(attempt.run), attempt.token
        attempt.is_alive = False
        if run is None:
            return "unknown"
        if run.state is not RunState.RUNNING or run.token != token:
            if token not in run.given_up:
                if token in run.over or run.last_token == token:
                    return "already" if run.last_token == token else "stale"
                if not run.state.is_open:
                    return "unknown"
                if not self._write_back(run, attempt):
                    return self._report_late(run, attempt)
            else:
                if not self._counts(run, token, outcome):
                    return self._report_late(run, attempt)
                self._count_overlap(attempt)
                self._leave_waiting(run)
                self._take_back(run, attempt)
        if outcome is RunState.LOST or (run.ending and outcome is not RunState.SUCCEEDED):
            return "rescued" if self._crash(run) else "ended"
        self._end_attempt(run)
        if outcome is RunState.RETRYING:
            self.counters["retried"] += 1
            run.state = RunState.RETRYING
            return "retrying"
        self._finish(run, outcome)
        return "ended"

    def _counts(self, run: ModelRun, token: str, outcome: RunState) -> bool:
        """Whether the end of an attempt that was given up does: its run has not begun again."""
        if run.last_token != token or outcome is RunState.LOST:
            return False
        waits = run in self.waiting and outcome is not RunState.RETRYING
        return run.state is RunState.QUEUED or waits

    def _report_late(self, run: ModelRun, attempt: Attempt) -> str:
        self.counters["leases_lost"] += 1
        self._count_overlap(attempt)
        run.given_up.discard(attempt.token)
        run.over.add(attempt.token)
        return "stale"

    def undo_begin(self, attempt: Attempt) -> str:
        run, token = self.runs.get(attempt.run), attempt.token
        attempt.is_alive = False
        if run is None:
            return "stale"
        if run.state is not RunState.RUNNING or run.token != token:
            is_next = run.state is RunState.QUEUED and run.last_token == token
            if token not in run.given_up:
                verdict = "already" if run.last_token == token else "stale"
                if run.state is RunState.QUEUED and run.last_token not in run.given_up:
                    run.last_token = token
                return verdict
            if not is_next:
                self.counters["leases_lost"] += 1
                run.given_up.discard(token)
                run.over.add(token)
                return "stale"
            self._take_back(run, attempt)
        self.overtaken -= attempt.succeeds
        if run.ending:
            self._crash(run)
            return "ended"
        self._end_attempt(run)
        if run.slot and self.began.get(run.slot) == run.fence:
            del self.began[run.slot]
        run.attempt -= 1
        self._queue(run)
        return "rescued"

    def cancel(self, run_id: str) -> str:
        run = self.runs.get(run_id)
        if run is None or not run.state.is_open:
            return "not_open"
        self._leave_waiting(run)
        self._end_early(run, RunState.CANCELLED)
        return "stopping" if run.state is RunState.RUNNING else "cancelled"

    def give_up(self, run_id: str) -> None:
        run = self.runs[run_id]
        if run.state is RunState.QUEUED:
            self._finish(run, RunState.FAILED)

    def rescue(self, due: str | None = None) -> None:
        """One pass; `due`: the run whose delay is over."""
        self._rescue_silent()
        run = self.runs[due] if due else None
        if run and run.state is RunState.RETRYING and run.slot:
            self._queue(run)
        elif run and run.state in (RunState.WAITING, RunState.RETRYING):
            self._place(run)
        self._promote()

    def _place(self, run: ModelRun) -> Verdict:
        if self.most is not None:
            self._rescue_silent()
            self._promote()
        verdict = decide(self.spec.overlap, self._situation(run))
        match verdict.decision:
            case Decision.START:
                self._queue(run)
            case Decision.SKIP:
                assert verdict.reason
                if verdict.reason is SkipReason.OVERLAP and self._is_held_by_grace():
                    verdict = replace(verdict, reason=SkipReason.GRACE)
                self._skip(run, verdict.reason or SkipReason.OVERLAP)
            case Decision.WAIT:
                self._wait(run, 2, self._tick())
            case Decision.REQUEUE:
                self.counters["requeued"] += 1
                run.state = RunState.WAITING
                run.requeues += 1
            case Decision.REPLACE:
                return self._replace(run, verdict)
        return verdict

    def _is_held_by_grace(self) -> bool:
        """What is in the way would have begun on a server that is not new."""
        if not self.in_grace or not self.holders:
            return False
        first = min(self.holders, key=lambda holder: holder.since)
        return first.state is RunState.QUEUED and not first.attempt

    def _situation(self, run: ModelRun) -> Situation:
        return Situation(
            running=len(self.holders),
            max_running=self.most,
            waiting=len(self.waiting),
            requeues=run.requeues,
            skips=self.skips,
            max_waiting=self.spec.max_waiting,
            max_requeues=self.spec.max_requeues,
            max_skips=self.spec.max_consecutive_skips,
            on_max_skips=OnMaxSkips(self.spec.then),
        )

    def _replace(self, run: ModelRun, verdict: Verdict) -> Verdict:
        holder = min(self.holders, key=lambda holder: holder.since)
        if self.waiting and self.waiting[0].rank[0] == 0:
            self._skip(self.waiting[0], SkipReason.REPLACED)
        self._wait(run, 0, -self._tick())
        self._end_early(holder, RunState.REPLACED)
        is_queued = run.state is RunState.QUEUED
        return replace(verdict, decision=Decision.START) if is_queued else verdict

    def _queue(self, run: ModelRun) -> None:
        run.slot = run.slot or self._free_slot()
        run.state, run.token, run.is_silent = RunState.QUEUED, "", False
        run.since = self._tick()

    def _free_slot(self) -> int:
        if self.most is None:
            return self._slot_of_its_own()
        taken = {holder.slot for holder in self.holders}
        return next(slot for slot in range(1, 999) if slot not in taken)

    def _slot_of_its_own(self) -> int:
        """Beyond those of all runs with a bound; no two without one have the same."""
        self.slots += 1
        return LARGEST_COUNT + self.slots

    def _wait(self, run: ModelRun, *rank: int) -> None:
        run.state, run.slot, run.rank = RunState.WAITING, None, rank
        self.waiting = sorted([*self.waiting, run], key=lambda waiting: waiting.rank)

    def _leave_waiting(self, run: ModelRun) -> None:
        self.waiting = [waiting for waiting in self.waiting if waiting is not run]

    def _put_back(self, run: ModelRun) -> None:
        """A living holder came back to the slot that was reserved for this run."""
        if run.state is RunState.QUEUED:
            self._wait(run, 1, run.since)
        run.slot = None

    def _promote(self) -> None:
        while self.waiting:
            self._rescue_silent()
            if not self.waiting or not self.has_room:
                return
            run = self.waiting.pop(0)
            self._queue(run)

    def _grant(self, run: ModelRun, attempt: Attempt) -> None:
        self.attempts[attempt.token] = attempt
        run.state, run.token = RunState.RUNNING, attempt.token
        if self.most is not None and len(self.in_state(RunState.RUNNING)) >= self.most:
            for other in self.runs.values():
                attempt.succeeds |= other.given_up - self.overtaken
            self.overtaken |= attempt.succeeds

    def _take_back(self, run: ModelRun, attempt: Attempt) -> None:
        run.crashes -= 1
        run.state, run.token, run.last_token = RunState.RUNNING, attempt.token, ""
        run.is_silent = False
        run.given_up.discard(attempt.token)
        run.over.discard(attempt.token)
        self.overtaken.discard(attempt.token)
        attempt.has_lease = True

    def _end_attempt(self, run: ModelRun) -> None:
        self.attempts[run.token].has_lease = False
        run.last_token, run.ending, run.is_silent = run.token, None, False
        run.over.add(run.token)

    def _rescue_silent(self) -> None:
        for run in self.holders:
            if run.is_silent:
                self._rescue(run)

    def _rescue(self, run: ModelRun) -> None:
        run.is_silent = False
        if self.in_grace and run.state in (RunState.RUNNING, RunState.QUEUED):
            return
        if run.state is not RunState.RUNNING:
            self._finish(run, RunState.EXPIRED)
        else:
            run.given_up.add(run.token)
            self._crash(run)

    def _crash(self, run: ModelRun) -> bool:
        """Whether the run is run again."""
        ending = run.ending
        self._end_attempt(run)
        run.crashes += 0 if ending else 1
        is_given_up = self.spec.on_crash is OnCrash.FAIL or run.crashes >= self.spec.max_crashes
        if ending or is_given_up:
            self._finish(run, ending or RunState.LOST)
            return False
        self.counters["rescued"] += 1
        self._queue(run)
        return True

    def _end_early(self, run: ModelRun, outcome: RunState) -> None:
        if run.state is RunState.RUNNING:
            run.ending = run.ending or outcome
        else:
            self._finish(run, outcome)

    def _finish(self, run: ModelRun, outcome: RunState) -> None:
        self.counters[f"finished:{outcome}"] += 1
        run.state, run.slot = outcome, None
        self._note_end(run)
        self._promote()

    def _skip(self, run: ModelRun, reason: SkipReason) -> None:
        self.counters[f"skipped:{reason}"] += 1
        self.skips += 1
        self._leave_waiting(run)
        run.state = RunState.SKIPPED
        self._note_end(run)

    def _count_overlap(self, attempt: Attempt) -> None:
        """Once, when as many others as may be were running since it was given up."""
        if attempt.token in self.overtaken and not attempt.was_counted:
            attempt.was_counted = True
            self.counters["overlaps"] += 1

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
