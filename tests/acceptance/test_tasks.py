"""What Celery's users know goes on working beside the guard: classes, messages, tools, pools."""

from __future__ import annotations

from pathlib import Path

import pytest
from celery import Celery

from supervisor.job.run import Run
from supervisor.web.queues_page import queue_status
from tests.acceptance.project import Project
from tests.waiting import status_of, wait_until
from tools.matrix import since

JOBS = """
defaults: {paused: true, lease_ttl: 10s, max_crashes: 1}
jobs:
  work: {task: team.work, every: 24h}
  exits: {task: team.leave, every: 24h, args: [exit]}
  custom: {task: team.custom, every: 24h}
  announced: {task: team.announced, every: 24h, args: [5], lease_ttl: 3s}
  announced-too: {task: team.announced_too, every: 24h, args: [5], lease_ttl: 3s}
  patient: {task: team.work, every: 24h, queue: ranked, priority: 9}
  urgent: {task: team.work, every: 24h, queue: ranked, priority: 3}
  plain: {task: team.work, every: 24h, queue: ranked}
  violation: {task: team.work, every: 24h, kwargs: {hours: 3}}
"""


def triggered(team: Project, job: str, state: str, timeout: float = 20) -> Run:
    return team.run_when(team.trigger(job).id, state, timeout)


def test_a_job_is_told_its_run(team: Project) -> None:
    run = triggered(team, "work", "succeeded")
    start, end = team.witness("work")[-2:]
    assert start.run == end.run == run.id
    assert (start.attempt, start.fencing_token) == (1, run.fencing_token)
    assert start.nominal_at == run.nominal_at.isoformat()


def test_a_task_with_a_base_class_of_its_own_is_guarded_too(team: Project) -> None:
    triggered(team, "custom", "succeeded")


@pytest.mark.parametrize("job", ["announced", "announced-too"])
def test_a_tasks_own_request_class_is_used_and_the_lease_renewed(team: Project, job: str) -> None:
    run = triggered(team, job, "succeeded")
    assert (team.directory / f"accepted-{run.id}").exists()
    assert run.attempt == 1  # the work took longer than its lease lives without a heartbeat


def test_a_worker_on_redis_takes_messages_of_lower_numbers_first(team: Project) -> None:
    jobs, runs = ["patient", "urgent", "plain"], []
    for job in jobs:  # beat sends each before the next is asked for
        runs.append(team.trigger(job))
        wait_until(lambda: team.ledger.run(runs[-1].id).sends == 1)
    [queue] = [found for found in queue_status(team.ledger, None).queues if found.name == "ranked"]
    assert queue.length == 3
    team.worker(queues="ranked", processes=1)
    for run in runs:
        team.run_when(run.id, "succeeded")
    starts = {job: team.starts(job)[-1].at for job in jobs}
    assert sorted(jobs, key=lambda job: starts[job]) == ["plain", "urgent", "patient"]


def test_a_run_with_arguments_that_its_task_refuses_fails(team: Project) -> None:
    assert "cannot be published" in str(triggered(team, "violation", "failed").reason)


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


@since("celery", "5.7", "all children are forked")
def test_a_worker_whose_children_are_not_forked_is_refused(team: Project) -> None:
    refused = team._start("spawn", "worker", "--", "worker.pool_start_method=spawn")
    assert status_of(refused, 40) != 0
    assert "leave worker_pool_start_method" in team.log("spawn")


#: Workers as code starts them: one with a pool that Celery does not know.
STARTED_BY_CODE = """
import os, time
from celery.concurrency.base import BasePool, apply_target
from celery.contrib.testing.worker import start_worker
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from supervisor.worker.startup import TellsChildren

class Odd(BasePool):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.on_apply = apply_target

ledger = Ledger.open(Settings(redis_url=os.environ["TEAM_BROKER"]))

def run_by(pool, name):
    with start_worker(team.app, pool=pool, perform_ping_check=False):
        while name not in [worker.pool for worker in ledger.presences.processes().workers]:
            time.sleep(0.05)
        run = team.import_feed.delay(name)
        team.unsupervised.delay(f"proof of {name}")
        while not os.path.exists(f"proof of {name}"):
            time.sleep(0.05)
        return ledger.run(run.id).state

team.app.Worker(pool="prefork")
is_prepared = TellsChildren in team.app.steps["worker"]
print(json.dumps([is_prepared, run_by("solo", "solo"), run_by(Odd, "__main__:Odd")]))
"""


def test_a_worker_that_code_starts_is_prepared(project: Project) -> None:
    assert project.code(STARTED_BY_CODE) == [True, "succeeded", "queued"]
