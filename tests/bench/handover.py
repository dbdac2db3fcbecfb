"""From the end of a run to the start of the one that waits for it, as the job's code sees it."""

from __future__ import annotations

from itertools import pairwise
from statistics import median, quantiles

from supervisor.ledger.requests import RunRequest
from supervisor.overlap import OverlapPolicy
from tests.acceptance.project import Project
from tests.waiting import wait_until

RUNS = 300


def measure(project: Project) -> dict[str, float]:
    project.schedule("jobs: {quick: {task: team.work, every: 24h, paused: true}}")
    project.beat()
    project.worker(processes=2)
    ledger = project.ledger
    wait_until(lambda: "quick" in ledger.scheduled(), 20)
    waiting = RunRequest(overlap=OverlapPolicy.QUEUE_ALL, max_waiting=RUNS)
    for _ in range(RUNS):
        ledger.admit_request(ledger.spec("quick"), waiting)
    wait_until(lambda: len(project.witness("quick")) == 2 * RUNS, 120)
    signs = sorted(project.witness("quick"), key=lambda sign: sign.at)
    gaps = [
        1000 * (later.at - earlier.at)
        for earlier, later in pairwise(signs)
        if (earlier.event, later.event) == ("end", "start")
    ]
    return {"handover_p50_ms": median(gaps), "handover_p99_ms": quantiles(gaps, n=100)[98]}
