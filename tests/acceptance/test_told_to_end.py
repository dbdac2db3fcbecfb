"""Runs that do not end when they are told to, or are told before they can hear it."""

from __future__ import annotations

from celery import Celery

from tests.acceptance.project import Project, needs_children
from tests.waiting import wait_until

JOBS = """
defaults: {paused: true, lease_ttl: 3s, overlap: queue_one, stop_grace: 2s}
jobs:
  cling: {task: team.cling, every: 24h}
  connects: {task: team.connects, every: 24h}
"""

CONNECTS = """
class Connecting(Task):
    abstract = True
    def before_start(self, task_id, args, kwargs):
        time.sleep(60)

@app.task(bind=True, base=Connecting)
def connects(self):
    sign("start", self)
"""


@needs_children("a run that clings cannot be killed")
def test_what_celery_revokes_is_ended_before_the_next_run_begins(project: Project) -> None:
    project.deploy(JOBS)
    ledger = project.ledger
    spec = wait_until(lambda: ledger.scheduled().get("cling"), 20)
    first = ledger.trigger(spec)
    wait_until(lambda: project.starts("cling"))
    second = ledger.trigger(spec)
    with Celery(broker=project.url) as app:
        app.control.revoke(first.id, terminate=True)
    # Celery's signal is not heard; ours is.
    wait_until(lambda: project.starts("cling")[1:], 20)
    signs = [(sign.run, sign.event) for sign in project.witness("cling") if sign.event != "told"]
    assert signs == [(first.id, "start"), (first.id, "end"), (second.id, "start")]
    assert project.run_when(first.id, "cancelled").attempt == 1


@needs_children("what is not yet at its own code cannot be killed")
def test_a_run_is_cancelled_that_is_not_yet_at_its_own_code(project: Project) -> None:
    project.extend(CONNECTS)
    project.deploy(JOBS)
    ledger = project.ledger
    run = ledger.trigger(wait_until(lambda: ledger.scheduled().get("connects"), 20))
    project.run_when(run.id, "running")
    ledger.cancel(run.id, "by hand")
    assert project.run_when(run.id, "cancelled").reason == "by hand"
    assert project.starts("connects") == []
