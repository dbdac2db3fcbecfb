"""A lease as the worker's main process knows it: its states, and what follows from them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from supervisor.guard import lease
from supervisor.guard.attempt import Attempt
from supervisor.guard.child_table import ENTRIES, ChildTable
from supervisor.guard.heartbeat import Heartbeat
from supervisor.guard.lease import Lease, State
from supervisor.job.spec import JobSpec
from supervisor.ledger.attempt import AttemptPhase, GrantedAttempt, LeaseState, Renewal, Work
from supervisor.ledger.ledger import Ledger
from tests.logged import capture_logs

#: Of a child's entry in the table, which is found by what is left of its process id.
CHILD = os.getpid() + ENTRIES

TTL = 6
TAKEN_AT = 1000.0
GRANTED = GrantedAttempt(7, 1, 1)

ANY_ATTEMPT = cast(Attempt, None)

#: Two thirds of its life.
TRUSTED_UNTIL = TAKEN_AT + 4


@dataclass
class Clock:
    now: float = TAKEN_AT

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lease, "clock", clock)
    return clock


@pytest.fixture
def table() -> ChildTable:
    return ChildTable()


def held(
    pid: int = CHILD,
    is_active: Callable[[], bool] = lambda: True,
    on_lease_lost: str = "abort",
    stop_grace: str = "10s",
    table: ChildTable | None = None,
    **fields: Any,
) -> Lease:
    keys: dict[str, Any] = {"on_lease_lost": on_lease_lost, "stop_grace": stop_grace}
    spec = JobSpec(name="nightly", task="t", every="1m", lease_ttl=f"{TTL}s", **keys)
    work = Work("nightly@1", spec.name, datetime(2026, 3, 1, tzinfo=UTC), spec.rules(), "worker")
    return Lease(work, "token", pid, is_active, table or ChildTable(), taken_at=TAKEN_AT, **fields)


HELD = {"state": State.HELD}
LOST = {"state": State.LOST}
TAKEN = {"state": State.TAKEN}
UNHEARD = {"state": State.UNHEARD}


@pytest.mark.parametrize(
    ("fields", "works", "seconds", "surely", "begun", "known", "deadline"),
    [
        ({}, True, 1, False, AttemptPhase.UNKNOWN, False, math.inf),
        ({}, True, 2, False, AttemptPhase.UNKNOWN, False, math.inf),
        ({}, True, 2.1, True, AttemptPhase.UNKNOWN, True, TRUSTED_UNTIL),
        ({}, False, 9, False, AttemptPhase.UNKNOWN, False, math.inf),
        ({"is_active": lambda: False}, True, 9, False, AttemptPhase.UNKNOWN, False, math.inf),
        (HELD, True, 0, True, AttemptPhase.AT_WORK, True, TRUSTED_UNTIL),
        (HELD, False, 0, True, AttemptPhase.OVER, True, TRUSTED_UNTIL),
        (
            HELD | {"is_active": lambda: False},
            True,
            0,
            True,
            AttemptPhase.UNKNOWN,
            False,
            TRUSTED_UNTIL,
        ),
        (
            HELD | {"on_lease_lost": "continue"},
            True,
            0,
            True,
            AttemptPhase.AT_WORK,
            True,
            TRUSTED_UNTIL,
        ),
        (HELD | {"kill_at": 7.0}, True, 0, True, AttemptPhase.AT_WORK, True, 7.0),
        (LOST, True, 0, True, AttemptPhase.AT_WORK, False, math.inf),
        (LOST | {"on_lease_lost": "continue"}, True, 0, True, AttemptPhase.AT_WORK, True, math.inf),
        (UNHEARD, True, 2.1, True, AttemptPhase.UNKNOWN, False, math.inf),
        (
            UNHEARD | {"on_lease_lost": "continue"},
            True,
            2.1,
            True,
            AttemptPhase.UNKNOWN,
            True,
            math.inf,
        ),
        (
            TAKEN | {"on_lease_lost": "continue"},
            True,
            0,
            True,
            AttemptPhase.AT_WORK,
            False,
            math.inf,
        ),
    ],
)
def test_a_lease_is_interrupted_and_killed_in_time(
    clock: Clock,
    table: ChildTable,
    fields: dict[str, Any],
    works: bool,
    seconds: float,
    surely: bool,
    begun: AttemptPhase,
    known: bool,
    deadline: float,
) -> None:
    lease = held(table=table, **fields)
    if works:
        table.enter("token", ANY_ATTEMPT, TAKEN_AT, GRANTED)
    clock.now += seconds
    found = lease.has_surely_begun, lease.phase, lease.should_be_known, lease.deadline
    assert found == (surely, begun, known, pytest.approx(deadline))


def test_a_lease_is_over_some_time_after_its_task(clock: Clock) -> None:
    is_active = True
    lease = held(is_active=lambda: is_active)

    def is_over_after(seconds: float) -> bool:
        clock.now += seconds
        return lease.is_over()

    assert not is_over_after(60)
    is_active = False
    assert [is_over_after(seconds) for seconds in (0, 5, 0.1)] == [False, False, True]
    is_active = True
    assert not is_over_after(60)
    is_active = False
    assert [is_over_after(seconds) for seconds in (0, 5.1)] == [False, True]
    lease.state = State.DEAD
    assert not is_over_after(60)


@pytest.mark.parametrize(("stop_grace", "seconds"), [("10s", 1.6), ("1s", 1.0)])
def test_work_may_end_by_itself_before_its_lease_does(stop_grace: str, seconds: float) -> None:
    """In four fifths of the third that is left when trust has ended."""
    assert held(stop_grace=stop_grace).abort_grace == timedelta(seconds=seconds)


def test_a_lease_is_renewed_six_times_in_its_life() -> None:
    assert held().renewal_seconds == TTL / 6


def test_a_child_has_one_lease_and_a_process_one_for_each_of_its_own_runs() -> None:
    assert held().key == CHILD
    assert held(os.getpid()).key == "token"


@pytest.mark.parametrize("is_interrupted", [False, True])
@pytest.mark.parametrize(
    ("state", "without_interruption", "interrupted"),
    [
        (State.REQUESTED, State.HELD, State.HELD),
        (State.HELD, State.HELD, State.HELD),
        (State.UNHEARD, State.HELD, State.LOST),
        (State.LOST, State.HELD, State.LOST),
        (State.TAKEN, State.HELD, State.TAKEN),
    ],
)
def test_a_renewed_lease_is_held_again_unless_its_work_was_interrupted(
    state: State, without_interruption: State, interrupted: State, is_interrupted: bool
) -> None:
    lease = held(state=state, is_interrupted=is_interrupted)
    lease.renewed(TAKEN_AT + 60)
    assert lease.state is (interrupted if is_interrupted else without_interruption)
    assert lease.trusted_until == TRUSTED_UNTIL + 60


@pytest.mark.parametrize(
    ("state", "lost"), [(State.REQUESTED, State.UNHEARD), (State.HELD, State.LOST)]
)
def test_a_lease_that_is_lost_keeps_what_is_granted_of_its_run(state: State, lost: State) -> None:
    lease = held(state=state)
    lease.distrust()
    assert lease.state is lost


def test_an_overlap_and_a_loss_are_logged_once() -> None:
    table = ChildTable(is_shared=False)  # of which nothing is known: it is at work
    lease = held(table=table, on_lease_lost="continue")
    beats = Heartbeat(cast(Ledger, None), table)
    beats.watch(lease)
    with capture_logs() as lines:
        for other in ("nightly@2", None, None):
            beats._note(lease, Renewal(LeaseState.LOST, other), TAKEN_AT)
    assert [line["event"] for line in lines] == ["runs overlapped", "lease lost"]


def test_a_lease_is_not_replaced_when_its_start_is_heard_of_late() -> None:
    beats, found = Heartbeat(cast(Ledger, None), ChildTable()), held(is_interrupted=True)
    beats.watch(found)
    beats.watch(held())
    assert beats._leases == {CHILD: found}


def test_an_attempt_is_found_while_its_process_is_inside_its_code(table: ChildTable) -> None:
    table.enter("token", ANY_ATTEMPT, TAKEN_AT, GRANTED)
    assert table.requested_at(os.getpid(), "token") == TAKEN_AT
    assert table.requested_at(os.getpid(), "another") is None
    assert table.granted(os.getpid(), "token") == GRANTED
    assert table.granted(os.getpid(), "another") is None
    table.leave("token")
    assert table.requested_at(os.getpid(), "token") is None
    assert table.granted(os.getpid(), "token") is None


def test_a_process_whose_entry_another_took_counts_as_running(table: ChildTable) -> None:
    table.enter("another", ANY_ATTEMPT, TAKEN_AT, GRANTED)
    assert table.is_running(CHILD, "token")
    assert not table.is_running(os.getpid(), "token")
