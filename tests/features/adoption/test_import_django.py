"""django-celery-beat's own tables, in SQLite, as jobs of a schedule file."""

from __future__ import annotations

import json
import os
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from supervisor.catalog.schedule_files import load
from supervisor.job.spec import JobSpec
from tests.acceptance import warm

SETTINGS = """\
SECRET_KEY = "test"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "beat.sqlite3"}}
INSTALLED_APPS = ["django_celery_beat"]
USE_TZ = True
TIME_ZONE = "America/New_York"
CELERY_TIMEZONE = "Europe/Paris"
CELERY_BROKER_URL = "redis://"
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
"""

APP = """\
import json
import os
from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite_settings")
app = Celery("mysite")
app.config_from_object("django.conf:settings", namespace="CELERY")
"""

FILL = """\
from datetime import timedelta
from zoneinfo import ZoneInfo
import django
import mysite
django.setup()
from django.core.management import call_command
from django.utils.timezone import now
from django_celery_beat.models import *

call_command("migrate", verbosity=0)
hourly = IntervalSchedule.objects.create(every=1, period="hours")
blink = IntervalSchedule.objects.create(every=100, period="microseconds")
days = CrontabSchedule.objects.create(
    minute="30", hour="2", day_of_week="mon-fri", timezone=ZoneInfo("Europe/Berlin"))
friday13 = CrontabSchedule.objects.create(minute="0", hour="6", day_of_month="13", day_of_week="5")
ahead = ClockedSchedule.objects.create(clocked_time="2099-12-24T18:00:00Z")
over = ClockedSchedule.objects.create(clocked_time="2020-12-24T18:00:00Z")
sun = SolarSchedule.objects.create(event="sunset", latitude=52.5, longitude=13.4)
def add(name, **values):
    PeriodicTask.objects.create(name=name, task="proj.task", **values)
"""


@dataclass(frozen=True)
class Imported:
    """What became jobs of the rows below, and what is reported of each of the others."""

    specs: dict[str, JobSpec]
    reports: dict[str, list[str]]


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Imported:
    directory = tmp_path_factory.mktemp("mysite")
    (directory / "mysite_settings.py").write_text(SETTINGS)
    (directory / "mysite.py").write_text(APP)
    done = run(directory, "-c", FILL + ROWS + NOT_TRANSLATABLE + LOSSES)
    assert done.returncode == 0, done.stderr
    done = supervisor(directory)
    assert done.returncode == 1, done.stderr
    (directory / "jobs.yaml").write_text(done.stdout)
    reports = defaultdict(list)
    for line in done.stderr.splitlines():
        source, _, what = line.removeprefix("django-celery-beat ").partition(": ")
        reports[source.strip("'")].append(what)
    return Imported(dict(load(directory / "jobs.yaml").specs), reports)


def run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return warm.run(words, directory, {**os.environ, "PYTHONPATH": str(directory)})


def supervisor(directory: Path) -> subprocess.CompletedProcess[str]:
    words = ("-m", "supervisor", "-A", "mysite", "import", "django-celery-beat")
    return run(directory, *words)


ROWS = """
add("nightly", crontab=days, args='[1, "a"]', kwargs='{"folder": "in"}', queue="slow",
    expire_seconds=600, description="Mails the figures.")
add("odd days", crontab=friday13, enabled=False)
add("hourly", interval=hourly, start_time="2099-01-01T00:20:00Z", expires="2099-06-01T00:00:00Z")
add("party", clocked=ahead, one_off=True)
add("celery.backend_cleanup", crontab=days)
add("once", interval=hourly, one_off=True)
add("first", crontab=days, one_off=True, start_time="2099-01-01T00:00:00Z")
"""


WANTED = """
defaults: {timezone: UTC}
jobs:
  nightly:
    {task: proj.task, cron: 30 2 * * 1-5, timezone: Europe/Berlin, args: [1, a], queue: slow,
     kwargs: {folder: in}, start_deadline: 10m, description: Mails the figures.}
  odd-days:
    {entry: odd days, task: proj.task, timezone: Europe/Paris, paused: true,
     rrule: FREQ=MONTHLY;BYMONTHDAY=13;BYDAY=FR;BYHOUR=6;BYMINUTE=0}
  hourly:
    {task: proj.task, every: 1h, phase: 20m, start_at: 2099-01-01T00:20:00Z,
     end_at: 2099-06-01T00:00:00Z}
  party: {task: proj.task, at: [2099-12-24T18:00:00Z]}
  first: {task: proj.task, at: [2099-01-01T01:30:00Z]}
"""


