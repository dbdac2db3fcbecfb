"""What Celery's users know goes on working in a supervised run: retries, limits, exits, pools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.job.run import Run, RunState
from tests.acceptance.project import Project
from tests.conftest import emptied
from tests.waiting import status_of, wait_until

JOBS = """
defaults: {paused: true, lease_ttl: 10s, max_crashes: 1}
jobs:
  work: {task: team.work, every: 24h}
  fails: {task: team.fail, every: 24h, max_retries: 1, retry_backoff: 1s}
  recovers: {task: team.fail, every: 24h, kwargs: {attempts: 2}, max_retries: 3, retry_backoff: 1s}
  asks-again: {task: team.ask_again, every: 24h}
  auto: {task: team.auto, every: 24h}
  exits: {task: team.leave, every: 24h, args: [exit]}
  memory: {task: team.leave, every: 24h, args: [memory]}
  ignores: {task: team.leave, every: 24h, args: [ignore]}
  killed: {task: team.leave, every: 24h, args: [kill], lease_ttl: 60s}
  soft: {task: team.work, every: 24h, args: [30], soft_time_limit: 1s}
  hard: {task: team.work, every: 24h, args: [30], time_limit: 1s}
  custom: {task: team.custom, every: 24h}
  announced: {task: team.announced, every: 24h, args: [4.5], lease_ttl: 2s}
  announced-too: {task: team.announced_too, every: 24h, args: [4.5], lease_ttl: 2s}
  revoked: {task: team.work, every: 24h, args: [30]}
  misfit: {task: team.work, every: 24h, kwargs: {hours: 3}}
