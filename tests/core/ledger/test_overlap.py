"""The table of overlap policies, by which the model of the ledger decides."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.job.policies import OnMaxSkips, OverlapPolicy, SkipReason
from tests.core.ledger.overlap import (
    REPLACE,
    REQUEUE,
    START,
    WAIT,
    Decision,
    Situation,
    Verdict,
    decide,
)

OVERLAP = Verdict(Decision.SKIP, SkipReason.OVERLAP)
BUFFER_FULL = Verdict(Decision.SKIP, SkipReason.BUFFER_FULL)
EXHAUSTED = Verdict(Decision.SKIP, SkipReason.REQUEUES_EXHAUSTED)


def held(**more: Any) -> Situation:
    counts = {"running": 1, "max_running": 1, "waiting": 0, "requeues": 0, "skips": 0}
    limits = {"max_waiting": 3, "max_requeues": 2, "max_skips": None}
    return Situation(**{**counts, **limits, "on_max_skips": OnMaxSkips.ALERT, **more})


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
        # No run overtakes those that wait for a lock that was free a moment ago.
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