def test_rows_become_jobs_that_load(imported: Imported, tmp_path: Path) -> None:
    (tmp_path / "wanted.yaml").write_text(WANTED)
    wanted = dict(load(tmp_path / "wanted.yaml").specs)
    others = {"once", "mail"}
    assert {name: imported.specs[name] for name in imported.specs.keys() - others} == wanted
    assert imported.specs.keys() >= others
    assert not imported.reports.keys() & {"nightly", "odd days", "hourly", "party", "first"}


def test_an_interval_that_runs_once_runs_one_interval_after_it_was_changed(
    imported: Imported,
) -> None:
    (at,) = imported.specs["once"].at or ()
    left = at - datetime.now(UTC)
    assert timedelta(minutes=50) < left <= timedelta(hours=1)


NOT_TRANSLATABLE = """
add("dusk", solar=sun)
add("blink", interval=blink)
add("past", clocked=over, one_off=True)
add("expired", interval=hourly, expires="2020-01-01T00:00:00Z")
add("ran", crontab=days, one_off=True, total_run_count=1)
add("garbled", interval=hourly, args="[1,")
add("no list", interval=hourly, args='{"a": 1}')
add("bare", interval=hourly)
PeriodicTask.objects.filter(name="bare").update(interval=None)
wrong = CrontabSchedule.objects.create(minute="77")
add("wrong", crontab=wrong)
"""


LOSSES = """
add("mail", interval=hourly, priority=5, routing_key="a.b", exchange="topic",
    headers='{"tenant": "t1"}')
"""


def test_all_that_cannot_be_translated_is_reported(imported: Imported) -> None:
    said = {
        name: what.removeprefix("not translated: ")
        for name, (what, *_) in imported.reports.items()
        if what.startswith("not translated: ")
    }
    assert said.pop("wrong").startswith("Invalid")
    assert said.pop("garbled").startswith("'args' is no JSON: ")
    assert said == {
        "dusk": "there is no key for the times of the sun",
        "blink": "an interval under a second",
        "past": "its only time, 2020-12-24T18:00:00Z, has passed",
        "expired": "it has expired, at 2020-01-01T00:00:00Z",
        "ran": "it runs once, and has run",
        "no list": "'args' is no JSON list",
        "bare": "it has no schedule",
    }


def test_what_a_job_has_no_key_for_is_reported_beside_the_job(imported: Imported) -> None:
    lost = {what.split("'")[1] for what in imported.reports["mail"]}
    assert lost == {"routing_key", "exchange", "headers"}


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (("beat.sqlite3", "absent.sqlite3"), "tables cannot be read: no such table"),
        (('["django_celery_beat"]', "[]"), "django_celery_beat is not in INSTALLED_APPS"),
    ],
    ids=["tables", "app"],
)
def test_without_the_tables_one_sentence_says_what_is_missing(
    tmp_path: Path, edit: tuple[str, str], said: str
) -> None:
    (tmp_path / "mysite.py").write_text(APP)
    (tmp_path / "mysite_settings.py").write_text(SETTINGS.replace(*edit))
    done = supervisor(tmp_path)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


FOLLOW = """
import json, sys
from supervisor.app import supervise
from supervisor.features.adoption.django_rows import changed_since
from supervisor.catalog.entries import Entries
from supervisor.catalog.reconcile import reconcile_changed
from supervisor.beat.scheduler import SupervisedScheduler
from supervisor.job.changes import registered
from supervisor.ledger.ledger import Ledger
from supervisor.sending.app_settings import required_settings

app = supervise(mysite.app, adopt_rows=True)
app.conf.beat_schedule = {"static": {"task": "proj.task", "schedule": 60}}
beat = SupervisedScheduler(app, lazy=True)
beat.tick()
beat.close()  # ends its own reconciling
ledger = Ledger.open(required_settings(app))
[rows] = registered()

def reconcile():
    outcome = reconcile_changed(ledger, Entries(app, ledger), rows)
    records = ledger.records_of(list(ledger.scheduled().values()))
    jobs = {one.spec.name: [one.spec.schedule, one.paused] for one in records}
    print(json.dumps([outcome.changes is not None, jobs, outcome.problems]))

for name in ("nightly", "poll inbox", "static", "taken"):
    add(name, crontab=days)
app.redbeat_conf  # RedBeat's
from redbeat import RedBeatSchedulerEntry
RedBeatSchedulerEntry("taken", "proj.task", 60, app=app).save()
reconcile()
PeriodicTask.objects.filter(name="taken").delete()
reconcile()
reconcile()
row = PeriodicTask.objects.get(name="nightly")
row.enabled = False
row.save()
days.hour = "3"
days.save()
reconcile()
add("new", interval=hourly, headers='{"tenant": "t1"}')
PeriodicTask.objects.get(name="poll inbox").delete()
reconcile()
ledger.client.hset(ledger.keys.beat, "last_reload", 1)
print(json.dumps([changed_since(app, ledger.beat().last_reload_at) is not None]))
app = supervise(mysite.app)
beat = SupervisedScheduler(app, lazy=True)
beat.tick()
beat.close()
print(json.dumps([changed_since(app, ledger.beat().last_reload_at) is not None]))
reconcile()
"""


