"""An app with Sentry Crons, as the SDK has it; its transport sends to SENTRY_DSN."""

import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import facts
import sentry_sdk
from celery import Celery
from celery.schedules import crontab, schedule
from redbeat import RedBeatSchedulerEntry
from sentry_sdk.integrations.celery import CeleryIntegration

sentry_sdk.init(
    dsn=os.environ["SENTRY_DSN"],
    environment="tests",
    integrations=[CeleryIntegration(monitor_beat_tasks=True, exclude_beat_tasks=["quiet"])],
    _experiments={"transport_compression_level": 0},
)

app = Celery("checked")
app.config_from_object("settings")
app.conf.update(beat_scheduler="redbeat.RedBeatScheduler", beat_max_loop_interval=1)
facts.supervised(app)

SCHEDULES = {
    "fine": crontab(minute=0),
    "breaks": schedule(timedelta(hours=1)),
    "quiet": schedule(timedelta(hours=1)),
    "often": schedule(timedelta(seconds=1)),
    "unguarded": schedule(timedelta(hours=1)),
}


def enter(*names):
    """Saves entries of RedBeat's own, which last ran two hours ago."""
    for name in names:
        entry = RedBeatSchedulerEntry(name, name, SCHEDULES[name], app=app).save()
        entry.reschedule(datetime.now(UTC) - timedelta(hours=2))


def is_first(name):
    try:
        Path(f"{name}.began").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def nothing():
    return None


for name in ("fine", "quiet", "unguarded"):
    app.task(nothing, name=name)


@app.task(name="often")
def often():
    with Path("traces").open("a") as file:
        file.write(sentry_sdk.get_traceparent().split("-")[0] + "\n")


@app.task(name="breaks")
def breaks():
    raise LookupError("not there")


@app.task(name="dies")
def dies():
    if is_first("dies"):
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="gone")
def gone():
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="again", bind=True)
def again(self):
    if is_first("again"):
        raise self.retry(countdown=0)


def calls():
    return {}
