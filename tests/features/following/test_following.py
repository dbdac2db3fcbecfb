"""How many runs follow the ends of others, and that no two of them have one id."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from supervisor.features.following.rule import FollowState, decide
from supervisor.features.following.store import Memory, RunEnd, tick_of
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec

FOLLOWED = ("a", "b", "c")

#: Each run once, in any order: one may end long after runs of later times.
ENDS = st.lists(st.tuples(st.sampled_from(FOLLOWED), st.integers(1, 10)), unique=True, max_size=40)


def ended(job: str, minute: int) -> RunEnd:
    nominal = 60_000 * minute
    return RunEnd(job, tick_of(job, nominal), RunState.SUCCEEDED, nominal, nominal)


def ids(ends: Sequence[RunEnd], batch: int, **keys: object) -> list[str]:
    """Of the runs that follow, where a beat deals with so many ends at a time."""
    spec = JobSpec.model_validate({"name": "f", "task": "t", "after": FOLLOWED, **keys})
    followers = dict.fromkeys(FOLLOWED, ("f",))
    fields: dict[str, str] = {}
    seen: list[str] = []
    for start in range(0, len(ends), batch):
        snapshot = FollowState({"f": spec}, followers, {"f": Memory.of(fields)}, {}, {})
        decisions = decide(ends[start : start + batch], snapshot)
        seen += [run.run_id for run in decisions.runs]
        fields = snapshot.memories["f"].fields
    return seen


@given(ENDS, st.integers(1, 5))
def test_latest_runs_each_time_all_have_ended_under_ids_of_their_own(
    ends: list[tuple[str, int]], batch: int
) -> None:
    since_last: set[str] = set()
    expected = 0
    for job, _ in ends:
        since_last.add(job)
        if since_last == set(FOLLOWED):
            since_last.clear()
            expected += 1
    found = ids([ended(*end) for end in ends], batch, after_match="latest")
    assert len(set(found)) == len(found) == expected


@given(ENDS, st.integers(1, 5))
def test_same_time_runs_once_for_each_time_for_which_all_have(
    ends: list[tuple[str, int]], batch: int
) -> None:
    minutes = {minute for _, minute in ends if {(job, minute) for job in FOLLOWED} <= set(ends)}
    found = ids([ended(*end) for end in ends], batch)
    assert sorted(found) == sorted(tick_of("f", 60_000 * minute) for minute in minutes)
