"""Periodic tasks of RedBeat's or django-celery-beat's own: emitted as before, beside jobs."""

from __future__ import annotations

from tests.adoption.conftest import Deploy
from tests.adoption.foreign_app import ForeignApp
from tests.waiting import wait_until

OWN = "jobs: {own: {every: 1s, task: %s}}\n"

ENTER = """
from redbeat import RedBeatSchedulerEntry
from celery.schedules import schedule
entry = RedBeatSchedulerEntry("made", "tick", schedule(1), args=["made"], app=app)
entry.save()
print("null")
"""

REMOVE = """
from redbeat import RedBeatSchedulerEntry
RedBeatSchedulerEntry.from_key("entries:made", app=app).delete()
print("null")
"""


def count(foreign_app: ForeignApp, word: str) -> int:
    return sum(word in line for line in foreign_app.witness())


def entries_of(foreign_app: ForeignApp) -> set[str]:
    """What ran of the schedule in the settings and of an entry that was made while beat ran."""
    foreign_app.worker("-c", "1")
    foreign_app.start("beat", "beat", "-l", "info")
    wait_until(lambda: count(foreign_app, "static") > 1, 40)
    foreign_app.code(ENTER)
    wait_until(lambda: count(foreign_app, "made") > 2, 40)
    foreign_app.code(REMOVE)
    wait_until(lambda: not foreign_app.broker.exists("entries:made"))
    return set(foreign_app.witness())


def test_entries_of_redbeat_run_as_before(deploy: Deploy) -> None:
    plain = entries_of(deploy("entries", is_supervised=False))
    foreign_app = deploy("entries", is_supervised=True)
    foreign_app.schedule(OWN % "seen")
    assert entries_of(foreign_app) == plain
    wait_until(lambda: foreign_app.ledger.job("own").counters.get("finished:succeeded"), 30)


def test_rows_of_django_celery_beat_run_as_before(deploy: Deploy) -> None:
    def rows_of(foreign_app: ForeignApp) -> list[str]:
        foreign_app.code("from clinic import enter; enter(); print('null')")
        scheduler = "django_celery_beat.schedulers:DatabaseScheduler"
        foreign_app.start("rows", "beat", "-l", "info", "-S", scheduler)
        wait_until(lambda: len(foreign_app.messages()) > 1, 40)
        return sorted(set(foreign_app.messages()))

    plain = rows_of(deploy("clinic", is_supervised=False))
    foreign_app = deploy("clinic", is_supervised=True)
    foreign_app.schedule(OWN % "own")
    assert rows_of(foreign_app) == plain
    assert "jobs not emitted by this beat" in foreign_app.log("rows")
    foreign_app.worker("-c", "1")
    foreign_app.start("beat", "beat", "-l", "info", "--schedule", "other")
    wait_until(lambda: "own" in foreign_app.ledger.scheduled(), 30)
    wait_until(lambda: foreign_app.ledger.job("own").counters.get("finished:succeeded"), 30)
