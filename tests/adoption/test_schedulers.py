"""Periodic tasks of RedBeat's or django-celery-beat's own: emitted as before, beside jobs."""

from __future__ import annotations

from tests.adoption.conftest import Deploy
from tests.adoption.stranger import Stranger
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


def count(stranger: Stranger, word: str) -> int:
    return sum(word in line for line in stranger.witness())


def entries_of(stranger: Stranger) -> set[str]:
    """What ran of the schedule in the settings and of an entry that was made while beat ran."""
    stranger.worker("-c", "1")
    stranger.start("beat", "beat", "-l", "info")
    wait_until(lambda: count(stranger, "static") > 1, 40)
    stranger.code(ENTER)
    wait_until(lambda: count(stranger, "made") > 2, 40)
    stranger.code(REMOVE)
    wait_until(lambda: not stranger.broker.exists("entries:made"))
    return set(stranger.witness())


def test_entries_of_redbeat_run_as_before(deploy: Deploy) -> None:
    plain = entries_of(deploy("entries", is_supervised=False))
    stranger = deploy("entries", is_supervised=True)
    stranger.schedule(OWN % "seen")
    assert entries_of(stranger) == plain
    wait_until(lambda: stranger.ledger.job("own").counters.get("finished:succeeded"), 30)


def test_rows_of_django_celery_beat_run_as_before(deploy: Deploy) -> None:
    def rows_of(stranger: Stranger) -> list[str]:
        stranger.code("from clinic import enter; enter(); print('null')")
        scheduler = "django_celery_beat.schedulers:DatabaseScheduler"
        stranger.start("rows", "beat", "-l", "info", "-S", scheduler)
        wait_until(lambda: len(stranger.messages()) > 1, 40)
        return sorted(set(stranger.messages()))

    plain = rows_of(deploy("clinic", is_supervised=False))
    stranger = deploy("clinic", is_supervised=True)
    stranger.schedule(OWN % "own")
    assert rows_of(stranger) == plain
    assert "jobs not emitted by this beat" in stranger.log("rows")
    stranger.worker("-c", "1")
    stranger.start("beat", "beat", "-l", "info", "--schedule", "other")
    wait_until(lambda: "own" in stranger.ledger.scheduled(), 30)
    wait_until(lambda: stranger.ledger.job("own").counters.get("finished:succeeded"), 30)
