"""The real functions on the real server against a model in plain Python, in any order of events.

`make soak` takes many more steps than a run of all tests does.
"""

from __future__ import annotations

import os
from datetime import timedelta
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from supervisor.features.following.step import Following
from supervisor.job.policies import AfterPolicy, OnCrash, OnMaxSkips, OverlapPolicy
from supervisor.job.run import OPEN_STATES, Message, RunState
from supervisor.ledger.admission import Placement
from supervisor.ledger.attempt import Grant, Work
from supervisor.ledger.leader import Leadership
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.run_request import RunRequest
from supervisor.testing import comes_due, empty, leadership_runs_out, lease_runs_out, server_changes
from tests.contents import DIGESTS
from tests.core.ledger.machines import run_machine
from tests.core.ledger.model import Attempt, Model
from tests.damage import lose_field
from tests.jobs import MIDNIGHT, job, ticks

STEPS = int(os.environ.get("SUPERVISOR_SOAK_STEPS", "2500"))
REPORTS = (*(RunState(word) for word in ("succeeded", "failed", "cancelled")), RunState.RETRYING)
#: None: the heartbeat comes before the end.
AT_WAKING = st.none() | st.sampled_from(REPORTS)

JOBS = st.fixed_dictionaries(
    {
        "overlap": st.sampled_from(OverlapPolicy),
        "max_running": st.sampled_from([None, 1, 2, 3]),
        "max_waiting": st.integers(1, 3),
        "max_requeues": st.integers(0, 2),
        "max_crashes": st.integers(1, 3),
        "on_crash": st.sampled_from(OnCrash),
    }
)
LIMITS = st.just({}) | st.fixed_dictionaries(
    {"max_consecutive_skips": st.integers(1, 3), "then": st.sampled_from(OnMaxSkips)}
)
#: Nothing ends by the clock but what a rule makes end.
LONG = dict.fromkeys(["lease_ttl", "start_deadline", "requeue_delay"], "9h")


#: Keys that fit a pattern, each with the milliseconds that it lives.
LIVES = """
local found = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  found[#found + 1] = key
  found[#found + 1] = redis.call('PTTL', key)
end
return found
"""

#: With the marks of a run's id and of the delivery tag.
MESSAGE = "\x01i \x01t"

#: The keys of its lock and of its schedule.
REDBEAT = ("redbeat::lock", "redbeat::schedule")


