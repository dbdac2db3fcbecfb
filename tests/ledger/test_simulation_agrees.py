"""The simulation and the ledger's functions come to the same ends.

What the simulation says happens is done to a real ledger, in that order: ticks are admitted,
runs begin and end. What takes time on the ledger's own clock (re-queues, patience) is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.job.policies import OverlapPolicy
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.requests import Tick
from supervisor.ticks.simulation import SimulatedJob, SimulatedRun, Transition, simulate
from tests.ledger.jobs import MIDNIGHT, begin

END = MIDNIGHT + timedelta(minutes=2)

TIMELESS = [policy for policy in OverlapPolicy if policy is not OverlapPolicy.REQUEUE]


@st.composite
def worlds(draw: st.DrawFn) -> list[SimulatedJob]:
    """Two jobs, with one lock or with two. Only one of several holders can be the oldest when all
    began in the same millisecond, so a lock that is replaced has one slot."""
    policies = draw(st.lists(st.sampled_from(TIMELESS), min_size=2, max_size=2))
    replaces = OverlapPolicy.REPLACE in policies
    shared: dict[str, Any] = {"max_running": 1 if replaces else draw(st.integers(1, 3))}
    if draw(st.booleans()):
        shared["key"] = "shared"
    return [
        draw(simulated(name, policy, shared)) for name, policy in zip("ab", policies, strict=True)
    ]


@st.composite
def simulated(
    draw: st.DrawFn, name: str, policy: OverlapPolicy, shared: dict[str, Any]
) -> SimulatedJob:
    keys = {"max_waiting": draw(st.integers(1, 3)), "serial": draw(st.booleans()), **shared}
    spec = JobSpec(name=name, task="t", every=timedelta(seconds=1), overlap=policy, **keys)
    ticks = sorted(draw(st.sets(st.integers(0, 60), max_size=12)))
    lasting = iter(draw(st.lists(st.integers(0, 30), min_size=len(ticks), max_size=len(ticks))))
    return SimulatedJob(
        spec,
        (MIDNIGHT + timedelta(seconds=tick) for tick in ticks),
        lambda: timedelta(seconds=next(lasting)),
        spec.routed_queue or "celery",
    )


def id_of(run: SimulatedRun) -> str:
    return tick_of(run).run_id


def tick_of(run: SimulatedRun) -> Tick:
    return Tick(run.job.spec, run.nominal_at)


def done_to(ledger: Ledger, transitions: Iterable[Transition]) -> list[SimulatedRun]:
    """The runs, in the order of their ticks."""
    runs: dict[SimulatedRun, None] = {}
    for transition in transitions:
        run = transition.run
        if run not in runs:
            runs[run] = None
            ledger.admit([tick_of(run)])
        if transition.state is RunState.RUNNING:
            begin(ledger, id_of(run), id_of(run))
        elif run.started_at is not None and not transition.state.is_open:
            # One that is to be replaced has been asked to end: its child says no more than that.
            told = RunState.LOST if transition.state is RunState.REPLACED else transition.state
            ledger.finish(id_of(run), id_of(run), told)
    return list(runs)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(jobs=worlds(), slots=st.none() | st.integers(1, 2))
def test_what_is_simulated_is_what_the_ledger_does(
    ledger: Ledger, jobs: list[SimulatedJob], slots: int | None
) -> None:
    ledger.client.flushdb()
    ledger.acknowledge_server()
    for job in jobs:
        ledger.client.hset(ledger.keys.jobs, job.spec.name, job.spec.model_dump_json())
    runs = done_to(ledger, simulate(jobs, END, slots))
    real = {run.id: run.state for run in ledger.runs([id_of(run) for run in runs])}
    assert real == {id_of(run): run.state for run in runs}
