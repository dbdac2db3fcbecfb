"""A grant that comes late: the run may have been given to another worker meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer

from supervisor.app import supervise
from supervisor.guard.delivery import HEADER, LEDGER
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.sending.messages import assignments, message_header
from supervisor.testing import lease_runs_out
from supervisor.times import clock
from supervisor.worker.task import put_under_guard
from tests.jobs import admitted, begin, run_id
from tests.proxy import Proxy
from tests.waiting import scaled, wait_until

#: What asks for the lease, and what asks for a step's params between that and its body.
BEGIN = f'"worker":"{socket.gethostname()}:'.encode()
PARAMS = b"\r\nHGETALL\r\n"

STEPS = [{"task": "proj.nightly", "priority": 1}, {"task": "proj.last", "priority": 0}]

Bodies = list[Any]


@pytest.fixture
def bodies() -> Bodies:
    """What the bodies of the task were called with."""
    return []


@pytest.fixture
def deliver(redis_url: str, way: Proxy, bodies: Bodies, ledger: Ledger) -> Callable[[str], Thread]:
    """Has a run's delivery worked off beside the test, by a worker behind the link."""
    app = Celery("far", set_as_current=False, broker=redis_url)
    supervise(app, redis_url=way.url)

    @app.task(name="proj.nightly", shared=False)
    def nightly(tree: str = "") -> None:
        bodies.append(tree)

    put_under_guard(app.tasks["proj.nightly"])
    tracer = build_tracer("proj.nightly", app.tasks["proj.nightly"], app=app)

    def deliver(run: str) -> Thread:
        assignment = assignments(ledger, [ledger.run(run)])[run]
        header = message_header(assignment, "celery")
        headers = {HEADER: {**header, LEDGER: ["supervisor", "proj"]}}
        request = {"id": run, "headers": headers, "retries": 0, **headers}
        thread = Thread(target=tracer, args=(run, [], {}, request), daemon=True)
        thread.start()
        return thread

    return deliver


def trust_ends(since: float, spec: JobSpec) -> None:
    wait_until(lambda: clock() - since > spec.lease_ttl.total_seconds())


@pytest.mark.parametrize("stalls_after", [BEGIN, PARAMS])
@pytest.mark.parametrize("is_given_to_another", [True, False])
def test_a_body_starts_with_a_grant_that_is_trusted_or_never(
    ledger: Ledger,
    way: Proxy,
    deliver: Callable[[str], Thread],
    bodies: Bodies,
    stalls_after: bytes,
    is_given_to_another: bool,
) -> None:
    spec = admitted(ledger, 0, task=None, steps=STEPS, params={"tree": "docs"}, lease_ttl="1s")
    step = f"{run_id(spec, 0)}~nightly"
    ledger.begin("none", "token", "worker")  # the server knows the function
    way.freeze_after, requested_at = stalls_after, clock()
    far = deliver(step)
    wait_until(lambda: not way.carries.is_set())
    wait_until(lambda: ledger.run(step).state is RunState.RUNNING)
    if is_given_to_another:
        lease_runs_out(ledger, step)
        wait_until(ledger.rescue)
        begin(ledger, step, "another")
        ledger.finish(step, "another", RunState.SUCCEEDED)
    trust_ends(requested_at, spec)
    way.thaw()
    far.join(scaled(10))
    assert bodies == ([] if is_given_to_another else ["docs"])
