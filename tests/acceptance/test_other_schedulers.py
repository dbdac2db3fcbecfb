"""Beats with other schedulers than ours, in a supervised app and beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta

import pytest
from celery import Celery
from celery.schedules import schedule
from redbeat import RedBeatSchedulerEntry

from tests.acceptance.project import Process, Project, overlapping
from tests.queues import take_all
from tests.waiting import scaled, status_of, wait_until

JOBS = "jobs:\n  same: {task: team.work, every: 1s}\n"

REDBEATS = "redbeat.RedBeatScheduler"

STOCK = """\
from celery import Celery

app = Celery("stock", broker={url!r})
app.conf.redbeat_redis_url = {url!r}
app.conf.redbeat_lock_timeout = {lock}  # a beat that is late to extend it ends
app.conf.beat_schedule = {{
    "own": {{"task": "stock.own", "schedule": 1.0, "options": {{"queue": "stock"}}}}
}}
"""


def stock_beat(project: Project) -> Process:
    """RedBeat's own scheduler, in an app that is not supervised."""
    (project.directory / "stock.py").write_text(STOCK.format(url=project.url, lock=scaled(30)))
    words = ("-m", "celery", "-A", "stock", "beat", "-S", REDBEATS, "--max-interval", "1")
    beat = subprocess.Popen(
        [sys.executable, *words],
        cwd=project.directory,
        env={**os.environ, "PYTHONPATH": str(project.directory)},
    )
    project.processes.append(beat)
    return beat


def test_a_stock_beat_emits_no_job_of_a_ledger_and_ours_does_again(project: Project) -> None:
    project.schedule(JOBS)
    beat, client = project.beat(), project.ledger.client
    wait_until(lambda: project.ledger.history("same", 1), 60)
    beat.terminate()
    status_of(beat, 60)
    take_all(client)
    stock = stock_beat(project)
    wait_until(lambda: client.llen("stock") > 3 or stock.poll() is not None, 60)
    assert stock.poll() is None
    assert client.llen("celery") == 0

    project.beat()
    [told] = wait_until(lambda: project.events("beat", "lock held by RedBeat's own scheduler"), 60)
    assert told["lock"] == "redbeat::lock"
    stock.terminate()
    status_of(stock, 60)
    wait_until(lambda: client.llen("celery") > 0, 60)
    assert "same@" in client.lrange("celery", 0, 0)[0]


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ("", ("-S", REDBEATS)),
        ("", ("-S", "supervisor")),
        (f"beat_scheduler = {REDBEATS!r}\n", ()),
        ("from redbeat.schedulers import RedBeatScheduler as beat_scheduler\n", ()),
    ],
    ids=["option", "alias", "setting", "class"],
)
def test_where_an_app_asks_for_redbeat_it_has_ours(
    project: Project, settings: str, options: tuple[str, ...]
) -> None:
    project.settings(settings)
    project.schedule(JOBS)
    project.beat(*options)
    wait_until(lambda: project.ledger.history("same", 1), 60)
    assert "setting overridden" not in project.logs()


OWN = """\
from redbeat.schedulers import RedBeatScheduler

class OwnScheduler(RedBeatScheduler):
    pass
"""


def test_a_scheduler_made_of_redbeats_is_refused(project: Project) -> None:
    (project.directory / "schedulers.py").write_text(OWN)
    beat = project.beat("-S", "schedulers.OwnScheduler")
    assert status_of(beat, 60) == 1
    log = project.log("beat")
    assert "schedulers.OwnScheduler, which starts no job: import what it emits" in log


DATABASE = "django_celery_beat.schedulers:DatabaseScheduler"


def test_a_scheduler_that_starts_no_job_is_reported_until_a_beat_leads(project: Project) -> None:
    project.schedule(JOBS)
    project.settings(f"beat_scheduler = {DATABASE!r}\n")
    hint = "start `celery beat -S supervisor` in its place"
    assert "setting overridden" not in project.log_of(project.worker(processes=1))
    stock = project.beat("-S", "celery.beat:PersistentScheduler")
    [told] = wait_until(lambda: project.events("beat", "jobs not emitted by this beat"), 60)
    assert hint in str(told["hint"])
    assert hint in project.supervisor("doctor").stdout
    stock.terminate()
    project.beat("-S", "supervisor")
    wait_until(lambda: project.ledger.history("same", 1), 60)
    assert hint not in project.supervisor("doctor").stdout


ADOPTS = "\nsupervise(app, schedules='schedules', adopt_entries=True)\n"


def test_an_entry_that_code_saves_is_guarded_until_it_is_deleted(project: Project) -> None:
    """A body of 3 seconds each second: with RedBeat's own code it would overlap with itself."""
    project.extend(ADOPTS)
    project.beat()
    project.hire(processes=3)
    with Celery("saving", broker=project.url, set_as_current=False) as app:
        app.conf.redbeat_redis_url = project.url
        each_second = schedule(timedelta(seconds=1), app=app)
        entry = RedBeatSchedulerEntry("saved", "team.work", each_second, args=[3], app=app).save()
        wait_until(lambda: len(project.starts("saved")) > 2, 60)
        assert overlapping(project.witness("saved")) == []
        assert {run.state for run in project.ledger.history("saved")} >= {"succeeded", "skipped"}
        result = project.supervisor("doctor")
        assert "unguarded" not in result.stdout, result.stdout
        entry.delete()
        wait_until(lambda: "saved" not in project.ledger.loaded().specs, 60)
        app.redbeat_redis.connection_pool.disconnect()  # type: ignore[attr-defined]
