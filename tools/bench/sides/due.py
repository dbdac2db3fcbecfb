"""Jobs that are due at a given time, under each of the schedulers."""

import os
import sys
import time
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from celery import Celery
from celery.schedules import schedule
from redis import Redis

SIDE, URL = os.environ["SIDE"], os.environ["BROKER"]
REDIS = os.environ.get("REDIS", URL)
HOUR = timedelta(hours=1)
SETTINGS = """
SECRET_KEY = "bench"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "beat.sqlite3"}}
INSTALLED_APPS = ["django_celery_beat"]
USE_TZ = True
"""

app = Celery("due", broker=URL)
app.conf.worker_prefetch_multiplier = 1
if SIDE == "ours":
    from supervisor.app import supervise

    supervise(app, schedules="schedules")
if SIDE == "redbeat":
    app.conf.redbeat_redis_url = REDIS
    app.conf.beat_scheduler = "redbeat.RedBeatScheduler"
    app.conf.beat_max_loop_interval = 1  # it is to look as often as ours
    app.conf.redbeat_lock_timeout = 300  # it ends when it comes too late to extend its lock
if SIDE == "django":
    import django

    Path("settings.py").write_text(SETTINGS)
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
    django.setup()
    app.conf.beat_scheduler = "django_celery_beat.schedulers:DatabaseScheduler"


@app.task(name="due.nothing", ignore_result=True)
def nothing(due):
    pass


@app.task(name="due.stamp", ignore_result=True)
def stamp(due):
    late = time.time() - due
    client().rpush("late", late)


@cache
def client():
    """One a process: what a task left behind to be collected would delay those after it."""
    return Redis.from_url(URL)


def fill(task, times):
    """A job for each of the times, in seconds since the epoch; what was there is replaced."""
    FILLS[SIDE](task, times)
    return len(times)


def of_ours(task, times):
    directory = Path("schedules")
    directory.mkdir(exist_ok=True)
    for before in directory.iterdir():
        before.unlink()
    for start in range(0, len(times), 1000):
        lines = (
            f"  job-{start + number}: "
            f"{{task: {task}, every: 1h, phase: {phase(due)}ms, args: [{due}]}}"
            for number, due in enumerate(times[start : start + 1000])
        )
        (directory / f"jobs-{start}.yaml").write_text("jobs:\n" + "\n".join(lines) + "\n")


def of_redbeat(task, times):
    from redbeat import RedBeatSchedulerEntry
    from redbeat.schedulers import get_redis

    for number, due in enumerate(times):
        entry = RedBeatSchedulerEntry(
            f"job-{number}", task, schedule(HOUR), (due,), app=app, last_run_at=at(due) - HOUR
        ).save()
        # An interval's score is right only in the moment of a run: entries that are due by their
        # score, and not by their schedule, would be loaded in vain each second.
        get_redis(app).zadd(app.redbeat_conf.schedule_key, {entry.key: due})


def of_django(task, times):
    from django.core.management import call_command
    from django_celery_beat.models import IntervalSchedule, PeriodicTask, PeriodicTasks

    call_command("migrate", verbosity=0)
    hourly, _ = IntervalSchedule.objects.get_or_create(every=1, period="hours")
    PeriodicTask.objects.all().delete()
    PeriodicTask.objects.bulk_create(
        PeriodicTask(
            name=f"job-{number}",
            task=task,
            interval=hourly,
            args=f"[{due}]",
            last_run_at=at(due) - HOUR,
        )
        for number, due in enumerate(times)
    )
    PeriodicTasks.update_changed()


def of_apscheduler(task, times):
    store(paused=True, jobs=[(app.tasks[task], due) for due in times])


def store(paused, jobs=()):
    """The scheduler of APScheduler 3 with its jobs in Redis, as its documentation shows it."""
    from apscheduler.jobstores.redis import RedisJobStore
    from apscheduler.schedulers.background import BackgroundScheduler
    from redis import ConnectionPool

    pool = ConnectionPool.from_url(URL)
    jobs_in_redis = RedisJobStore(connection_pool=pool)
    scheduler = BackgroundScheduler(
        {"apscheduler.timezone": "UTC"}, jobstores={"default": jobs_in_redis}
    )
    scheduler.start(paused=paused)
    for task, due in jobs:
        scheduler.add_job(send, "date", (task.name, due), run_date=at(due), misfire_grace_time=3600)
    return scheduler


def send(task, due):
    app.tasks[task].delay(due)


def at(due):
    return datetime.fromtimestamp(due, UTC)


def scraped(jobs):
    """In a process of its own, as that of serve is."""
    from supervisor.ledger.ledger import Ledger
    from supervisor.settings import Settings
    from tools.bench import scraping

    return scraping.scraped(Ledger.open(Settings(redis_url=URL)), jobs)


def phase(due):
    return round(1000 * due) % 3_600_000


FILLS = {"ours": of_ours, "redbeat": of_redbeat, "django": of_django, "apscheduler": of_apscheduler}

if __name__ == "__main__":
    sys.modules["due"] = sys.modules["__main__"]
    store(paused=False)
    while True:
        time.sleep(60)
