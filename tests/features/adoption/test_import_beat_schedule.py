from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
import yaml
from celery import Celery, chain, group
from celery.beat import BeatLazyFunc, ScheduleEntry
from celery.schedules import crontab, schedule, solar

from supervisor.errors import NotTranslatable
from supervisor.features.adoption.import_celery import read_beat_schedule
from supervisor.features.adoption.imported import (
    ImportedJob,
    Item,
    LeftOut,
    fault_of,
    without_defaults,
    write,
)
from supervisor.features.adoption.redbeat_rules import zone_name, zone_remark

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def app_with(schedules: dict[str, Any] | None = None, **conf: Any) -> Celery:
    app = Celery("proj", broker="redis://", set_as_current=False)
    app.conf.update(conf)
    app.conf.beat_schedule = schedules or {}
    return app


def read(entry: Any, **conf: Any) -> Item:
    (item,) = read_beat_schedule(app_with({"nightly": entry}, **conf), NOW)
    return item


def values(entry: Any, **conf: Any) -> dict[str, Any]:
    item = read({"task": "t", **entry}, **conf)
    assert isinstance(item, ImportedJob), item
    assert fault_of("nightly", without_defaults(item.values)) is None
    return without_defaults(item.values)


def why(entry: Any, **conf: Any) -> str:
    item = read(entry, **conf)
    assert isinstance(item, LeftOut), item
    assert item.source == "beat_schedule 'nightly'"
    return item.why


def solar_events() -> solar:
    """As an app has it that has `ephem` installed, which only its times need."""
    source = solar.__new__(solar)
    vars(source).update(event="sunset", lat=52.5, lon=13.4, nowfun=None, _app=None)
    return source


def test_an_entry_becomes_a_job() -> None:
    entry = {
        "task": "reports.nightly",
        "schedule": crontab(30, 2, day_of_week="mon-fri"),
        "args": (2026, ("a", None)),
        "kwargs": {"folder": "orders"},
        "options": {"queue": "slow", "expires": 600, "time_limit": 90, "soft_time_limit": 60.5},
    }
    assert values(entry) == {
        "task": "reports.nightly",
        "args": [2026, ["a", None]],
        "kwargs": {"folder": "orders"},
        "cron": "30 2 * * 1-5",
        "queue": "slow",
        "start_deadline": "10m",
        "soft_time_limit": "1m500ms",
        "time_limit": "1m30s",
    }


@pytest.mark.parametrize(
    ("conf", "zone"),
    [
        ({}, None),
        ({"timezone": "Europe/Berlin"}, "Europe/Berlin"),
        ({"timezone": "Europe/Berlin", "enable_utc": False}, "Europe/Berlin"),
        ({"timezone": ZoneInfo("Asia/Tokyo")}, "Asia/Tokyo"),
        ({"timezone": timezone(timedelta(hours=2))}, "Etc/GMT-2"),
    ],
    ids=str,
)
def test_a_crontab_is_read_in_the_zone_of_the_app(conf: dict[str, Any], zone: str | None) -> None:
    assert values({"schedule": crontab(0, 4)}, **conf).get("timezone") == zone


def test_a_day_of_two_fields_is_a_rule_in_the_zone_of_the_app() -> None:
    entry = {"schedule": crontab(30, 6, day_of_month="1,15", day_of_week="mon")}
    assert values(entry, timezone="Europe/Berlin") == {
        "task": "t",
        "rrule": "FREQ=MONTHLY;BYMONTHDAY=1,15;BYDAY=MO;BYHOUR=6;BYMINUTE=30",
        "timezone": "Europe/Berlin",
    }


def test_a_zone_that_nobody_knows_stops_the_crontabs_alone() -> None:
    assert "unknown here" in why({"task": "t", "schedule": crontab()}, timezone="Mars/Olympus")
    assert values({"schedule": 60}, timezone="Mars/Olympus")["every"] == "1m"


def test_the_head_of_the_file_says_when_the_zone_is_this_machines() -> None:
    assert "this machine" in zone_remark(app_with(enable_utc=False))
    assert "the app's zone" in zone_remark(app_with(timezone="Europe/Berlin", enable_utc=False))


@pytest.mark.parametrize(
    ("offset", "name"), [(0, "UTC"), (60, "Etc/GMT-1"), (-180, "Etc/GMT+3"), (330, None)]
)
def test_a_fixed_offset_has_a_name_if_it_is_of_whole_hours(offset: int, name: str | None) -> None:
    zone = timezone(timedelta(minutes=offset))
    if name is None:
        with pytest.raises(NotTranslatable):
            zone_name(zone)
        return
    assert zone_name(zone) == name
    assert NOW.astimezone(ZoneInfo(name)).utcoffset() == zone.utcoffset(None)


@pytest.mark.parametrize(
    ("given", "every"),
    [
        (90, "1m30s"),
        (1.5, "1s500ms"),
        (timedelta(hours=6), "6h"),
        (schedule(timedelta(minutes=90)), "1h30m"),
        (schedule(30, relative=True), "30s"),
    ],
    ids=str,
)
def test_an_interval_becomes_the_key_every(given: Any, every: str) -> None:
    assert values({"schedule": given})["every"] == every


