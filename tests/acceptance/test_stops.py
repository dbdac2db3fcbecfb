"""A worker that is told to stop: its runs end there, or come again elsewhere, once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from signal import SIGINT, SIGQUIT, SIGTERM, Signals

import pytest

from supervisor.deploy.embedded import EmbeddedServer
from tests.acceptance.crew import Crew, Process, crew_of, database

JOBS = """
defaults: {paused: true, lease_ttl: 1s}
jobs:
  held: {task: team.hold, every: 24h}
  hang: {task: team.hang, every: 24h}
  soft-held: {task: team.hold, every: 24h, queue: soft}
  soft-hang: {task: team.hang, every: 24h, queue: soft}
"""


@pytest.fixture(scope="module")
def shared(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    url = database(server.url, 14)
    settings = "app.conf.worker_soft_shutdown_timeout = float(os.environ.get('SOFT', '0'))\n"
    with crew_of(tmp_path_factory.mktemp("stops"), url, JOBS, settings=settings) as crew:
        yield crew


@pytest.fixture(scope="module", autouse=True)
def soft(shared: Crew) -> Process:
    """A worker as in a container: SIGTERM is remapped to SIGQUIT, which waits for four seconds."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SOFT", "4")
        patched.setenv("REMAP_SIGTERM", "SIGQUIT")
        return shared.hire_for("soft")


@pytest.fixture
def crew(shared: Crew) -> Crew:
    return shared.staff()


def test_a_warm_shutdown_lets_a_run_end_however_often_it_is_asked_for(crew: Crew) -> None:
    run = crew.trigger("held")
    crew.start_of(run)
    crew.tell(crew.worker_of(run), SIGTERM, SIGTERM)
    crew.project.let_end(run.id)
    crew.project.run_when(run.id, "succeeded")
    assert crew.outcomes(run) == ["succeeded"]
    assert len(crew.starts(run)) == len(crew.ends(run)) == 1
    assert crew.lock_is_free("held")


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param((SIGQUIT,), id="cold"),
        pytest.param((SIGTERM, SIGQUIT), id="cold-after-warm"),
        pytest.param((SIGINT, SIGINT), id="ctrl-c-twice"),
    ],
)
def test_a_run_that_a_cold_shutdown_ended_comes_again_once(
    crew: Crew, numbers: tuple[Signals, ...]
) -> None:
    run = crew.trigger("hang")
    crew.start_of(run)
    crew.tell(crew.worker_of(run), *numbers)
    lost, again = crew.project.run_when(run.id, "succeeded").attempts
    assert (lost.outcome, lost.reason) == ("lost", "the worker's process was told to stop")
    assert again.outcome == "succeeded"
    assert len(crew.starts(run)) == 2
    assert len(crew.ends(run)) == 1
    assert crew.lock_is_free("hang")


def test_a_run_comes_again_once_when_all_of_its_worker_is_told_to_stop(
    crew: Crew,
) -> None:
    """As systemd does, unless it is told otherwise."""
    run = crew.trigger("hang")
    child = crew.start_of(run).pid
    crew.tell(crew.worker_of(run), SIGTERM)
    os.kill(child, SIGTERM)
    crew.project.run_when(run.id, "succeeded")
    assert crew.outcomes(run) == ["lost", "succeeded"]
    assert len(crew.starts(run)) == 2


def test_what_a_soft_shutdown_does_not_let_end_comes_again_once(soft: Process, crew: Crew) -> None:
    hangs, works = crew.trigger("soft-hang"), crew.trigger("soft-held")
    crew.start_of(hangs)
    crew.start_of(works)
    soft.send_signal(SIGTERM)
    crew.project.let_end(works.id)
    crew.hire_for("soft")
    crew.project.run_when(works.id, "succeeded")
    assert crew.outcomes(works) == ["succeeded"]
    assert crew.project.ledger.run(hangs.id).state == "running"
    crew.project.run_when(hangs.id, "succeeded")
    assert crew.outcomes(hangs) == ["lost", "succeeded"]
    assert len(crew.starts(hangs)) == 2
