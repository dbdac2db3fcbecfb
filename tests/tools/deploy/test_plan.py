"""Which processes a deployment has, and how long each may take to stop."""

from __future__ import annotations

from datetime import timedelta

from click.testing import CliRunner

from supervisor.cli import main
from supervisor.deploy.plan import LONGEST_RUN, WORKER_MARGIN, ProcessPlan, ProcessRole
from tests.tools.deploy.jobs import APP, examples, job, plan_of


def stops(plan: ProcessPlan) -> dict[str, timedelta]:
    return {worker.name: worker.stop - WORKER_MARGIN for worker in plan.workers}


def test_the_examples_need_two_beats_and_two_workers() -> None:
    plan = plan_of(*examples())
    assert plan.beat.replicas == 2
    assert [worker.name for worker in plan.workers] == ["default", "serial.checksum-docs"]
    assert {worker.role for worker in plan.workers} == {ProcessRole.WORKER}


def test_a_worker_may_take_as_long_to_stop_as_its_longest_job_may_run() -> None:
    plan = plan_of(
        job("quick", time_limit="1m"),
        job("slow", time_limit="2h"),
        job("serial", serial="one", time_limit="5m"),
    )
    assert stops(plan) == {"default": timedelta(hours=2), "serial.one": timedelta(minutes=5)}


def test_a_job_without_a_limit_is_guessed_and_named() -> None:
    worker = plan_of(job("endless"), job("quick", time_limit="1m")).workers[0]
    assert worker.stop == LONGEST_RUN + WORKER_MARGIN
    assert worker.unlimited == ("endless",)
    guessed = ProcessPlan.of([job("endless")], APP, longest_run=timedelta(hours=1)).workers[0]
    assert guessed.stop == timedelta(hours=1) + WORKER_MARGIN


def test_a_guess_never_shortens_what_another_job_is_known_to_need() -> None:
    assert stops(plan_of(job("endless"), job("slow", time_limit="2h"))) == {
        "default": timedelta(hours=2)
    }


def test_each_worker_waits_for_the_steps_that_come_to_it() -> None:
    steps = [
        {"task": "fetch", "priority": 1, "queue": "bulk", "time_limit": "3h"},
        {"task": "store", "priority": 0},
    ]
    plan = plan_of(job("load", steps=steps, serial=True, time_limit="10m"))
    assert stops(plan) == {"default": timedelta(hours=3), "serial.load": timedelta(minutes=10)}


def test_what_asks_for_health_is_a_command_that_there_is() -> None:
    plan = plan_of(*examples())
    for process in (plan.beat, *plan.workers, plan.serve):
        result = CliRunner().invoke(main, [*process.health[1:3], "--help"])
        assert result.exit_code == 0, result.output
        assert all(word in result.output for word in process.health if word.startswith("--"))


def test_seconds_are_rounded_up() -> None:
    worker = plan_of(job("odd", time_limit="1500ms")).workers[0]
    assert worker.stop_seconds == 2 + WORKER_MARGIN.total_seconds()