"""


@pytest.fixture(scope="module")
def team(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("team"), f"{server.url.rsplit('/', 1)[0]}/15")
    emptied(project.url)
    project.schedule(JOBS)
    try:
        project.beat()
        project.worker(processes=8)
        wait_until(lambda: len(project.ledger.scheduled()) == 16, 20)
        yield project
    finally:
        project.stop()


def triggered(team: Project, job: str, state: str, timeout: float = 20) -> Run:
    ledger = team.ledger
    return team.run_when(ledger.trigger(ledger.spec(job)).id, state, timeout)


def test_a_job_is_told_its_run(team: Project) -> None:
    run = triggered(team, "work", "succeeded")
    start, end = team.witness("work")[-2:]
    assert start.run == end.run == run.id
    assert (start.attempt, start.fencing_token) == (1, run.fencing_token)
    assert start.nominal_at == run.nominal_at.isoformat()


def test_a_failing_job_is_retried_with_backoff_and_then_failed(team: Project) -> None:
    run = triggered(team, "fails", "failed")
    assert [a.outcome for a in run.attempts] == ["failed", "failed"]
    assert run.reason == "ValueError: not yet"
    first, second = run.attempts
    assert second.started_at.timestamp() - first.started_at.timestamp() >= 1


def test_retries_count_up_for_the_task_and_leave_nothing_in_the_broker(team: Project) -> None:
    run = triggered(team, "recovers", "succeeded")
    signs = [sign for sign in team.starts("recovers") if sign.run == run.id]
    assert [(sign.attempt, sign.retries) for sign in signs] == [(1, 0), (2, 1), (3, 2)]
    client = team.ledger.client
    assert not client.exists("unacked")


@pytest.mark.parametrize("job", ["asks-again", "auto"])
def test_a_task_that_asks_for_its_own_retry_gets_it(team: Project, job: str) -> None:
    run = triggered(team, job, "succeeded")
    assert [a.outcome for a in run.attempts] == ["failed", "succeeded"]
    assert team.ledger.job(job).counters["retried"] == 1


def test_sys_exit_and_memory_error_are_failures_of_the_run_alone(
    team: Project,
) -> None:
    assert triggered(team, "exits", "failed").reason == "JobExited: the job called sys.exit(3)"
    assert "JobOutOfMemory" in str(triggered(team, "memory", "failed").reason)
    triggered(team, "work", "succeeded")


def test_ignore_is_a_success_with_a_note(team: Project) -> None:
    assert triggered(team, "ignores", "succeeded").reason == "ignored"


def test_a_soft_time_limit_times_the_run_out(team: Project) -> None:
    assert (
        triggered(team, "soft", "timed_out").reason
        == "SoftTimeLimitExceeded: SoftTimeLimitExceeded()"
    )


def test_a_hard_time_limit_times_the_run_out_and_frees_the_lock(team: Project) -> None:
    triggered(team, "hard", "timed_out")
    assert team.ledger.job("hard").state == "paused"


def test_a_killed_child_is_known_at_once(team: Project) -> None:
    run = triggered(team, "killed", "lost")
    assert "died" in str(run.reason)


def test_a_revoked_run_is_cancelled(team: Project) -> None:
    ledger = team.ledger
    run = ledger.trigger(ledger.spec("revoked"))
    team.run_when(run.id, "running")
    Celery(broker=team.url).control.revoke(run.id, terminate=True)
    assert team.run_when(run.id, "cancelled").state is RunState.CANCELLED


def test_a_task_with_a_base_class_of_its_own_is_guarded_too(team: Project) -> None:
    triggered(team, "custom", "succeeded")


@pytest.mark.parametrize("job", ["announced", "announced-too"])
def test_a_tasks_own_request_class_is_used_and_its_lease_lives_on(team: Project, job: str) -> None:
    run = triggered(team, job, "succeeded")
    assert (team.directory / f"accepted-{run.id}").exists()
    assert run.attempt == 1  # the work took longer than its lease lives without a heartbeat


def test_arguments_that_the_task_refuses_end_the_run_and_say_so(team: Project) -> None:
    assert "cannot be published" in str(triggered(team, "misfit", "cancelled").reason)


def test_messages_that_are_no_runs_pass_through(team: Project, tmp_path: Path) -> None:
    Celery(broker=team.url).send_task("team.unsupervised", [str(tmp_path / "proof")])
    wait_until(lambda: (tmp_path / "proof").exists())
    assert (tmp_path / "proof").read_text() == "None"


def test_redbeats_own_tools_read_the_entries(team: Project) -> None:
    from redbeat import RedBeatSchedulerEntry

    app = Celery(broker=team.url)
    app.conf.redbeat_redis_url = team.url
    app.conf.redbeat_redis_options = {}
    entry = RedBeatSchedulerEntry.from_key("redbeat:exits", app=app)
    assert (entry.task, entry.args) == ("team.leave", ["exit"])
    assert entry.schedule.run_every.total_seconds() == 24 * 3600
    assert entry.due_at is not None


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("solo", ["-P", "solo"], "needs the prefork pool"),
        ("spawn", ["--", "worker.pool_start_method=spawn"], "leave worker_pool_start_method"),
    ],
)
def test_a_pool_without_the_guarantees_is_refused(
    team: Project, name: str, options: list[str], said: str
) -> None:
    refused = team._start(name, "worker", *options)
    assert status_of(refused, 40) != 0
    assert said in team.log(name)


#: Ways to name a pool to Celery, and what becomes of a worker that code starts with it.
STARTED_BY_CODE = """
import os
from celery.concurrency.base import BasePool
from celery.contrib.testing.worker import start_worker
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from supervisor.worker.request import TellsChildren

class Green(BasePool):
    is_green = True

def said_of(start):
    try:
        return start()
    except SystemExit as refused:
        return str(refused)

def present():
    with start_worker(team.app, perform_ping_check=False) as worker:
        ledger = Ledger.open(Settings(redis_url=os.environ["TEAM_BROKER"]))
        while not (names := [w.name for w in ledger.presences.roll().workers]):
            pass
        return worker.hostname in names

said = [said_of(lambda: start_worker(team.app, perform_ping_check=False).__enter__())]
os.environ["SUPERVISOR_ANY_POOL"] = "1"
said += [said_of(lambda: str(team.app.Worker(pool=pool))) for pool in ("gevent", "eventlet", Green)]
del os.environ["SUPERVISOR_ANY_POOL"]
team.app.Worker(pool="prefork")
said.append(TellsChildren in team.app.steps["worker"])
os.environ["SUPERVISOR_ANY_POOL"] = "1"
said.append(said_of(present))
print(json.dumps(said))
"""


def test_a_worker_that_code_starts_is_prepared_or_refused(project: Project) -> None:
    solo, *green, is_prepared, is_present = project.code(STARTED_BY_CODE)
    assert "needs the prefork pool" in solo
    assert all("cannot have a pool of greenlets" in said for said in green)
    assert (is_prepared, is_present) == (True, True)
