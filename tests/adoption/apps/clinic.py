"""A Django app whose periodic tasks are rows of django-celery-beat."""

import os

import django
import facts
from celery import Celery
from django.conf import settings

if not settings.configured:
    settings.configure(
        INSTALLED_APPS=["django.contrib.contenttypes", "django_celery_beat"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}},
        USE_TZ=True,
        SECRET_KEY="of-the-tests",
        CELERY_BROKER_URL=os.environ["FOREIGN_REDIS"],
        CELERY_RESULT_BACKEND=os.environ["FOREIGN_REDIS"],
        CELERY_TIMEZONE="Europe/Berlin",
        CELERY_BEAT_MAX_LOOP_INTERVAL=1,
    )
    django.setup()

app = Celery("clinic")
app.config_from_object("django.conf:settings", namespace="CELERY")
facts.supervised(app)


@app.task(bind=True, name="remind")
def remind(self, whom):
    return facts.seen(self)


@app.task(name="own")
def own(): ...


def enter():
    """A row for each second, and the tables."""
    from django.core.management import call_command
    from django_celery_beat.models import IntervalSchedule, PeriodicTask

    call_command("migrate", verbosity=0)
    every = IntervalSchedule.objects.create(every=1, period=IntervalSchedule.SECONDS)
    PeriodicTask.objects.create(
        name="reminders",
        task="remind",
        interval=every,
        args='["all"]',
        headers='{"tenant": "acme"}',
        priority=4,
        expire_seconds=600,
    )


def calls():
    return {"remind": remind.s("one")}
