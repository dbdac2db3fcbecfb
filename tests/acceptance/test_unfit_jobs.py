"""Jobs that their app cannot run: named before they run, and of no harm to the other jobs."""

from __future__ import annotations

import json

import pytest

from tests.acceptance.project import Project
from tests.waiting import wait_until

#: The app decides by arguments where messages go, and makes no queue that it lacks.
ROUTES = """
from kombu import Queue

task_create_missing_queues = False
task_queues = [Queue("celery"), Queue("acme"), Queue("serial.in-turn")]

def by_tenant(name, args, kwargs, options, task=None, **_):
    if name == "team.tenanted":
        assert task.name == name
        return {"queue": kwargs["tenant"]}

task_routes = (by_tenant,)
"""

SETTINGS = """
@app.task(bind=True)
def tenanted(self, tenant="nobody"):
    sign("start", self)

@app.task(ignore_result=True)
async def awaited():
    say("never")

@app.task(ignore_result=True)
def consumed():
    say("never")
    yield

class Keeping(app.Task):
    Strategy = "team:keep"

def keep(*task, **options):
    from celery.worker.strategy import default
    return default(*task, **options)

@app.task(base=Keeping, ignore_result=True)
def kept():
    say("never")

@app.task(ignore_result=True)
def handed_on():
    return (say("never") for _ in range(3))
"""

FIT = """
defaults: {lease_ttl: 4s}
jobs:
  routed: {task: team.tenanted, every: 24h, kwargs: {tenant: acme}}
  in-turn: {task: team.work, every: 24h, serial: true}
  returns-a-generator: {task: team.handed_on, every: 24h}
"""

UNFIT = """
defaults: {lease_ttl: 4s}
jobs:
  unrouted: {task: team.tenanted, every: 24h}
  elsewhere: {task: team.tenanted, every: 24h, kwargs: {tenant: globex}}
  mistyped: {task: team.work, every: 24h, queue: celary}
  a-coroutine: {task: team.awaited, every: 24h}
  a-generator: {task: team.consumed, every: 24h}
"""

#: The task's own code takes its messages in the worker, as that of celery-batches does.
KEPT = "jobs: {keeps: {task: team.kept, every: 24h}}"

#: With the line in the file, what `check` says, and how a run ends.
REFUSED = {
    "unrouted": (4, "the app's task_routes fail: KeyError('tenant')"),
    "elsewhere": (5, "QueueNotFound("),
    "keeps": (1, "the task 'team.kept' has a Strategy of its own"),
    "mistyped": (6, "the app has no queue 'celary', and task_create_missing_queues is off"),
    "a-coroutine": (7, "the task 'team.awaited' is `async def`, which Celery never awaits"),
    "a-generator": (8, "the task 'team.consumed' is a generator, which Celery never runs"),
}

ENDS = {
    "unrouted": "cannot be published: the app's task_routes fail: KeyError('tenant')",
    "elsewhere": "cannot be published: ",
    "mistyped": "cannot be published: the app has no queue 'celary'",
    "a-coroutine": "UnusableReturn: the task returned a coroutine, whose code nothing runs",
    "a-generator": "UnusableReturn: the task returned a generator, whose code nothing runs",
    "returns-a-generator": "UnusableReturn: the task returned a generator, whose code",
}


@pytest.fixture
def team(project: Project) -> Project:
    project.settings(ROUTES)
    project.extend(SETTINGS)
    project.schedule(FIT, "fit.yaml")
    project.schedule(UNFIT, "unfit.yaml")
    project.schedule(KEPT, "kept.yaml")
    return project


def test_jobs_that_the_app_cannot_run_are_named_and_harm_no_others(team: Project) -> None:
    checked = team.supervisor("check", "--json", "schedules")
    assert checked.returncode == 1
    found = {each["job"]: (each["line"], each["what"]) for each in json.loads(checked.stdout)}
    assert found.keys() == REFUSED.keys()
    for job, (line, what) in REFUSED.items():
        assert found[job][0] == line
        assert what in found[job][1]
    team.beat()
    wait_until(lambda: team.ledger.beat().problems, 20)
    problems = "".join(team.ledger.beat().problems)
    assert "job 'keeps': the task 'team.kept' has a Strategy of its own" in problems
    assert not team.ledger.scheduled(), "a set of files is loaded as a whole"
    (team.schedules / "kept.yaml").unlink()
    team.wait_for_jobs()
    team.worker(queues="celery,acme,serial.in-turn")
    for job in ("routed", "in-turn"):
        team.run_when(team.trigger(job).id, "succeeded")
    for job, reason in ENDS.items():
        run = team.run_when(team.trigger(job).id, "failed")
        assert reason in str(run.reason)
        assert team.starts(job) == []
    queues = team.supervisor("queues")
    assert "celary" not in queues.stdout
    assert "-Q celery,acme " in queues.stdout, "the routes are the app's"
    rendered = team.supervisor("render", "compose", "--image", "team:1", "--output", "rendered")
    assert rendered.returncode == 0, rendered.stderr
    assert "celery,acme" in (team.directory / "rendered" / "compose.yaml").read_text()
    assert all(f"note: job {job!r}: " in queues.stderr for job in ENDS if job in REFUSED)
    assert "never" not in team.logs()


MOVED = """
defaults: {lease_ttl: 4s}
jobs:
  moved: {task: team.work, every: 24h, queue: %s}
"""


def test_a_run_in_a_queue_that_its_job_has_left_is_named(project: Project) -> None:
    project.schedule(MOVED % "old")
    project.beat()
    project.wait_for_jobs()
    run = project.trigger("moved")
    project.schedule(MOVED % "new")
    project.worker(queues="new")
    wait_until(lambda: project.ledger.spec("moved").queue == "new", 20)
    named = f"WRONG  no worker consumes the queue old, where {run.id} waits"
    wait_until(lambda: named in project.supervisor("doctor").stdout, 20)
    assert project.supervisor("cancel", run.id).returncode == 0
    assert "the queue old" not in project.supervisor("doctor").stdout
