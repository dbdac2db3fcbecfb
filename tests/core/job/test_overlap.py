from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.job.policies import (
    REPLACE,
    REQUEUE,
    START,
    WAIT,
    Decision,
    OnMaxSkips,
    OverlapPolicy,
    Situation,
    SkipReason,
    Verdict,
    decide,
)
from supervisor.job.spec import JobSpec

OVERLAP = Verdict(Decision.SKIP, SkipReason.OVERLAP)
BUFFER_FULL = Verdict(Decision.SKIP, SkipReason.BUFFER_FULL)
EXHAUSTED = Verdict(Decision.SKIP, SkipReason.REQUEUES_EXHAUSTED)


def held(**more: Any) -> Situation:
    return Situation(**{"running": 1, "max_waiting": 3, "max_requeues": 2, **more})


def test_a_situation_is_of_a_job_that_says_nothing() -> None:
    spec = JobSpec.model_validate({"name": "j", "task": "t", "every": "1m"})
    most = spec.max_waiting, spec.max_requeues, spec.max_consecutive_skips, spec.then
    assert Situation(1) == Situation(1, 1, 0, 0, 0, *most)


@pytest.mark.parametrize(
    ("policy", "situation", "verdict"),
    [
        (OverlapPolicy.SKIP, held(), OVERLAP),
        (OverlapPolicy.SKIP, held(waiting=1), OVERLAP),
        (OverlapPolicy.QUEUE_ONE, held(), WAIT),
        (OverlapPolicy.QUEUE_ONE, held(waiting=1), OVERLAP),
        (OverlapPolicy.QUEUE_ALL, held(), WAIT),
        (OverlapPolicy.QUEUE_ALL, held(waiting=2), WAIT),
        (OverlapPolicy.QUEUE_ALL, held(waiting=3), BUFFER_FULL),
        (OverlapPolicy.QUEUE_ALL, held(waiting=4), BUFFER_FULL),
        (OverlapPolicy.REQUEUE, held(), REQUEUE),
        (OverlapPolicy.REQUEUE, held(requeues=1), REQUEUE),
        (OverlapPolicy.REQUEUE, held(requeues=2), EXHAUSTED),
        (OverlapPolicy.REQUEUE, held(requeues=3), EXHAUSTED),
        (OverlapPolicy.REPLACE, held(), REPLACE),
        (OverlapPolicy.REPLACE, held(waiting=1), REPLACE),
        (OverlapPolicy.ALLOW, held(max_running=None), START),
        (OverlapPolicy.ALLOW, held(max_running=None, running=99, waiting=9), START),
        (OverlapPolicy.ALLOW, held(max_running=2), START),
        (OverlapPolicy.ALLOW, held(max_running=2, running=2), OVERLAP),
        (OverlapPolicy.QUEUE_ONE, held(max_running=2), START),
        (OverlapPolicy.QUEUE_ONE, held(max_running=2, running=2), WAIT),
        (OverlapPolicy.QUEUE_ONE, held(max_running=2, waiting=1), OVERLAP),
        # Nobody overtakes those that wait for a lock that was free a moment ago.
        (OverlapPolicy.SKIP, held(running=0, waiting=1), OVERLAP),
        (OverlapPolicy.SKIP, held(running=0), START),
    ],
)
def test_a_run_that_would_overlap_is_decided_by_its_policy(
    policy: OverlapPolicy, situation: Situation, verdict: Verdict
) -> None:
    assert decide(policy, situation) == verdict


@pytest.mark.parametrize(
    ("policy", "then", "waiting", "verdict"),
    [
        (OverlapPolicy.SKIP, OnMaxSkips.ALERT, 0, OVERLAP),
        (OverlapPolicy.SKIP, OnMaxSkips.QUEUE_ONE, 0, WAIT),
        (OverlapPolicy.SKIP, OnMaxSkips.QUEUE_ONE, 1, OVERLAP),
        (OverlapPolicy.SKIP, OnMaxSkips.REPLACE, 0, REPLACE),
        (OverlapPolicy.QUEUE_ALL, OnMaxSkips.QUEUE_ONE, 3, OVERLAP),
        (OverlapPolicy.QUEUE_ALL, OnMaxSkips.REPLACE, 3, REPLACE),
        (OverlapPolicy.QUEUE_ALL, OnMaxSkips.REPLACE, 2, WAIT),
        (OverlapPolicy.REQUEUE, OnMaxSkips.REPLACE, 0, REQUEUE),
    ],
)
def test_a_job_that_skips_too_often_does_what_then_says(
    policy: OverlapPolicy, then: OnMaxSkips, waiting: int, verdict: Verdict
) -> None:
    limit = {"waiting": waiting, "max_skips": 2, "on_max_skips": then}
    assert decide(policy, held(skips=2, **limit)) == verdict
    assert decide(policy, held(skips=1, **limit)) == decide(policy, held(waiting=waiting))


situations = st.builds(
    Situation,
    running=st.integers(0, 5),
    max_running=st.none() | st.integers(1, 5),
    waiting=st.integers(0, 200),
    requeues=st.integers(0, 20),
    skips=st.integers(0, 20),
    max_waiting=st.integers(1, 100),
    max_requeues=st.integers(0, 10),
    max_skips=st.none() | st.integers(1, 10),
    on_max_skips=st.sampled_from(OnMaxSkips),
)


@given(st.sampled_from(OverlapPolicy), situations)
def test_no_run_starts_beyond_the_number_that_may(
    policy: OverlapPolicy, situation: Situation
) -> None:
    within = situation.max_running is None or situation.running < situation.max_running
    if decide(policy, situation) == START:
        assert within
    elif within:
        assert situation.waiting


@given(st.sampled_from(OverlapPolicy), situations)
def test_a_reason_is_given_exactly_for_skips(policy: OverlapPolicy, situation: Situation) -> None:
    verdict = decide(policy, situation)
    assert (verdict.reason is not None) is (verdict.decision is Decision.SKIP)


@given(st.sampled_from(OverlapPolicy), situations)
def test_the_waiting_list_never_grows_beyond_its_bound(
    policy: OverlapPolicy, situation: Situation
) -> None:
    if decide(policy, situation) == WAIT:
        bounds = {OverlapPolicy.QUEUE_ALL: situation.max_waiting}
        assert situation.waiting < bounds.get(policy, 1)
