"""The ledger in plain Python: one job, one lock, no clock. What the documentation promises."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from supervisor.job.fields import LARGEST_COUNT
from supervisor.job.policies import (
    AfterPolicy,
    Decision,
    OnCrash,
    OnMaxSkips,
    Situation,
    SkipReason,
    Verdict,
    decide,
)
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec


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
    succeeds: set[str] = field(default_factory=set)
    """The tokens of those that were given up, and that overlap with it from its begin on."""


@dataclass
class ModelRun:
    """`rank`: its place among those that wait. since: when it was given its slot. is_silent: its
    lease or its deadline ran out, and nobody has looked yet. given_up: tokens whose leases ran out.
    """

    id: str
    state: RunState = RunState.WAITING
    slot: int | None = None
    rank: tuple[int, ...] = ()
    since: int = 0
    token: str = ""
    last_token: str = ""
    ending: RunState | None = None
    is_silent: bool = False
    requeues: int = 0
    crashes: int = 0
    attempt: int = 0
    has_started: bool = False
    held: tuple[str, AfterPolicy] | None = None
    """The run that it waits for, whatever the lock, and how that has to end."""
    given_up: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class End:
    """How a run ended, and the runs that were held for it by then."""

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
        return [run for run in late if run not in placed and not self.runs[run].held]

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
        self.runs[run_id] = ModelRun(run_id, held=(after, policy))
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
                elif (held := self.runs[noted].held) and held[0] in ended:
                    self._let_go(noted, ended[held[0]])

    def _let_go(self, run_id: str, state: RunState) -> None:
        run = self.runs[run_id]
        if run.held is None or run.state is not RunState.WAITING:
            return
        policy, run.held = run.held[1], None
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
            self._settle(run)
            if not self.in_grace:
                return "expired"
        if self.in_grace:
            return "grace"
        self._start(run, Attempt(run_id, token))
        return "begin"

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
        is_next = run.state is RunState.QUEUED and not run.is_silent
        if token not in run.given_up:
            if run.last_token == token or run.state is not RunState.QUEUED:
                return "ended"
            if not is_next:
                return "lost"
            # The server has forgotten that this one was given up.
            attempt.is_forgotten, attempt.has_lease, attempt.was_counted = False, True, False
            self._start(run, attempt)
            return "reasserted"
        if is_next and run.last_token == token:
            self._take_back(run, attempt)
            self.counters["reasserted"] += 1
            return "reasserted"
        self._count_overlap(attempt)
        return "lost"

    def restore(self, attempt: Attempt) -> str:
        """A lease that ran out is settled before anybody takes its slot."""
        taken: dict[int | None, ModelRun] = {}
        if self.most is not None:
            self._settle_silent()
            taken = {run.slot: run for run in self.holders}
        slot = 1 if self.most is not None else self._slot_of_its_own()
        while slot in taken and taken[slot].state is RunState.RUNNING:
            slot += 1
        if self.most is not None and slot > self.most:
            return "lost"
        self.counters.update(restored=1, started=1)
        since = self._tick()
        run = ModelRun(attempt.run, slot=slot, since=since, attempt=1, has_started=True)
        self.runs[attempt.run] = run
        attempt.is_forgotten, attempt.has_lease, attempt.was_counted = False, True, False
        self._grant(run, attempt)
        if slot in taken:
            self._put_back(taken[slot])
        return "reasserted"

    def finish(self, attempt: Attempt, outcome: RunState) -> str:
        """`outcome` retrying: the attempt failed and is to be followed by another."""
        run, token = self.runs.get(attempt.run), attempt.token
        attempt.is_alive = False
        if run is None:
            return "stale"
        if run.state is not RunState.RUNNING or run.token != token:
            if token not in run.given_up:
                return "already" if run.last_token == token else "stale"
            is_next = run.state is RunState.QUEUED and run.last_token == token
            if outcome is RunState.LOST or not is_next:
                self.counters["leases_lost"] += 1
                self._count_overlap(attempt)
                run.given_up.discard(token)
                return "stale"
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
                return "stale"
            self._take_back(run, attempt)
        self.overtaken -= attempt.succeeds
        if run.ending:
            self._crash(run)
            return "ended"
        self._end_attempt(run)
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
        self._settle_silent()
        run = self.runs[due] if due else None
        if run and run.state is RunState.RETRYING and run.slot:
            self._queue(run)
        elif run and run.state in (RunState.WAITING, RunState.RETRYING):
            self._place(run)
        self._promote()

    def _place(self, run: ModelRun) -> Verdict:
        if self.most is not None:
            self._settle_silent()
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
            self._settle_silent()
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
        self.overtaken.discard(attempt.token)
        attempt.has_lease = True

    def _end_attempt(self, run: ModelRun) -> None:
        self.attempts[run.token].has_lease = False
        run.last_token, run.ending, run.is_silent = run.token, None, False

    def _settle_silent(self) -> None:
        for run in self.holders:
            if run.is_silent:
                self._settle(run)

    def _settle(self, run: ModelRun) -> None:
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
