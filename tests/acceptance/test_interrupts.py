"""A run at work is ended from outside: cancelled, replaced, or because its lease is another's."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from supervisor.cli import main
from supervisor.deploy.embedded import EmbeddedServer
from supervisor.job.run import Run, RunState
from supervisor.ledger.attempt import Cancellation
from supervisor.schedule.ticks import Tick
from tests.acceptance.project import Project, Sign, overlapping
from tests.processes import family_of, freeze, is_alive, parent_of, thaw
from tests.waiting import wait_until

PROCESSES = 6

JOBS = """
defaults: {paused: true, lease_ttl: 4s, stop_grace: 2s}
jobs:
  work: {task: team.work, every: 24h, args: [300]}
  stubborn: {task: team.stubborn, every: 24h, args: [300]}
  replaced: {task: team.work, every: 24h, args: [300], overlap: replace}
  # A third of the lease is for its own end, on a machine that stands still now and then.
  aborts: {task: team.work, every: 24h, args: [300], on_crash: fail, lease_ttl: 6s}
  continues: {task: team.hold, every: 24h, on_crash: fail, on_lease_lost: continue}
"""


def running(team: Project, job: str) -> Run:
    """A new run of the job, once its code runs."""
    run = team.trigger(job)
    wait_until(lambda: signs(team, run.id, "start"), 20)
    return run


def signs(team: Project, run_id: str, event: str) -> list[Sign]:
    return [sign for sign in team.witness() if (sign.run, sign.event) == (run_id, event)]


def test_a_cancelled_run_cleans_up_and_ends(team: Project) -> None:
    run = running(team, "work")
    assert team.ledger.cancel(run.id, "not needed") is Cancellation.STOPPING
    done = team.run_when(run.id, "cancelled")
    assert done.reason == "not needed"
    assert signs(team, run.id, "end")  # written by its `finally`
    assert [attempt.outcome for attempt in done.attempts] == ["cancelled"]


def test_a_run_that_does_not_end_is_killed_after_its_grace(team: Project) -> None:
    run = running(team, "stubborn")
    [sign] = signs(team, run.id, "start")
    team.ledger.cancel(run.id, "not needed")
    team.run_when(run.id, "cancelled", 10)
    assert not is_alive(sign.pid)
    assert not signs(team, run.id, "end")


def test_a_replaced_run_ends_before_the_new_one_starts(team: Project) -> None:
    run = running(team, "replaced")
    newer = running(team, "replaced")
    assert team.ledger.run(run.id).state is RunState.REPLACED
    [ended], [started] = signs(team, run.id, "end"), signs(team, newer.id, "start")
    assert ended.at < started.at
    team.ledger.cancel(newer.id, "done with it")
    team.run_when(newer.id, "cancelled")


@pytest.mark.parametrize("job", ["aborts", "continues"])
def test_an_overlap_made_on_purpose_is_counted_and_named(team: Project, job: str) -> None:
    """A worker is stopped past its lease, another run starts, the worker goes on."""
    ledger = team.ledger
    run = running(team, job)
    team.worker(processes=1)
    frozen = family_of(parent_of(signs(team, run.id, "start")[0].pid))
    freeze(frozen)
    wait_until(lambda: ledger.run(run.id).state is RunState.LOST, 15)
    ledger.resume(job)
    successor = Tick(ledger.spec(job), ledger.now())
    ledger.admit([successor])
    ledger.pause(job)
    wait_until(lambda: signs(team, successor.run_id, "start"), 15)
    thaw(frozen)
    wait_until(lambda: counted(team, job), 10)
    team.let_end(run.id)
    wait_until(lambda: signs(team, run.id, "end"), 20)

    assert (run.id, successor.run_id) in overlapping(team.witness(job))
    counters = wait_until(lambda: counted(team, job), 10)
    assert counters["overlaps"] == 1
    assert ledger.run(run.id).overlapped_with == successor.run_id
    assert ledger.run(successor.run_id).overlapped_with == run.id
    listed = CliRunner().invoke(main, ["--redis-url", team.url, "runs", job])
    assert f"overlapped with {successor.run_id}" in listed.output
    assert f"overlapped with {run.id}" in listed.output
    logged = [line for line in team.logs().splitlines() if '"runs overlapped"' in line]
    assert any(run.id in line and successor.run_id in line for line in logged)
    [started], [ended] = signs(team, run.id, "start"), signs(team, run.id, "end")
    if job == "aborts":
        assert ended.at - started.at < 290  # LeaseLost was raised in it
    team.ledger.cancel(successor.run_id, "done with it")
    wait_until(lambda: not ledger.run(successor.run_id).state.is_open, 15)


def counted(team: Project, job: str) -> dict[str, int] | None:
    """The counters, once the late end was reported."""
    counters = team.ledger.job(job).counters
    return dict(counters) if counters.get("overlap_ms", 0) > 0 else None


def test_what_redis_forgot_goes_on_and_nothing_starts_beside_it(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "valkey") as server:
        project = Project(tmp_path / "team", server.url)
        ledger = project.ledger
        ledger.acknowledge_server()
        project.schedule("jobs: {long: {task: team.hold, every: 1s, lease_ttl: 3s}}")
        try:
            project.beat()
            project.worker(queues="celery,other")
            call = project.code("""
options = {"link": team.hear.s(), "priority": 3, "queue": "other", "time_limit": 77}
call = team.remember.apply_async(("well",), {"twice": 2}, **options)
print(json.dumps(call.id))""")
            wait_until(lambda: project.starts(call.partition("@")[0]), 20)
            first = wait_until(lambda: project.starts("long"), 20)[0]
            lock = ledger.keys.lock("long")
            wait_until(lambda: ledger.client.pttl(lock) < 2_700)
            wait_until(lambda: ledger.client.pttl(lock) > 2_800)  # both runs are being renewed
            lose_its_data(server, tmp_path / "valkey")
            for run in (call, first.run):  # as its worker knows it
                wait_until(lambda run=run: ledger.client.exists(ledger.keys.run(run)), 30)  # type: ignore[misc]
                project.let_end(run)
            wait_until(lambda: "heard of the end" in project.logs(), 30)
            project.run_when(call, RunState.SUCCEEDED)
            wait_until(lambda: len(project.starts("long")) > 1, 40)
        finally:
            project.stop()
        assert overlapping(project.witness("long")) == []
        assert [s.event for s in project.witness("long") if s.run == first.run] == ["start", "end"]
        assert ledger.run(first.run).state is RunState.SUCCEEDED
        assert "overlaps" not in ledger.job("long").counters
        # The call is tried again as it was called.
        assert "remembers well 2 [77, None]" in project.logs()
        assert (ledger.run(call).queue, ledger.run(call).attempt) == ("other", 2)


def lose_its_data(server: EmbeddedServer, directory: Path) -> None:
    server.stop()
    for path in directory.rglob("*"):
        if path.is_file() and ("aof" in path.name or path.suffix == ".rdb"):
            path.unlink()
    server.start()


def test_the_handlers_leave_code_alone_that_is_no_run(team: Project) -> None:
    """A signal that comes too late finds no run at work in its child."""
    run = running(team, "work")
    [sign] = signs(team, run.id, "start")
    team.ledger.cancel(run.id, "not needed")
    team.run_when(run.id, "cancelled")
    for number in (signal.SIGURG, signal.SIGUSR2):
        os.kill(sign.pid, number)
    assert is_alive(sign.pid)
