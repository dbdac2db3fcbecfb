"""A ledger that is older than what workers know: after the promotion of a replica that lagged, say.

Histories of transitions on the real server. For each state that a history went through, and each
later one: the earlier state is the ledger's, the later one the workers'.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from redis import Redis

from supervisor.job.run import OPEN_STATES, RunState
from supervisor.ledger.attempt import Ending, Grant, GrantedAttempt, LeaseState, Work
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.run_request import RunRequest
from supervisor.testing import comes_due, empty, lease_runs_out, server_changes
from supervisor.times import ms_of
from tests.damage import granted_under, lose, lose_field
from tests.jobs import MIDNIGHT, job, job_has, ticks

LENGTH = 12
HISTORIES = max(3, int(os.environ.get("SUPERVISOR_SOAK_STEPS", "0")) // 2000)

#: Nothing ends by the clock but what a step of a history makes end.
LONG = dict.fromkeys(["lease_ttl", "start_deadline", "requeue_delay"], "9h")

JOBS: Mapping[str, dict[str, Any]] = {
    "skip": {"overlap": "skip"},
    "queue_all": {"overlap": "queue_all"},
    "requeue": {"overlap": "requeue", "max_requeues": 1},
    "replace": {"overlap": "replace"},
    "no_rerun": {"overlap": "queue_all", "on_crash": "fail"},
    "serial": {"overlap": "queue_all", "serial": True},
    "two": {"overlap": "queue_all", "max_running": 2},
    "allow": {"overlap": "allow"},
}

#: Microseconds by which a lock's tokens are ahead of the time, so that none grows by itself.
AHEAD = 60_000_000


@dataclass(frozen=True)
class Body:
    """The body of an attempt at work."""

    run: str
    token: str
    granted: GrantedAttempt

    began: int
    """Its place in the order of all begins."""


@dataclass
class Witness:
    """What workers do, whatever the ledger says of it."""

    most: int | None
    at_work: dict[str, Body] = field(default_factory=dict)
    begins: int = 0

    overtaken: set[str] = field(default_factory=set)
    """Tokens of those beside which one more began than may be at work."""

    unknown: frozenset[str] = frozenset()
    """Tokens whose begins do not count for that."""

    def begin(self, run: str, token: str, granted: GrantedAttempt) -> None:
        self.begins += 1
        self.at_work[token] = Body(run, token, granted, self.begins)
        self.check()

    def check(self) -> None:
        if self.most is not None:
            bodies = self.at_work.values()
            begins = [body.began for body in bodies if body.token not in self.unknown]
            for body in bodies:
                if sum(began > body.began for began in begins) >= self.most:
                    self.overtaken.add(body.token)

    def copy(self) -> Witness:
        return Witness(self.most, dict(self.at_work), self.begins, set())


@dataclass(frozen=True)
class State:
    keys: Mapping[str, tuple[bytes, int]]
    witness: Witness
    second: int
    current: frozenset[str]
    done: Mapping[str, RunState]
    overtaken: frozenset[str]
    """Tokens of those at work beside which one too many began, which may be over by now."""


class World:
    """One job, its ledger, its beat and its workers."""

    def __init__(self, ledger: Ledger, raw: Redis, keys: dict[str, Any], seed: int) -> None:
        self.ledger, self.raw, self.rng = ledger, raw, random.Random(seed)
        self.spec = job(ledger, **LONG, **keys)
        before = ms_of(MIDNIGHT - timedelta(seconds=1))
        job_has(ledger, self.spec.name, watermark=before, loaded=before)
        self.is_ahead = bool(seed % 2)
        if self.is_ahead:
            self.fence_ahead()
        self.witness = Witness(self.spec.most_running)
        self.numbers = 0
        self.second = -1
        self.fences: set[int] = set()
        self.done: dict[str, RunState] = {}
        self.current: frozenset[str] = frozenset()
        #: Tokens of those whose begins are not in the ledger that was restored.
        self.unknown: frozenset[str] = frozenset()

    def fence_ahead(self) -> None:
        now = int(self.ledger.now().timestamp() * 1_000_000)
        granted_under(self.ledger, self.spec, now + AHEAD)

    # The states of a history

    def save(self) -> State:
        client = self.ledger.client
        names = sorted(client.scan_iter(f"{self.ledger.keys.prefix}:*", 1000))
        raw = self.raw.pipeline(transaction=False)
        for name in names:
            raw.dump(name)
            raw.pttl(name)
        flat = raw.execute()
        keys = {name: (flat[2 * i], flat[2 * i + 1]) for i, name in enumerate(names)}
        bodies = self.witness.at_work.values()
        current = frozenset(body.token for body in bodies if self.has_lease(body))
        overtaken = frozenset(self.witness.overtaken & self.witness.at_work.keys())
        return State(keys, self.witness.copy(), self.second, current, dict(self.done), overtaken)

    def has_lease(self, body: Body) -> bool:
        values = self.ledger.client.hmget(self.ledger.keys.run(body.run), "state", "token")
        return values == ["running", body.token]

    def restore(self, ledger: State, workers: State) -> None:
        self.ledger.client.flushdb()
        pipe = self.raw.pipeline(transaction=False)
        for name, (dump, life) in ledger.keys.items():
            pipe.restore(name, max(0, life), dump)
        pipe.execute()
        server_changes(self.ledger)
        self.witness = workers.witness.copy()
        bodies, known = self.witness.at_work.values(), ledger.witness.begins
        self.unknown = frozenset(body.token for body in bodies if body.began > known)
        if self.spec.most_running != 1:  # a begin that was lost is missing where overlaps count
            self.witness.unknown = self.unknown
        self.second, self.current = workers.second, workers.current
        self.fences = set()
        self.done = dict(ledger.done)

    def end_grace(self) -> None:
        self.ledger.acknowledge_server()

    # What happens

    def step(self) -> None:
        self.rng.choice(
            (
                *(self.tick, self.trigger, self.begin, self.begin, self.finish, self.retry),
                *(self.goes_silent, self.come_due, self.rescue, self.renew_all, self.die),
            )
        )()

    def tick(self) -> None:
        self.second += 1
        self.ledger.admit(ticks(self.spec, self.second))

    def trigger(self) -> None:
        self.numbers += 1
        run_id = f"{self.spec.name}@manual-{self.numbers}"
        self.ledger.trigger(self.spec, RunRequest(run_id=run_id))

    def rescue(self) -> None:
        self.ledger.rescue()

    def come_due(self) -> None:
        for run in self.ledger.client.zrange(self.ledger.keys.delayed, 0, -1):
            comes_due(self.ledger, run)
        self.rescue()

    def runs_in(self, *states: RunState) -> list[str]:
        found = self.ledger.client.smembers(self.ledger.keys.open(self.spec.name))
        return sorted(run.id for run in self.ledger.runs(sorted(found)) if run.state in states)

    def begin(self) -> None:
        """A worker takes the message of a queued run."""
        if queued := self.runs_in(RunState.QUEUED):
            self.deliver(self.rng.choice(queued))

    def deliver(self, run: str) -> bool:
        self.numbers += 1
        token = f"token-{self.numbers}"
        answer = self.ledger.begin(run, token, "worker")
        if not isinstance(answer, Grant):
            return False
        granted = answer.granted
        if self.spec.most_running == 1:
            assert all(granted.fencing_token > fence for fence in self.fences), "a token came twice"
        self.fences.add(granted.fencing_token)
        self.witness.begin(run, token, granted)
        return True

    def a_body(self) -> Body | None:
        bodies = sorted(self.witness.at_work.values(), key=lambda body: body.began)
        return self.rng.choice(bodies) if bodies else None

    def finish(self) -> None:
        if body := self.a_body():
            self.report(body, self.rng.choice([RunState.SUCCEEDED, RunState.FAILED]))

    def retry(self) -> None:
        if body := self.a_body():
            del self.witness.at_work[body.token]
            delay = timedelta(hours=9)
            self.ledger.retry(body.run, body.token, delay, granted=body.granted)

    def die(self) -> None:
        if body := self.a_body():
            del self.witness.at_work[body.token]
            self.ledger.report_dead(body.run, body.token, "killed", body.granted)

    def goes_silent(self) -> None:
        """A worker is frozen: its lease runs out, and it is given up."""
        if (body := self.a_body()) and body.run in self.runs_in(RunState.RUNNING):
            lease_runs_out(self.ledger, body.run)
            lose_field(self.ledger, self.ledger.keys.server, "grace_until")
            lose(self.ledger, self.ledger.keys.lock(self.spec.serial_lock))
            self.rescue()

    def report(self, body: Body, outcome: RunState) -> bool:
        """As a child does; returns whether its end was recorded."""

        def reported() -> Ending:
            run, token = body.run, body.token
            return self.ledger.finish(run, token, outcome, granted=body.granted).ending

        ending = reported()
        if ending is Ending.UNKNOWN:
            self.ledger.restore_ended(self.work(body), body.token, body.granted)
            ending = reported()
        del self.witness.at_work[body.token]
        if ending is Ending.ENDED:
            self.fences.add(body.granted.fencing_token)
        if ending is Ending.ENDED and self.ledger.run(body.run).state is outcome:
            self.done[body.run] = outcome
        return ending is Ending.ENDED

    def renew_all(self) -> None:
        bodies = list(self.witness.at_work.values())
        self.rng.shuffle(bodies)
        lost = [body for body in bodies if self.renew(body) is LeaseState.LOST]
        for body in lost:  # it is interrupted, and says so
            self.ledger.finish(body.run, body.token, RunState.LOST, granted=body.granted)

    def all_go_on(self) -> None:
        """All that had their leases keep them.

        But for those that the ledger takes for dead, when a tick has replaced their queued runs.
        """
        replaced = {
            body.token
            for body in self.witness.at_work.values()
            if body.token not in self.unknown
            and self.ledger.client.hget(self.ledger.keys.run(body.run), "state") == "replaced"
        }
        had_leases = (self.current & self.witness.at_work.keys()) - replaced
        self.renew_all()
        assert had_leases <= self.witness.at_work.keys()

    def renew(self, body: Body) -> LeaseState:
        """As a heartbeat does: a body that has lost its lease ends."""
        attempt = (body.run, body.token, True, body.granted)
        [renewal] = self.ledger.renew([attempt])
        if renewal.state is LeaseState.UNKNOWN:
            renewal = self.ledger.restore(self.work(body), body.token, body.granted)
        assert renewal.state is not LeaseState.ENDED, f"{body} would go on without a lease"
        assert renewal.state is not LeaseState.FAILED, renewal.detail
        if renewal.state is LeaseState.LOST:
            del self.witness.at_work[body.token]
        else:
            self.fences.add(body.granted.fencing_token)
        return renewal.state

    def work(self, body: Body) -> Work:
        own = (
            tick for tick in ticks(self.spec, *range(self.second + 1)) if tick.run_id == body.run
        )
        tick = next(own, None)
        nominal_at = tick.nominal_at if tick else MIDNIGHT
        return Work(body.run, self.spec.name, nominal_at, self.spec.rules(), "worker")

    def forget_unknown_calls(self) -> None:
        """What is not known of a call when it ends never will be; a tick comes again."""
        for body in list(self.witness.at_work.values()):
            is_known = self.ledger.client.exists(self.ledger.keys.run(body.run))
            if not is_known and not self.work(body).is_tick:
                del self.witness.at_work[body.token]

    def emit_again(self) -> None:
        """Beat goes on from the watermark that the ledger has."""
        self.ledger.admit(ticks(self.spec, *range(self.second + 1)))

    def deliver_all(self) -> None:
        self.come_due()
        for run in self.runs_in(RunState.QUEUED):
            self.deliver(run)

    def come_to_an_end(self) -> None:
        self.end_grace()
        self.emit_again()
        for _ in range(60):
            self.deliver_all()
            self.renew_all()
            while body := self.a_body():
                self.report(body, RunState.SUCCEEDED)
            if not self.runs_in(*OPEN_STATES):
                return
            for run in self.runs_in(RunState.RUNNING):
                lease_runs_out(self.ledger, run)
            lose(self.ledger, self.ledger.keys.lock(self.spec.serial_lock))
        raise AssertionError(f"still open: {self.runs_in(*OPEN_STATES)}")

    # What has to hold

    def counted(self, *kinds: str) -> int:
        counters = self.ledger.job(self.spec.name).counters
        return sum(n for what, n in counters.items() if what.partition(":")[0] in kinds)

    def check(self, counted_before: int) -> None:
        overlaps = self.counted("overlaps") - counted_before
        assert overlaps >= len(self.witness.overtaken), "an overlap was not counted"
        came = self.counted("ticks", "triggered", "restored")
        went = self.counted("missed", "excluded", "skipped", "finished")
        assert came == went, "a run has no outcome, or two"
        for run, outcome in self.done.items():
            assert self.ledger.run(run).state is outcome


def in_grace(world: World) -> None:
    """The workers come back at once."""
    world.witness.check()
    world.all_go_on()
    world.rescue()
    world.all_go_on()


def after_ticks_came_again(world: World) -> None:
    world.emit_again()
    world.come_due()
    world.witness.check()
    world.all_go_on()


def too_late(world: World) -> None:
    """Only after second copies have begun."""
    world.witness.check()
    for run in world.runs_in(RunState.RUNNING):
        lease_runs_out(world.ledger, run)
    lose(world.ledger, world.ledger.keys.lock(world.spec.serial_lock))
    world.end_grace()
    world.deliver_all()
    world.renew_all()


def with_their_ends(world: World) -> None:
    """The next that workers say is how their work ended."""
    world.forget_unknown_calls()
    while body := world.a_body():
        is_recorded = world.report(body, RunState.SUCCEEDED)
        assert is_recorded or body.token not in world.current


COMEBACKS: tuple[Callable[[World], None], ...] = (
    in_grace,
    after_ticks_came_again,
    with_their_ends,
    too_late,
)


def pairs(states: list[State]) -> Iterator[tuple[State, State]]:
    for later in range(1, len(states)):
        if states[later].witness.at_work:
            for earlier in range(later):
                yield states[earlier], states[later]


@pytest.mark.parametrize("name", JOBS)
def test_a_ledger_may_be_older_than_its_workers(ledger: Ledger, redis_url: str, name: str) -> None:
    turns = count()
    with Redis.from_url(redis_url) as raw:
        for seed in range(HISTORIES):
            empty(ledger)
            world = World(ledger, raw, JOBS[name], seed)
            states = [world.save()]
            for _ in range(LENGTH):
                world.step()
                states.append(world.save())
            comebacks = COMEBACKS[: -1 if world.is_ahead else None]
            for earlier, later in pairs(states):
                come_back = comebacks[next(turns) % len(comebacks)]
                come_back_to(world, earlier, later, come_back)
    assert next(turns) > 20


def come_back_to(
    world: World, earlier: State, later: State, come_back: Callable[[World], None]
) -> None:
    world.restore(earlier, later)
    before = world.counted("overlaps")
    come_back(world)
    if come_back is not too_late and not later.overtaken:
        assert world.counted("overlaps") == before, "nothing overlapped"
    world.come_to_an_end()
    world.check(before)
