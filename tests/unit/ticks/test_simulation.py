"""The simulation by tables: small worlds whose end can be told by hand, in seconds from noon."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ticks.simulation import (
    JobTally,
    SimulatedJob,
    Tally,
    Transition,
    number_of_ticks,
    simulate,
    ticks_of,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(second: float) -> datetime:
    return NOON + timedelta(seconds=second)


def job(
    ticks: Iterable[float], duration: float | list[float], name: str = "job", **keys: Any
) -> SimulatedJob:
    """`duration`: of every run, or of the first, the second ... that start."""
    spec = JobSpec.model_validate({"name": name, "task": "t", "every": "1s", **keys})
    lasting = iter(duration) if isinstance(duration, list) else None
    return SimulatedJob(
        spec,
        iter([at(tick) for tick in ticks]),
        lambda: timedelta(seconds=next(lasting) if lasting else duration),  # type: ignore[arg-type]
        spec.routed_queue or "celery",
    )


def happened(*jobs: SimulatedJob, until: float = 100, slots: int | None = None) -> list[Transition]:
    return list(simulate(jobs, at(until), slots))


def tally(*jobs: SimulatedJob, until: float = 100, slots: int | None = None) -> Tally:
    return Tally.of(simulate(jobs, at(until), slots), NOON, at(until))


def of_job(*jobs: SimulatedJob, until: float = 100, slots: int | None = None) -> JobTally:
    [only] = tally(*jobs, until=until, slots=slots).jobs.values()
    return only


def starts(transitions: list[Transition]) -> list[tuple[float, float]]:
    """(nominal, start) in seconds, in the order of the starts."""
    return [
        ((t.run.nominal_at - NOON).total_seconds(), (t.at - NOON).total_seconds())
        for t in transitions
        if t.state is RunState.RUNNING
    ]


def reasons(transitions: list[Transition], state: RunState) -> list[tuple[float, str]]:
    return [
        ((t.run.nominal_at - NOON).total_seconds(), t.reason)
        for t in transitions
        if t.state is state
    ]


TICKS = [0, 10, 20, 30]

POLICIES = [
    # overlap, what else the job says, (nominal, start) of each run, (nominal, reason) of each skip
    ("skip", {}, [(0, 0), (30, 30)], [(10, "overlap"), (20, "overlap")]),
    ("queue_one", {}, [(0, 0), (10, 25), (30, 50)], [(20, "overlap")]),
    ("queue_all", {}, [(0, 0), (10, 25), (20, 50), (30, 75)], []),
    ("queue_all", {"max_waiting": 1}, [(0, 0), (10, 25), (30, 50)], [(20, "buffer_full")]),
    (
        "queue_all",
        {"max_wait": 10},
        [(0, 0), (20, 25)],
        [(10, "wait_expired"), (30, "wait_expired")],
    ),
    ("requeue", {"requeue_delay": 16}, [(0, 0), (10, 26), (20, 52), (30, 78)], []),
    (
        "requeue",
        {"requeue_delay": 6, "max_requeues": 1},
        [(0, 0), (20, 26)],
        [(10, "requeues_exhausted"), (30, "requeues_exhausted")],
    ),
    ("replace", {}, [(0, 0), (10, 10), (20, 20), (30, 30)], []),
    ("allow", {}, [(0, 0), (10, 10), (20, 20), (30, 30)], []),
    ("allow", {"max_running": 2}, [(0, 0), (10, 10), (30, 30)], [(20, "overlap")]),
    ("skip", {"max_running": 2}, [(0, 0), (10, 10), (30, 30)], [(20, "overlap")]),
    (
        "skip",
        {"max_consecutive_skips": 1, "then": "queue_one"},
        [(0, 0), (20, 25)],
        [(10, "overlap"), (30, "overlap")],
    ),
]


@pytest.mark.parametrize(("overlap", "keys", "runs", "skips"), POLICIES)
def test_each_policy_does_what_it_says(
    overlap: str, keys: dict[str, Any], runs: list[tuple[float, float]], skips: list[Any]
) -> None:
    found = happened(job(TICKS, 25, overlap=overlap, **keys))
    assert starts(found) == runs
    assert sorted(reasons(found, RunState.SKIPPED)) == skips


def test_who_waits_to_replace_gives_way_to_a_newer_one() -> None:
    both = job([0, 1], 50, "a", key="k", overlap="allow", max_running=2)
    found = happened(both, job([10, 20], 5, "b", key="k", overlap="replace"))
    assert starts(found) == [(0, 0), (1, 1), (20, 20)]
    assert reasons(found, RunState.SKIPPED) == [(10, "replaced")]


def test_a_time_limit_ends_a_run() -> None:
    found = of_job(job([0, 10], 25, time_limit="5s"))
    assert (found.started, found.finished) == (2, {RunState.TIMED_OUT: 2})


def test_a_queue_has_as_many_slots_as_were_asked_for() -> None:
    jobs = [job([0], 10, name, queue="q") for name in "abc"]
    found = tally(*jobs, slots=2)
    queue = found.queues["q"]
    assert (queue.most_busy, queue.longest, queue.lateness.longest) == (2, 1, 10)
    assert queue.busy_seconds == 30


def test_without_a_bound_a_queue_is_never_late() -> None:
    jobs = [job([0], 10, name) for name in "abc"]
    queue = tally(*jobs).queues["celery"]
    assert (queue.most_busy, queue.longest, queue.lateness.longest) == (3, 0, 0)


def test_a_run_that_finds_no_slot_before_its_start_deadline_expires() -> None:
    long, short = job([0], 50, "a"), job([1, 20], 1, "b", start_deadline="10s")
    found = tally(long, short, slots=1)
    assert found.jobs["b"].unstarted == {RunState.EXPIRED: 2}
    assert found.jobs["b"].skipped == {}


def test_ticks_of_a_paused_job_are_excluded() -> None:
    found = of_job(job(TICKS, 1, paused=True))
    assert (found.ticks, found.excluded, found.started) == (4, 4, 0)


def test_what_is_open_at_the_end_is_counted() -> None:
    found = of_job(job(TICKS, 25, overlap="queue_all"), until=40)
    assert (found.started, found.running, found.waiting) == (2, 1, 2)
    assert sorted(found.waits) == [10, 15, 20]


def test_lateness_is_from_the_nominal_time_to_the_start() -> None:
    found = of_job(job([0, 10, 20], 15, overlap="queue_all"))
    assert (found.lateness.p50, found.lateness.longest) == (5, 10)


def test_ticks_between_two_times_include_the_first_and_not_the_last() -> None:
    spec = JobSpec.model_validate({"name": "j", "task": "t", "every": "10s"})
    assert list(ticks_of(spec, at(0), at(30))) == [at(0), at(10), at(20)]
    assert number_of_ticks(spec, at(0), at(30)) == 3
