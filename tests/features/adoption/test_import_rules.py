"""RedBeat's rules as jobs: the same next times, or a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from dateutil.rrule import FR, MO, TU, WE, weekday
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from redbeat.schedules import rrule

from supervisor.errors import NotTranslatable
from supervisor.features.adoption.import_celery import when_of
from supervisor.features.adoption.imported import fault_of, without_defaults
from supervisor.job.spec import JobSpec
from supervisor.schedule import schedule_of

NOW = datetime(2026, 3, 1, tzinfo=UTC)
START = datetime(2026, 1, 5, 3, 30, tzinfo=UTC)  # a Monday
LATER = datetime(2026, 4, 8, 3, 30, tzinfo=UTC)  # a Wednesday
ON_GRID = START - (START - datetime(1970, 1, 1, tzinfo=UTC)) % timedelta(minutes=7)
BEGUN = {"start_at": "2026-01-05T03:30:00"}
HOURS, MINUTES = (",".join(map(str, range(most))) for most in (24, 60))

APP = Celery("proj", broker="redis://", set_as_current=False)


def rule(freq: str, **given: Any) -> rrule:
    return rrule(freq, **{"dtstart": START, "app": APP, **given})


def keys_of(source: rrule) -> dict[str, Any]:
    """As they come out of the file: each job is read back."""
    keys = when_of(source, APP, NOW).values
    assert fault_of("j", without_defaults({"task": "t", **keys})) is None
    return keys


def ours(keys: dict[str, Any]) -> Iterator[datetime]:
    times = schedule_of(JobSpec.model_validate({"name": "j", "task": "t", **keys}))
    following = times.next_after(NOW)
    while following is not None:
        yield following
        following = times.next_after(following)


def first(
    times: Iterable[datetime], until: datetime = NOW + 6 * timedelta(days=366)
) -> list[datetime]:
    return list(islice(takewhile(lambda time: time <= until, times), 20))


def assert_same_times(source: rrule, keys: dict[str, Any]) -> None:
    assert list(islice(ours(keys), 20)) == list(islice(source.rrule.xafter(NOW), 20))


@pytest.mark.parametrize(
    ("source", "every", "phase"),
    [
        (rule("SECONDLY", interval=30), "30s", None),
        (rule("MINUTELY", interval=7, dtstart=ON_GRID), "7m", None),
        (rule("MINUTELY", interval=90), "1h30m", "30m"),
        (rule("HOURLY", interval=6), "6h", "3h30m"),
        (rule("MINUTELY", interval=7, dtstart=ON_GRID + timedelta(minutes=2)), "7m", "2m"),
        (rule("MINUTELY", dtstart=START + timedelta(seconds=20)), "1m", "20s"),
        (rule("SECONDLY", interval=30, dtstart=START + timedelta(seconds=10)), "30s", "10s"),
        (rule("HOURLY", interval=5, dtstart=LATER), "5h", "2h30m"),
        (
            rule("HOURLY", interval=36, dtstart=START.astimezone(timezone(timedelta(hours=5.5)))),
            "1d12h",
            "1d3h30m",
        ),
    ],
    ids=str,
)
def test_an_interval_that_begins_off_the_grid_has_a_phase(
    source: rrule, every: str, phase: str | None
) -> None:
    keys = keys_of(source)
    assert (keys["every"], keys.get("phase")) == (every, phase)
    assert_same_times(source, keys)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (rule("DAILY"), "FREQ=DAILY"),
        (rule("DAILY", byhour=[6, 18], byminute=0), "FREQ=DAILY;BYHOUR=6,18;BYMINUTE=0"),
        (rule("HOURLY", byhour=[8, 9]), "FREQ=DAILY;BYHOUR=8,9"),
        (rule("HOURLY", bymonthday=-1), f"FREQ=DAILY;BYMONTHDAY=-1;BYHOUR={HOURS}"),
        (rule("MINUTELY", byhour=3), f"FREQ=DAILY;BYHOUR=3;BYMINUTE={MINUTES}"),
        (
            rule("MINUTELY", interval=15, byhour=range(9, 12), byweekday=range(5)),
            "FREQ=DAILY;BYDAY=MO,TU,WE,TH,FR;BYHOUR=9,10,11;BYMINUTE=0,15,30,45",
        ),
        (rule("MINUTELY", interval=20, byhour=3), "FREQ=DAILY;BYHOUR=3;BYMINUTE=10,30,50"),
        (
            rule("MINUTELY", interval=10, byhour=3, byminute=[0, 7, 40]),
            "FREQ=DAILY;BYHOUR=3;BYMINUTE=0,40",
        ),
        (
            rule("HOURLY", interval=8, byweekday=range(5)),
            "FREQ=DAILY;BYDAY=MO,TU,WE,TH,FR;BYHOUR=3,11,19",
        ),
        (rule("DAILY", interval=2), "FREQ=DAILY;INTERVAL=2"),
        (rule("WEEKLY", interval=2), "FREQ=WEEKLY;INTERVAL=2"),
        (
            rule("WEEKLY", interval=2, byweekday=[MO, 4], byhour=[6, 18], wkst=6),
            "FREQ=WEEKLY;INTERVAL=2;WKST=SU;BYDAY=MO,FR;BYHOUR=6,18",
        ),
        (rule("MONTHLY", interval=5), "FREQ=MONTHLY;INTERVAL=5"),
        (rule("YEARLY", interval=2), "FREQ=YEARLY;INTERVAL=2"),
        (rule("MONTHLY", bysetpos=-1, byweekday=[0, 1]), "FREQ=MONTHLY;BYDAY=MO,TU;BYSETPOS=-1"),
        (rule("MONTHLY", byweekday=TU(2)), "FREQ=MONTHLY;BYDAY=2TU"),
        (rule("YEARLY", byweekday=FR(-1)), "FREQ=YEARLY;BYDAY=-1FR"),
        (rule("WEEKLY", byweekday=WE(2), interval=2), "FREQ=WEEKLY;INTERVAL=2;BYDAY=WE"),
        (rule("MONTHLY", bymonthday=[1, -1]), "FREQ=MONTHLY;BYMONTHDAY=1,-1"),
        (rule("MONTHLY", bymonthday=13, byweekday=4), "FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13"),
        (rule("MONTHLY", byweekday=[1, TU(1), FR(1)]), "FREQ=MONTHLY;BYDAY=1TU"),
        (rule("DAILY", bysecond=30), "FREQ=DAILY;BYSECOND=30"),
        (rule("WEEKLY", bysetpos=1, byweekday=[1, 3]), "FREQ=WEEKLY;BYDAY=TU,TH;BYSETPOS=1"),
    ],
    ids=str,
)
def test_other_rules_stay_rules(source: rrule, text: str) -> None:
    keys = keys_of(source)
    assert keys == {"rrule": text, "timezone": "UTC", **BEGUN}
    assert_same_times(source, keys)


@pytest.mark.parametrize(
    ("limit", "end"),
    [
        ({"count": 70}, "2026-03-15T03:30:01Z"),
        ({"count": 3}, "2026-01-07T03:30:01Z"),
        ({"until": datetime(2026, 3, 9, 3, 30, tzinfo=UTC)}, "2026-03-09T03:30:01Z"),
    ],
)
def test_a_rule_that_ends_has_an_end_at(limit: dict[str, Any], end: str) -> None:
    source = rule("DAILY", **limit)
    keys = keys_of(source)
    assert keys == {"rrule": "FREQ=DAILY", "timezone": "UTC", "end_at": end, **BEGUN}
    assert_same_times(source, keys)


@pytest.mark.parametrize(
    ("zone", "name"),
    [
        (timezone(timedelta(hours=2)), "Etc/GMT-2"),
        (ZoneInfo("Europe/Berlin"), "Europe/Berlin"),
        (ZoneInfo("Asia/Tokyo"), "Asia/Tokyo"),
    ],
    ids=str,
)
def test_a_rule_keeps_the_clock_of_its_start(zone: tzinfo, name: str) -> None:
    start, until = START.replace(tzinfo=zone), datetime(2026, 5, 1, 3, 30, tzinfo=zone)
    daily, fortnightly, ending = (
        rule("DAILY", dtstart=start),
        rule("WEEKLY", dtstart=start, interval=2),
        rule("DAILY", dtstart=start, until=until),
    )
    assert keys_of(daily) == {"rrule": "FREQ=DAILY", "timezone": name, **BEGUN}
    text = "FREQ=WEEKLY;INTERVAL=2"
    assert keys_of(fortnightly) == {"rrule": text, "timezone": name, **BEGUN}
    for source in (daily, fortnightly, ending):
        assert_same_times(source, keys_of(source))


@pytest.mark.parametrize(
    ("freq", "interval", "text"),
    [
        ("MINUTELY", 20, f"FREQ=DAILY;BYHOUR={HOURS};BYMINUTE=10,30,50"),
        ("HOURLY", 6, "FREQ=DAILY;BYHOUR=3,9,15,21"),
    ],
)
def test_an_interval_by_a_clock_that_changes_is_a_rule_of_each_day(
    freq: str, interval: int, text: str
) -> None:
    source = rule(freq, interval=interval, dtstart=START.replace(tzinfo=ZoneInfo("Europe/Berlin")))
    assert keys_of(source) == {"rrule": text, "timezone": "Europe/Berlin", **BEGUN}
    assert_same_times(source, keys_of(source))


def test_what_is_less_than_a_second_counts_for_nobody() -> None:
    source = rule("DAILY", interval=2, dtstart=START.replace(microsecond=123456))
    assert keys_of(source)["start_at"] == BEGUN["start_at"]
    assert_same_times(source, keys_of(source))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (rule("YEARLY", byeaster=0), "byeaster"),
        (rule("SECONDLY", byminute=5), "no interval of 1s: use 'cron', or 'every' with 'exclude'"),
        (rule("HOURLY", interval=5, byhour=range(8, 18)), "no interval of 5h"),
        (
            rule("MINUTELY", interval=90, dtstart=START.replace(tzinfo=ZoneInfo("Europe/Berlin"))),
            "no interval of 1h30m",
        ),
        (rule("DAILY", byhour=[6, 18], bysetpos=1), "one time of the day"),
        (rule("HOURLY", byminute=[0, 30], bysetpos=1), "one time of the day"),
        (rule("MONTHLY", byweekno=20), "no key for 'byweekno'"),
        (rule("YEARLY", byyearday=100), "no key for 'byyearday'"),
        (rule("DAILY", count=0), "a count of 0"),
        (rule("DAILY", byhour=[]), "empty"),
        (rule("WEEKLY", dtstart=LATER, byweekday=[0, 4], bysetpos=1), "rest of a week"),
        (rule("DAILY", dtstart=START.astimezone(timezone(timedelta(hours=5.5)))), "no time zone"),
        (
            rule(
                "DAILY",
                interval=2,
                dtstart=datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
            ),
            "jumps over",
        ),
    ],
    ids=str,
)
def test_a_rule_that_a_job_cannot_have_is_refused(source: rrule, reason: str) -> None:
    with pytest.raises(NotTranslatable, match=reason):
        when_of(source, APP, NOW)


def numbers(*ranges: tuple[int, int]) -> st.SearchStrategy[list[int] | None]:
    values = st.one_of(*(st.integers(*ends) for ends in ranges))
    return st.one_of(st.none(), st.lists(values, min_size=1, max_size=4, unique=True))


WEEKDAY = st.builds(weekday, st.integers(0, 6), st.sampled_from([None, None, 1, 2, -1]))
PARTS: dict[str, st.SearchStrategy[Any]] = {
    "bymonth": numbers((1, 12)),
    "bymonthday": numbers((1, 28), (-5, -1)),
    "byyearday": numbers((1, 366), (-366, -1)),
    "byweekno": numbers((1, 52), (-3, -1)),
    "byweekday": st.lists(WEEKDAY, min_size=1, max_size=4, unique=True),
    "byhour": numbers((0, 23)),
    "byminute": numbers((0, 59)),
    "bysecond": numbers((0, 59)),
    "bysetpos": numbers((1, 3), (-3, -1)),
    "count": st.integers(1, 100),
    "until": st.datetimes(datetime(2026, 2, 1), datetime(2027, 1, 1), timezones=st.just(UTC)),
    "wkst": st.integers(0, 6),
}


@st.composite
def rules(draw: Callable[..., Any]) -> rrule:
    """Begun within the last days, or about to."""
    freq = draw(st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY"]))
    names = draw(st.lists(st.sampled_from(sorted(PARTS)), max_size=4, unique=True))
    given = {name: draw(PARTS[name]) for name in names}
    if "count" in given:
        given.pop("until", None)  # dateutil warns of both
    ends = NOW - timedelta(days=9), NOW + timedelta(days=9)
    naive = draw(st.datetimes(*(end.replace(tzinfo=None) for end in ends)))
    try:
        interval = draw(st.integers(1, 8))
        return rrule(freq, naive.replace(tzinfo=UTC), interval=interval, app=APP, **given)
    except ValueError:  # dateutil sees that it has no times
        assume(False)


@settings(max_examples=200, deadline=None)
@given(rules())
def test_the_next_times_are_those_of_dateutils_rule(source: rrule) -> None:
    try:
        keys = when_of(source, APP, NOW).values
    except NotTranslatable:
        event("refused")
        return
    event(next(iter(keys)))
    if fault_of("j", without_defaults({"task": "t", **keys})):
        return  # it never fires, for which dateutil searches until the year 9999
    assert first(ours(keys)) == first(source.rrule.xafter(NOW))