class LedgerMachine(RuleBasedStateMachine):
    """Each rule asks the ledger and the model the same, and compares the answers."""

    steps, steps_each = 0, 50

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger, self.client, self.keys = ledger, ledger.client, ledger.keys
        empty(ledger)
        self.digests = self.client.register_script(DIGESTS)
        self.lives = self.client.register_script(LIVES)
        self.leader = self.ledger.leader(*REDBEAT)
        self.numbers = count()
        self.fences: list[int] = []
        self.reported: list[str] = []
        self.last_tick = self.watermark = -1
        self.seconds: dict[str, int] = {}
        self.has_slept = self.has_lost_data = False

    @initialize(keys=JOBS, limits=LIMITS)
    def load_a_job(self, keys: dict[str, Any], limits: dict[str, Any]) -> None:
        self.spec = job(self.ledger, since=None, **LONG, **keys, **limits)
        self.model = Model(self.spec)
        self.model.end_grace()

    # Beat

    @rule(by_hand=st.lists(st.booleans(), min_size=1, max_size=3), are_taken=st.booleans())
    def runs_are_admitted(self, by_hand: list[bool], are_taken: bool) -> None:
        for is_by_hand in by_hand:
            if is_by_hand:
                self.trigger()
            else:
                self.admit_next_tick()
        if are_taken:
            for run in self.model.in_state(RunState.QUEUED):
                self.begin(run)

    def trigger(self) -> None:
        number = next(self.numbers)
        run_id = f"{self.spec.name}@manual-{number}"
        message = Message("queue", "list", MESSAGE) if number % 2 else None
        request = RunRequest(run_id=run_id, message=message)
        run = self.ledger.trigger(self.spec, request)
        self.model.admit(run.id, "triggered")
        again = self.ledger.admit_request(self.spec, request)  # the first reply was lost
        assert again.placement is Placement.DUPLICATE
        self.model.counters["duplicates"] += 1

    @precondition(lambda self: self.model.runs)
    @rule(data=st.data(), policy=st.sampled_from(AfterPolicy))
    def a_run_is_triggered_after_another(self, data: st.DataObject, policy: AfterPolicy) -> None:
        after = data.draw(st.sampled_from(list(self.model.runs)))
        run_id = f"{self.spec.name}@manual-{next(self.numbers)}"
        request = RunRequest(run_id=run_id, after=after, after_policy=policy)
        assert self.ledger.admit_request(self.spec, request).placement is Placement.HOLD
        self.model.hold(run_id, after, policy)

    @rule(is_cut_off=st.booleans())
    def beat_deals_with_what_ended(self, is_cut_off: bool) -> None:
        if is_cut_off:  # another beat has the lock by now
            Following(
                self.ledger.led_by(Leadership("redbeat::lock", "relieved"))
            ).deal_with_endings()
            return
        Following(self.ledger).deal_with_endings()
        self.model.follow()

    def admit_next_tick(self) -> None:
        self.last_tick += 1
        self.watermark = self.last_tick
        assert self.leader.poll().leads
        [tick] = ticks(self.spec, self.last_tick)
        self.keep_message(is_kept=bool(self.last_tick % 2))
        [admission] = self.ledger.led_by(self.leader.leadership).admit([tick])
        self.seconds[admission.run_id] = self.last_tick
        verdict = self.model.admit(admission.run_id, "ticks")
        assert (admission.placement, admission.reason) == (verdict.decision, verdict.reason)

    def keep_message(self, *, is_kept: bool) -> None:
        """The ledger has the message of the job's runs, or Celery has to make each."""
        made = f"{self.spec.lock}\n{self.spec.rules_text}"
        kept = {"queue:": "queue", "list:": "list", "text:": MESSAGE, "for:": made}
        fields = kept if is_kept else {"apart": "a test"}
        self.ledger.keep_messages({self.spec.name: (0, fields)})

    @precondition(lambda self: self.watermark >= 0)
    @rule(data=st.data())
    def an_old_tick_is_admitted_again(self, data: st.DataObject) -> None:
        before = self.snapshot()
        second = data.draw(st.integers(0, self.watermark))
        [admission] = self.ledger.admit(ticks(self.spec, second))
        assert admission.placement is Placement.DUPLICATE
        self.model.counters["duplicates"] += 1
        self.assert_only_counters_differ(before)

    @rule()
    def another_beat_takes_over_and_the_relieved_one_does_not_know(self) -> None:
        leadership_runs_out(self.ledger)
        relieved, self.leader = (self.leader, self.ledger.leader(*REDBEAT))
        assert self.leader.poll().leads
        before = self.snapshot()
        [admission] = self.ledger.led_by(relieved.leadership).admit(
            ticks(self.spec, self.last_tick + 1)
        )
        assert admission.placement is Placement.NOT_LEADER
        assert self.ledger.led_by(relieved.leadership).rescue() == ()
        assert self.snapshot() == before

    @precondition(lambda self: self.model.in_state(*OPEN_STATES))
    @rule(data=st.data())
    def a_run_is_cancelled_twice(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.model.in_state(*OPEN_STATES)))
        for _ in range(2):
            assert self.ledger.cancel(run, "not needed") == self.model.cancel(run)

    @precondition(lambda self: self.model.in_state(*OPEN_STATES))
    @rule(data=st.data())
    def a_message_cannot_be_made(self, data: st.DataObject) -> None:
        """The run may have gone on meanwhile, by another process that could make it."""
        run = data.draw(st.sampled_from(self.model.in_state(*OPEN_STATES)))
        for _ in range(2):
            self.ledger.give_up(run, "cannot be published")
            self.model.give_up(run)

    @rule(data=st.data(), is_later=st.booleans())
    def beat_rescues_and_publishes(self, data: st.DataObject, is_later: bool) -> None:
        if is_later and self.model.in_grace:
            self.the_time_for_old_leases_is_over()
        due = None
        if is_later and self.model.delayed:
            due = data.draw(st.sampled_from(self.model.delayed))
            comes_due(self.ledger, due)
        self.rescue(due)
        self.ledger.sent(dict.fromkeys(self.ledger.outbox(), "celery"))

    def rescue(self, due: str | None = None) -> None:
        self.ledger.rescue()
        self.model.rescue(due)
        assert not (self.model.waiting and self.model.has_room)

    # Workers

    @precondition(lambda self: self.model.in_state(RunState.QUEUED))
    @rule(data=st.data())
    def messages_arrive(self, data: st.DataObject) -> None:
        queued = self.model.in_state(RunState.QUEUED)
        for run in data.draw(st.lists(st.sampled_from(queued), min_size=1, unique=True)):
            self.begin(run)

    @precondition(lambda self: self.model.runs)
    @rule(data=st.data())
    def a_second_copy_of_a_message_arrives(self, data: st.DataObject) -> None:
        self.begin(data.draw(st.sampled_from(list(self.model.runs))))

    def begin(self, run: str) -> None:
        before = self.snapshot()
        token = f"token-{next(self.numbers)}"
        answer = self.ledger.begin(run, token, "worker")
        expected = self.model.begin(run, token)
        if isinstance(answer, Grant):
            assert ("begin", self.model.runs[run].attempt) == (expected, answer.attempt)
            self.model.granted(token, answer.granted)
            assert self.ledger.begin(run, token, "worker") == answer
            self.fences.append(answer.fencing_token)
        else:
            assert answer.refusal == expected
            if expected == "duplicate":
                self.assert_only_counters_differ(before)

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def a_heart_beats(self, data: st.DataObject) -> None:
        self.renew(self.drawn(data, self.living))

    @precondition(lambda self: self.late)
    @rule(data=st.data(), outcome=AT_WAKING)
    def a_worker_whose_lease_ran_out_wakes(
        self, data: st.DataObject, outcome: RunState | None
    ) -> None:
        self.wake(self.drawn(data, self.late), outcome)

    def wake(self, attempt: Attempt, outcome: RunState | None) -> None:
        if outcome:
            self.finish(attempt, outcome)
        else:
            self.renew(attempt)

    def renew(self, attempt: Attempt) -> None:
        before, given_up = self.snapshot(), self.given_up
        [renewal] = self.ledger.renew([(attempt.run, attempt.token, True, attempt.granted)])
        assert renewal.state == self.model.renew(attempt)
        if renewal.state in ("lost", "ended", "unknown"):
            is_named = self.given_up > given_up  # the lock names it to the runs that begin later
            self.assert_only_counters_differ(before, is_named=is_named)
        if renewal.state == "unknown" and attempt.is_forgotten:
            self.restore(attempt)

    def restore(self, attempt: Attempt) -> None:
        # A run by hand has no tick: it comes back as if it were older than all of them.
        second = self.seconds.get(attempt.run, -1)
        nominal = MIDNIGHT + timedelta(seconds=second)
        work = Work(attempt.run, self.spec.name, nominal, self.spec.rules(), "worker")
        renewal = self.ledger.restore(work, attempt.token, attempt.granted)
        assert renewal.state == self.model.restore(attempt)
        if renewal.state == "reasserted":
            assert self.ledger.restore(work, attempt.token, attempt.granted) == renewal
            assert self.ledger.run(attempt.run).fencing_token == attempt.granted.fencing_token

    @precondition(lambda self: self.living)
    @rule(data=st.data(), outcome=st.sampled_from((*REPORTS, RunState.LOST)))
    def an_attempt_ends_or_its_process_dies(self, data: st.DataObject, outcome: RunState) -> None:
        self.finish(self.drawn(data, self.living), outcome)

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def a_begin_is_undone(self, data: st.DataObject) -> None:
        """Its reply was lost, say, and the body never started."""
        attempt = self.drawn(data, self.living)
        undone = self.ledger.undo_begin(attempt.run, attempt.token)
        assert undone.ending == self.model.undo_begin(attempt)
        assert set(undone.to_publish) <= set(self.model.in_state(RunState.QUEUED))
        self.reported.append(attempt.token)

    @precondition(lambda self: self.reported)
    @rule(data=st.data(), outcome=st.sampled_from((*REPORTS, RunState.LOST)))
    def an_end_is_reported_again(self, data: st.DataObject, outcome: RunState) -> None:
        ending = self.finish(self.drawn(data, self.reported), outcome)
        assert ending in ("already", "stale", "unknown")

    def finish(self, attempt: Attempt, outcome: RunState) -> str:
        before = self.snapshot()
        if outcome is RunState.RETRYING:
            delay = timedelta(hours=9)
            finished = self.ledger.retry(attempt.run, attempt.token, delay, granted=attempt.granted)
        else:
            granted = attempt.granted
            finished = self.ledger.finish(attempt.run, attempt.token, outcome, granted=granted)
        assert finished.ending == self.model.finish(attempt, outcome)
        if finished.ending in ("already", "stale", "unknown"):
            self.assert_only_counters_differ(before)
        assert len(set(finished.to_publish)) == len(finished.to_publish)
        assert set(finished.to_publish) <= set(self.model.in_state(RunState.QUEUED))
        self.reported.append(attempt.token)
        return finished.ending

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def a_worker_dies_silently(self, data: st.DataObject) -> None:
        self.drawn(data, self.living).is_alive = False

    @precondition(lambda self: self.model.in_state(RunState.RUNNING))
    @rule(data=st.data(), is_noticed=st.booleans(), wakes=st.booleans(), outcome=AT_WAKING)
    def leases_run_out(
        self, data: st.DataObject, is_noticed: bool, wakes: bool, outcome: RunState | None
    ) -> None:
        running = st.sampled_from(self.model.in_state(RunState.RUNNING))
        runs = data.draw(st.lists(running, min_size=1, unique=True))
        attempt = self.model.attempts[self.model.runs[runs[0]].token]
        for run in runs:
            self.run_out(run)
        if is_noticed:
            self.rescue()
        if wakes and attempt.is_alive:
            self.wake(attempt, outcome)

    @precondition(lambda self: self.model.in_state(RunState.QUEUED))
    @rule(data=st.data())
    def a_start_deadline_passes(self, data: st.DataObject) -> None:
        self.run_out(data.draw(st.sampled_from(self.model.in_state(RunState.QUEUED))))

    def run_out(self, run: str) -> None:
        lease_runs_out(self.ledger, run)
        # On a slow machine seconds lie between two looks of a beat, and the model has no clock.
        lose_field(self.ledger, self.keys.server, "grace_until")
        self.model.runs[run].is_silent = self.has_slept = True

    # The server

    @precondition(lambda self: not self.model.in_grace and self.living)
    @rule()
    def the_server_is_another_with_the_same_data(self) -> None:
        server_changes(self.ledger)
        self.model.in_grace = True
        self.rescue()

    @precondition(lambda self: not self.has_lost_data and self.living)
    @rule()
    def the_server_loses_its_data(self) -> None:
        self.has_lost_data = True
        self.client.flushdb()
        job(self.ledger, since=None, **self.spec.model_dump(exclude_defaults=True))
        self.model.forget()
        self.watermark = -1

    @precondition(lambda self: self.model.in_grace)
    @rule()
    def the_time_for_old_leases_is_over(self) -> None:
        self.ledger.acknowledge_server()
        self.model.end_grace()

    # What holds after every step

    @invariant()
    def a_run_has_one_message_for_each_time_it_was_queued(self) -> None:
        sent = [text.rsplit(" ", 1) for text in self.client.lrange("list", 0, -1)]
        assert len({tag for _, tag in sent}) == len(sent)
        assert {run for run, _ in sent} <= {*self.model.runs}
        waiting = {*self.client.zrange(self.keys.sent, 0, -1)}
        for run in self.model.in_state(RunState.QUEUED):
            queue, sends = self.client.hmget(self.keys.run(run), "queue", "sends")
            assert run not in waiting or sends == "1"
            assert queue != "queue" or run in {run for run, _ in sent}

    @invariant()
    def the_ledger_is_as_the_model_says(self) -> None:
        model, keys, lock = self.model, self.keys, self.spec.lock
        with self.client.pipeline(transaction=False) as pipe:
            pipe.hgetall(keys.job(self.spec.name))
            pipe.hgetall(keys.lock_state(lock))
            pipe.zrange(keys.waiting(lock), 0, -1)
            pipe.smembers(keys.open(self.spec.name))
            for index in (keys.outbox, keys.sent, keys.delayed, keys.leases):
                pipe.zrange(index, 0, -1)
            for run in model.runs:
                pipe.hget(keys.run(run), "state")
            record, state, waiting, still_open, outbox, sent, delayed, leases, *states = (
                pipe.execute()
            )
        assert dict(zip(model.runs, states, strict=True)) == {
            run.id: run.state for run in model.runs.values()
        }
        slots = {key: run for key, run in state.items() if key.startswith("holder:")}
        assert slots == {f"holder:{run.slot}": run.id for run in model.holders}
        assert waiting == [run.id for run in model.waiting]
        assert sorted(outbox + sent) == sorted(model.in_state(RunState.QUEUED))
        assert sorted(delayed) == sorted(model.delayed)
        assert set(leases) >= {run.id for run in model.holders}
        counters = {key[2:]: int(value) for key, value in record.items() if key[:2] == "n:"}
        counters.pop("overlap_ms", None)
        assert counters == dict(+model.counters)
        assert int(record.get("consecutive_skips", 0)) == model.skips
        outcomes = sum(
            n for key, n in counters.items() if key.startswith(("finished:", "skipped:"))
        )
        admitted = sum(counters.get(kind, 0) for kind in ("ticks", "triggered", "restored"))
        assert admitted == outcomes + len(still_open)

    @invariant()
    def no_more_hold_the_lock_than_may_and_every_slot_will_run_out(self) -> None:
        lives = self.lives(args=[f"{self.keys.lock(self.spec.lock)}*"])
        slots = dict(zip(lives[::2], lives[1::2], strict=True))
        for name in (self.keys.lock_state, self.keys.waiting):
            slots.pop(name(self.spec.lock), None)
        assert len(slots) == sum(not run.is_silent for run in self.model.holders)
        assert all(life > 0 for life in slots.values())
        if self.model.most is not None:
            assert len(self.model.holders) <= self.model.most
            at_work = [a for a in self.model.attempts.values() if a.is_alive and a.has_lease]
            assert len(at_work) <= self.model.most

    @invariant()
    def fencing_tokens_grow(self) -> None:
        assert all(earlier < later for earlier, later in pairwise(self.fences))

    @invariant()
    def nothing_overlaps_while_no_lease_runs_out(self) -> None:
        may_overlap = self.has_slept or self.has_lost_data
        assert may_overlap or not self.model.counters["overlaps"]

    def check_invariants(self, *args: Any, **kwargs: Any) -> None:
        super().check_invariants(*args, **kwargs)
        type(self).steps += 1

    @property
    def late(self) -> list[str]:
        """Tokens of living workers that were given up, or are to be at the next look."""
        silent = {run.token for run in self.model.runs.values() if run.is_silent}
        known = self.model.attempts
        return [token for token in self.living if not known[token].has_lease or token in silent]

    @property
    def given_up(self) -> set[str]:
        return {token for run in self.model.runs.values() for token in run.given_up}

    @property
    def living(self) -> list[str]:
        return [a.token for a in self.model.attempts.values() if a.is_alive]

    def drawn(self, data: st.DataObject, tokens: list[str]) -> Attempt:
        return self.model.attempts[data.draw(st.sampled_from(tokens))]

    def snapshot(self) -> dict[str, str]:
        """A digest of each key but the schema's, which any function writes where it is not."""
        found = self.digests()
        keys = dict(zip(found[::2], found[1::2], strict=True))
        return {key: digest for key, digest in keys.items() if key != self.keys.schema}

    def assert_only_counters_differ(
        self, before: dict[str, str], *, is_named: bool = False
    ) -> None:
        """The counters are the job's; an overlap is also noted with the runs it is about."""
        after, lock = self.snapshot(), self.keys.lock_state(self.spec.lock)
        assert after.keys() == before.keys()
        changed = {key for key in after if after[key] != before[key]} - (
            {lock} if is_named else set()
        )
        assert changed <= {self.keys.job(self.spec.name), *map(self.keys.run, self.model.runs)}


@pytest.mark.timeout(0)
def test_the_ledger_does_what_the_model_says(ledger: Ledger) -> None:
    run_machine(LedgerMachine, ledger, STEPS)
    assert LedgerMachine.steps >= STEPS