def test_rows_that_the_app_saves_are_followed(tmp_path: Path, redis_url: str) -> None:
    (tmp_path / "mysite_settings.py").write_text(SETTINGS.replace("redis://", redis_url))
    (tmp_path / "mysite.py").write_text(APP)
    done = run(tmp_path, "-c", FILL + FOLLOW)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    first, second, same, edited, last, note, other, gone = lines
    jobs = {"nightly": ["30 2 * * 1-5", False], "poll-inbox-2": ["30 2 * * 1-5", False]}
    assert first[:2] == [True, jobs], "also without the row whose name an entry has"
    assert ["RedBeat's schedule" in problem for problem in first[2]] == [True]
    assert second[1:] == [jobs, []]
    assert same == [False, jobs, []]
    assert edited[1] == {"nightly": ["30 3 * * 1-5", True], "poll-inbox-2": ["30 3 * * 1-5", False]}
    assert last[1] == {"nightly": ["30 3 * * 1-5", True]}
    assert "row 'new': option 'headers'" in last[2][0]
    assert (note, other) == ([False], [True]), "rows that are followed need no note"
    assert "rows given back to django-celery-beat" in done.stderr + done.stdout
    assert gone[1].keys() == {"nightly"}, "the test reconciles by itself; no beat makes one"


LOADED = """
from supervisor.ledger.ledger import Ledger
from supervisor.times import ms_of
from supervisor.sending.app_settings import required_settings

ledger = Ledger.open(required_settings(mysite.app))
"""

#: Beat has loaded schedule files after the row was made.
LOAD = """
add("nightly", crontab=days)
ledger.client.hset(ledger.keys.beat, "last_reload", ms_of(ledger.now()) + 1000)
"""

#: And the app's code saves it again, some time later.
SAVE = """
row = PeriodicTask.objects.get(name="nightly")
row.enabled = False
row.save()
ledger.client.hset(ledger.keys.beat, "last_reload", 1)
"""


def test_doctor_notes_rows_that_drift_from_the_jobs_made_of_them(
    tmp_path: Path, redis_url: str
) -> None:
    (tmp_path / "mysite_settings.py").write_text(SETTINGS.replace("redis://", redis_url))
    (tmp_path / "mysite.py").write_text(
        f"{APP}\nfrom supervisor.app import supervise\nsupervise(app, schedules='schedules')\n"
    )

    def rows() -> list[str]:
        done = run(tmp_path, "-m", "supervisor", "-A", "mysite", "doctor", "--json")
        return [each["what"] for each in json.loads(done.stdout) if each["check"] == "rows"]

    done = run(tmp_path, "-c", FILL + LOADED + LOAD)
    assert done.returncode == 0, done.stderr
    assert rows() == []
    again = FILL[: FILL.index('call_command("migrate"')] + LOADED + SAVE
    done = run(tmp_path, "-c", again)
    assert done.returncode == 0, done.stderr
    assert ["rows of django-celery-beat were changed" in what for what in rows()] == [True]


OFFSET = """\
from django_celery_beat.schedulers import DatabaseScheduler
class OffsetScheduler(DatabaseScheduler):
    pass
"""


def test_rows_of_a_derived_scheduler_are_said_to_be_read(tmp_path: Path, redis_url: str) -> None:
    own = f'CELERY_BEAT_SCHEDULER = "offset.OffsetScheduler"\nCELERY_BROKER_URL = "{redis_url}"\n'
    (tmp_path / "mysite_settings.py").write_text(SETTINGS + own)
    (tmp_path / "mysite.py").write_text(APP)
    (tmp_path / "offset.py").write_text(OFFSET)
    done = run(tmp_path, "-c", FILL + 'add("hourly", interval=hourly)')
    assert done.returncode == 0, done.stderr
    done = run(tmp_path, "-m", "supervisor", "-A", "mysite", "adopt", "--dry-run")
    assert "django-celery-beat: 1 job to be imported" in done.stdout
    assert "offset.OffsetScheduler': not translated: the rows of django-celery-beat" in done.stdout
    assert "not read" not in done.stdout
