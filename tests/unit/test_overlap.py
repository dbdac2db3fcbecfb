from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.overlap import (
    REQUEUE,
    START,
    WAIT,
    Decision,
    OverlapPolicy,
    Situation,
    SkipReason,
    Verdict,
    decide,
)

OVERLAP = Verdict(Decision.SKIP, SkipReason.OVERLAP)
BUFFER_FULL = Verdict(Decision.SKIP, SkipReason.BUFFER_FULL)
EXHAUSTED = Verdict(Decision.SKIP, SkipReason.REQUEUES_EXHAUSTED)


def held(waiting: int = 0, requeues: int = 0) -> Situation:
    return Situation(True, waiting=waiting, requeues=requeues, max_waiting=3, max_requeues=2)


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
    ],
)
def test_a_run_that_would_overlap_is_decided_by_its_policy(
    policy: OverlapPolicy, situation: Situation, verdict: Verdict
) -> None:
    assert decide(policy, situation) == verdict


situations = st.builds(
    Situation,
    held=st.booleans(),
    waiting=st.integers(0, 200),
    requeues=st.integers(0, 20),
    max_waiting=st.integers(1, 100),
    max_requeues=st.integers(0, 10),
)


@given(st.sampled_from(OverlapPolicy), situations)
def test_a_run_starts_exactly_when_nothing_holds_the_lock(
    policy: OverlapPolicy, situation: Situation
) -> None:
    assert (decide(policy, situation) == START) is (not situation.held)


@given(st.sampled_from(OverlapPolicy), situations)
def test_a_reason_is_given_exactly_for_skips(policy: OverlapPolicy, situation: Situation) -> None:
    verdict = decide(policy, situation)
    assert (verdict.reason is not None) is (verdict.decision is Decision.SKIP)


@given(st.sampled_from(OverlapPolicy), situations)
def test_the_waiting_list_never_grows_beyond_its_bound(
    policy: OverlapPolicy, situation: Situation
) -> None:
    if decide(policy, situation) == WAIT:
        bound = 1 if policy is OverlapPolicy.QUEUE_ONE else situation.max_waiting
        assert situation.waiting < bound