def test_a_relative_interval_is_a_time_of_the_clock_where_it_is_one() -> None:
    entry = {"schedule": timedelta(days=1), "relative": True}
    assert values(entry, timezone="Asia/Tokyo")["cron"] == "0 0 * * *"
    item = read({"task": "t", "schedule": timedelta(hours=5), "relative": True})
    assert isinstance(item, ImportedJob)
    assert "relative" in item.lost[0]


@Celery("other", set_as_current=False).task(name="nothing")
def nothing() -> None: ...


class Fortnightly(crontab):
    """A schedule of a project's own."""


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"task": "t", "schedule": solar_events()}, "sun"),
        ({"task": "t", "schedule": 0.2}, "under a second"),
        ({"task": "t", "schedule": 1.00005}, "1.00005 seconds"),
        ({"task": "t", "schedule": 1e300}, "no number of seconds"),
        ({"task": "t", "schedule": Fortnightly()}, "Fortnightly"),
        ({"task": "t", "schedule": crontab(nowfun=datetime.now)}, "clock of its own"),
        ({"task": "t"}, "no schedule"),
        ({"task": "t", "schedule": 60, "argz": [1]}, "argz"),
        ({"task": "t", "schedule": 60, "args": [datetime(2026, 1, 1)]}, "datetime"),
        ({"task": "t", "schedule": 60, "kwargs": {"a": float("nan")}}, "kwargs"),
        ({"task": "t", "schedule": 60, "args": [BeatLazyFunc(print)]}, "computes"),
        (17, "no entry"),
        ({"task": chain(nothing.si(), nothing.si())["task"], "schedule": 60}, "celery.chain is no"),
        ({"task": group(nothing.si())["task"], "schedule": 60}, "celery.group is no task"),
        ({"task": nothing, "schedule": 60}, "JSON cannot hold a"),
        ({"task": "t", "schedule": 60, "options": {"link": nothing.si()}}, "option 'link'"),
    ],
)
def test_what_cannot_be_translated_says_why(entry: Any, reason: str) -> None:
    assert reason in why(entry)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("priority", 10),
        ("priority", "high"),
        ("expires", datetime(2026, 1, 1)),
        ("expires", 0.5),
        ("headers", {"a": 1}),
    ],
)
def test_an_option_without_a_key_is_reported_and_the_job_stays(option: str, value: Any) -> None:
    item = read({"task": "t", "schedule": 60, "options": {option: value}})
    assert isinstance(item, ImportedJob)
    (lost,) = item.lost
    assert lost.startswith(f"option '{option}' is not translated")


class Word(str, Enum):  # noqa: UP042 - its str() is not its value
    """As apps name tasks, queues and entries."""

    REPORT = "reports.nightly"
    SLOW = "slow"


def test_a_member_of_an_enum_is_the_text_that_it_stands_for() -> None:
    entry = {"task": Word.REPORT, "schedule": 60, "options": {"queue": Word.SLOW}}
    [item] = read_beat_schedule(app_with({Word.REPORT: {**entry, "description": Word.SLOW}}), NOW)
    written = write([], [item])
    assert (written.jobs, written.reports) == (["reports.nightly"], [])
    job = yaml.safe_load(written.text)["jobs"]["reports.nightly"]
    assert job == {
        "task": "reports.nightly",
        "description": "slow",
        "every": "1m",
        "queue": "slow",
    }


class SafeText(str):
    """As Django's."""


OPTIONS = ("queue", "priority", "expires", "time_limit", "routing_key", "headers")

ODD = (
    *(uuid4(), Decimal(1), {1}, timedelta(days=1), date(2026, 1, 1), b"x", object(), nothing, Word),
    *(1e400, -1, "", "\ud800", ["a"], {"a": {1}}, {1: 2}, True, SafeText("x"), nothing.si()),
)


@pytest.mark.parametrize("key", ["task", "schedule", "args", "kwargs", "options", "description"])
@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
def test_an_entry_that_cannot_be_taken_costs_itself_only(key: str, value: Any) -> None:
    """Whatever it is, the entries beside it are written, and it is too, or it is named."""
    odd = {"task": "t", "schedule": 60, key: value}
    options = {"task": "t", "schedule": 60, "options": dict.fromkeys(OPTIONS, value)}
    app = app_with({"first": odd, "second": options, "last": {"task": "t", "schedule": 60}})
    written = write([], read_beat_schedule(app, NOW))
    assert "last" in written.jobs
    named = "".join(written.reports)
    assert all(name in written.jobs or name in named for name in ("first", "second"))
    if "first" in written.jobs:
        assert yaml.safe_load(written.text)["jobs"]["first"]["task"]


def test_a_priority_is_kept() -> None:
    item = read({"task": "t", "schedule": 60, "options": {"priority": 0}})
    assert isinstance(item, ImportedJob)
    assert (item.values["priority"], item.lost) == (0, [])


def test_an_option_that_is_none_is_none() -> None:
    item = read({"task": "t", "schedule": 60, "options": {"expires": None}})
    assert isinstance(item, ImportedJob) and item.lost == []


def test_entries_may_be_objects_and_tasks_may_add_themselves() -> None:
    app = app_with({"object": ScheduleEntry("object", "t", schedule=schedule(60))})

    @app.on_after_finalize.connect
    def add_more(sender: Celery, **_: Any) -> None:
        sender.add_periodic_task(10, sender.signature("t", (2, 2)))

    found = read_beat_schedule(app, NOW)
    assert [item.name for item in found if isinstance(item, ImportedJob)] == ["object", "t(2, 2)"]
