"""What holds in every simulated world, whatever its jobs and their durations."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from supervisor.job.policies import OnMaxSkips, OverlapPolicy
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ticks.simulation import SimulatedJob, SimulatedRun, Tally, Transition, simulate

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
END = NOON + timedelta(minutes=4)

seconds = st.integers(0, 60).map(lambda number: timedelta(seconds=number))

keys = st.fixed_dictionaries(
    {"overlap": st.sampled_from(OverlapPolicy)},
    optional={
        "key": st.sampled_from(["shared", "{job}"]),
        "max_running": st.integers(1, 3),
        "max_wait": seconds,
        "max_waiting": st.integers(1, 3),
        "requeue_delay": st.integers(1, 20).map(lambda number: timedelta(seconds=number)),
        "max_requeues": st.integers(0, 3),
        "start_deadline": st.integers(1, 60).map(lambda number: timedelta(seconds=number)),
        "serial": st.booleans(),
        "time_limit": st.integers(1, 60).map(lambda number: timedelta(seconds=number)),
        "paused": st.booleans(),
    },
)


@st.composite
def simulated_job(draw: st.DrawFn, name: str) -> SimulatedJob:
    given = draw(keys)
    if draw(st.booleans()):
        given |= {"max_consecutive_skips": 2, "then": draw(st.sampled_from(OnMaxSkips))}
    spec = JobSpec(name=name, task="t", every=timedelta(seconds=1), **given)
    ticks = sorted(draw(st.sets(st.integers(0, 180), max_size=25)))
    durations = draw(st.lists(seconds, min_size=1, max_size=5))
    turns = iter(durations * len(ticks))
    return SimulatedJob(
        spec,
        (NOON + timedelta(seconds=tick) for tick in ticks),
        lambda: next(turns),
        spec.routed_queue or "celery",
    )


def worlds() -> st.SearchStrategy[list[SimulatedJob]]:
    return st.tuples(*(simulated_job(name) for name in "abc")).map(list)


slots = st.none() | st.integers(1, 3)


@given(worlds(), slots)
def test_every_world_keeps_what_the_policies_promise(
    jobs: list[SimulatedJob], slots: int | None
) -> None:
    transitions = list(simulate(jobs, END, slots))
    tally = Tally.of(transitions, NOON, END)
    every_tick_is_accounted_for(tally)
    never_more_work_on_a_queue_than_it_has_slots(tally, slots)
    never_more_runs_of_a_key_than_may(transitions)
    who_waits_first_has_its_turn_first(transitions)
    times = [transition.at for transition in transitions]
    assert times == sorted(times), "time does not go back"
    assert all(NOON <= moment < END for moment in times)


def every_tick_is_accounted_for(tally: Tally) -> None:
    for job in tally.jobs.values():
        ended_unstarted = job.excluded + job.skipped.total() + job.unstarted.total()
        assert job.ticks == job.started + ended_unstarted + job.waiting + job.queued
        assert job.started == job.finished.total() + job.running


def never_more_work_on_a_queue_than_it_has_slots(tally: Tally, slots: int | None) -> None:
    for name, queue in tally.queues.items():
        most = 1 if name.startswith("serial.") else slots
        assert most is None or queue.most_busy <= most


def never_more_runs_of_a_key_than_may(transitions: list[Transition]) -> None:
    holders: dict[str, set[SimulatedRun]] = defaultdict(set)
    for transition in transitions:
        run, held = transition.run, holders[transition.run.job.lock]
        if transition.state in (RunState.QUEUED, RunState.RUNNING):
            if run not in held and run.job.spec.most_running is not None:
                assert len(held) < run.job.spec.most_running
            held.add(run)
        else:
            held.discard(run)


def who_waits_first_has_its_turn_first(transitions: list[Transition]) -> None:
    lines: dict[str, list[SimulatedRun]] = defaultdict(list)
    for transition in transitions:
        line = lines[transition.run.job.lock]
        if transition.state is RunState.WAITING and transition.reason == "":
            line.append(transition.run)
        elif transition.run in line:
            if transition.state is RunState.QUEUED:
                assert line[0] is transition.run
            line.remove(transition.run)


@given(worlds())
def test_with_workers_enough_a_tick_is_started_skipped_excluded_or_waiting(
    jobs: list[SimulatedJob],
) -> None:
    for job in jobs:
        job.queue = "celery"
    for tally in Tally.of(simulate(jobs, END), NOON, END).jobs.values():
        ended_unstarted = tally.skipped.total() + tally.excluded
        assert tally.ticks == tally.started + ended_unstarted + tally.waiting


@given(simulated_job("a"))
def test_a_job_that_replaces_ends_the_run_before(job: SimulatedJob) -> None:
    plain = {"max_running": None, "paused": False, "max_wait": None, "serial": False}
    job.spec = job.spec.model_copy(update={"overlap": OverlapPolicy.REPLACE, **plain})
    running: list[SimulatedRun] = []
    for transition in simulate([job], END):
        match transition.state:
            case RunState.RUNNING:
                assert transition.at == transition.run.nominal_at
                running.append(transition.run)
                assert len(running) == 1
            case RunState.REPLACED:
                assert is_followed(transition)
                running.remove(transition.run)
            case RunState.SUCCEEDED | RunState.TIMED_OUT:
                running.remove(transition.run)


def is_followed(end: Transition) -> bool:
    return end.run.started_at is not None and end.run.started_at < end.at
