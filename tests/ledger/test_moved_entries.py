"""RedBeat's entries follow a prefix of keys that has become another, as at an upgrade."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab
from redbeat.schedulers import RedBeatSchedulerEntry

from supervisor.app import supervise
from supervisor.beat.scheduler import SupervisedScheduler
from supervisor.ledger.connection import Client
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from tests.logged import capture_logs
from tests.waiting import wait_until

JOBS = """\
jobs:
  second: {task: t.known, every: 1s, overlap: allow}
  yearly: {task: t.known, cron: "0 0 1 1 *"}
"""
STATIC = {"static": {"task": "t.known", "schedule": crontab(minute="0", hour="0")}}


def known() -> None:
    """A task."""


Started = Callable[..., SupervisedScheduler]


@pytest.fixture
def own(redis_url: str) -> Iterator[Ledger]:
    """The ledger with a prefix of its own."""
    ledger = Ledger.open(Settings(redis_url, "own"))
    ledger.acknowledge_server()
    yield ledger
    ledger.close()


@pytest.fixture
def started(redis_url: str, tmp_path: Path) -> Iterator[Started]:
    """A beat of an app with these settings, which has not ticked yet."""
    made: list[SupervisedScheduler] = []
    (tmp_path / "jobs.yaml").write_text(JOBS)

    def start(prefix: str = "own", **settings: Any) -> SupervisedScheduler:
        app = Celery(prefix, broker=redis_url, set_as_current=False, **settings)
        app.conf.result_expires = None  # Celery adds an entry for it
        app.task(name="t.known")(known)
        beat = SupervisedScheduler(supervise(app, schedules=tmp_path, prefix=prefix), lazy=True)
        made.append(beat)
        return beat

    yield start
    for beat in made:
        beat.close()
        beat.app.close()


def before_the_upgrade(started: Started, own: Ledger) -> dict[str, dict[str, str]]:
    """What a beat leaves that knows nothing of prefixes; gives the entries as it left them."""
    older = started(redbeat_key_prefix="redbeat:", beat_schedule=STATIC)
    for name, task in (("made", "t.known"), ("by-name", "t.of-another-program")):
        RedBeatSchedulerEntry(name, task, crontab(hour="1"), app=older.app).save().reschedule()
    wait_until(lambda: (older.tick(), own.scheduled(), own.history("second", 1))[2])
    RedBeatSchedulerEntry.from_key("redbeat:static", app=older.app).reschedule()
    older.close()
    own.client.hdel(own.keys.beat, "entries")
    return entries(own.client, "redbeat:")


def entries(client: Client, prefix: str) -> dict[str, dict[str, str]]:
    """The fields of each entry, and when it is due."""
    due = client.zrange(f"{prefix}:schedule", 0, -1, withscores=True)
    return {
        key.removeprefix(prefix): {**client.hgetall(key), "due": str(at)}
        for key, at in due
        if not key.endswith("second")  # is due each second
    }


def ticked(beat: SupervisedScheduler) -> SupervisedScheduler:
    wait_until(lambda: (beat.tick(), beat._leads)[1])
    return beat


def test_an_upgrade_moves_all_entries_as_they_are(own: Ledger, started: Started) -> None:
    before = before_the_upgrade(started, own)
    statics = own.client.smembers("redbeat::statics")
    assert before.keys() >= {"yearly", "static", "made", "by-name"}
    beat = ticked(started(beat_schedule=STATIC))
    assert entries(own.client, "own:redbeat:") == before
    assert own.client.smembers("own:redbeat::statics") == statics >= {"static"}
    assert own.client.execute_command("KEYS", "redbeat:*") == []
    ticks = own.job("second").counters["ticks"]
    wait_until(lambda: (beat.tick(), own.job("second").counters["ticks"] > ticks)[1])


def test_entries_of_another_ledger_stay_where_they_are(
    own: Ledger, ledger: Ledger, started: Started
) -> None:
    before_the_upgrade(started, own)
    own.client.hset("redbeat:others", "spec", '{"name": "others", "task": "t", "every": "PT1S"}')
    own.client.zadd("redbeat::schedule", {"redbeat:others": 1.0, "redbeat:gone": 1.0}, xx=False)
    ledger.client.set(ledger.keys.schema, 1)
    ticked(started(beat_schedule=STATIC))
    left = own.client.zrange("redbeat::schedule", 0, -1)
    assert sorted(left) == ["redbeat:by-name", "redbeat:gone", "redbeat:others"]
    assert {"yearly", "static", "made"} <= entries(own.client, "own:redbeat:").keys()


def test_nothing_moves_while_an_older_beat_of_the_ledger_leads(
    own: Ledger, started: Started
) -> None:
    older = ticked(started(redbeat_key_prefix="redbeat:"))
    wait_until(lambda: (older.tick(), own.scheduled())[1])
    own.client.hdel(own.keys.beat, "entries")
    newer = started()
    assert [newer.tick(), newer.tick()] == [1.0, 1.0]
    assert own.client.get("own:redbeat::lock") is None
    assert entries(own.client, "redbeat:").keys() >= {"yearly"}
    older.close()
    ticked(newer)
    assert entries(own.client, "own:redbeat:").keys() >= {"yearly"}


def test_entries_follow_a_prefix_that_the_app_changes(own: Ledger, started: Started) -> None:
    for prefix in ("one:", "two:"):
        beat = ticked(started(redbeat_key_prefix=prefix))
        wait_until(lambda beat=beat: (beat.tick(), own.scheduled())[1])  # type: ignore[misc]
        beat.close()
    assert entries(own.client, "two:").keys() >= {"yearly"}
    assert own.client.execute_command("KEYS", "one:*") == []


def test_a_new_ledger_takes_no_entry_and_says_which_it_leaves(
    own: Ledger, started: Started, redis_url: str
) -> None:
    before = Celery("before", redbeat_redis_url=redis_url, set_as_current=False)
    RedBeatSchedulerEntry("made", "t.known", crontab(hour="1"), app=before).save()
    with capture_logs() as logs:
        ticked(started())
    [told] = [line for line in logs if line["event"] == "entries left under another prefix"]
    assert told["entries"] == ["redbeat:made"]
    assert "redbeat_key_prefix = 'redbeat:'" in told["hint"]
    assert own.client.zrange("redbeat::schedule", 0, -1) == ["redbeat:made"]


def test_without_redbeats_lock_a_beat_has_one_all_the_same(own: Ledger, started: Started) -> None:
    """Stock RedBeat is told so where there is one beat; here it is what leading is."""
    ticked(started(redbeat_lock_key=None))
    assert own.client.get("own:redbeat::lock")
