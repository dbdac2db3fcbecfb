"""A worker that is stopped: its runs end there, or come again elsewhere, once."""

from __future__ import annotations

import os
from signal import SIGINT, SIGQUIT, SIGTERM, Signals

import pytest

from tests.acceptance.project import Process, needs_children
from tests.acceptance.workers import Workers
from tests.waiting import slowness

SETTINGS = "app.conf.worker_soft_shutdown_timeout = float(os.environ.get('SOFT', '0'))\n"

JOBS = """
defaults: {paused: true, lease_ttl: 3s}
jobs:
  held: {task: team.hold, every: 24h}
  hang: {task: team.hang, every: 24h}
  soft-held: {task: team.hold, every: 24h, queue: soft}
  soft-hang: {task: team.hang, every: 24h, queue: soft}
"""


@pytest.fixture(scope="module", autouse=True)
def soft(shared_workers: Workers) -> Process:
    """A worker as in a container: SIGTERM is remapped to SIGQUIT, which waits for eight seconds.

    Longer on a busy machine: a run that is let go has to end meanwhile.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SOFT", str(max(8, 2 * slowness())))
        patched.setenv("REMAP_SIGTERM", "SIGQUIT")
        return shared_workers.hire_for("soft")


def test_a_warm_shutdown_lets_a_run_end(workers: Workers) -> None:
    run = workers.trigger("held")
    workers.start_of(run)
    workers.stop(workers.worker_of(run), SIGTERM, SIGTERM)
    workers.project.let_end(run.id)
    workers.project.run_when(run.id, "succeeded")
    assert workers.outcomes(run) == ["succeeded"]
    assert len(workers.starts(run)) == len(workers.ends(run)) == 1
    assert workers.lock_is_free("held")


@needs_children("greenlets are ended, see test_pools, and threads waited for")
@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param((SIGQUIT,), id="cold"),
        pytest.param((SIGTERM, SIGQUIT), id="cold-after-warm"),
        pytest.param((SIGINT, SIGINT), id="ctrl-c-twice"),
    ],
)
def test_a_run_that_a_cold_shutdown_ended_comes_again_once(
    workers: Workers, numbers: tuple[Signals, ...]
) -> None:
    run = workers.trigger("hang")
    workers.start_of(run)
    workers.stop(workers.worker_of(run), *numbers)
    lost, again = workers.project.run_when(run.id, "succeeded").attempts
    assert (lost.outcome, lost.reason) == ("lost", "the worker's process was asked to stop")
    assert again.outcome == "succeeded"
    assert len(workers.starts(run)) == 2
    assert len(workers.ends(run)) == 1
    assert workers.lock_is_free("hang")


@needs_children("one is stopped beside its worker")
def test_a_run_comes_again_when_all_processes_of_its_worker_are_stopped(workers: Workers) -> None:
    """As systemd does, unless it is told otherwise."""
    run = workers.trigger("hang")
    child = workers.start_of(run).pid
    workers.stop(workers.worker_of(run), SIGTERM)
    os.kill(child, SIGTERM)
    workers.project.run_when(run.id, "succeeded")
    assert workers.outcomes(run) == ["lost", "succeeded"]
    assert len(workers.starts(run)) == 2


@needs_children("what runs is not cut short")
def test_what_a_soft_shutdown_cuts_short_comes_again_once(soft: Process, workers: Workers) -> None:
    hangs, works = workers.trigger("soft-hang"), workers.trigger("soft-held")
    workers.start_of(hangs)
    workers.start_of(works)
    soft.send_signal(SIGTERM)
    workers.project.let_end(works.id)
    workers.project.run_when(works.id, "succeeded")
    assert workers.project.ledger.run(hangs.id).state == "running"
    assert workers.outcomes(works) == ["succeeded"]
    workers.hire_for("soft")
    workers.project.run_when(hangs.id, "succeeded")
    assert workers.outcomes(hangs) == ["lost", "succeeded"]
    assert len(workers.starts(hangs)) == 2
