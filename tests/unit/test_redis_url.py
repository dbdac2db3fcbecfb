"""Addresses of Redis: Sentinels as kombu spells them, and what each library is told of them."""

from __future__ import annotations

import pytest
from celery import Celery

from supervisor.app import (
    broker_address,
    broker_apart,
    redbeat_apart,
    required_settings,
    settings_of,
    supervise,
)
from supervisor.errors import InvalidRedisUrl, RedBeatElsewhere
from supervisor.redis_url import SentinelUrl, is_redis, same_database
from supervisor.settings import Settings

URL = "sentinel://beat:p%40ss@one:26379;sentinel://two/3?master_name=jobs&sentinel_password=s"


def test_an_address_names_sentinels_and_the_servers_they_watch() -> None:
    assert SentinelUrl.parse(URL) == SentinelUrl(
        sentinels=(("one", 26379), ("two", 26379)),
        master_name="jobs",
        username="beat",
        password="p@ss",
        db=3,
        sentinel_password="s",
    )


def test_what_is_written_is_read_again() -> None:
    named = SentinelUrl.parse(URL.replace("two", "[::1]:5000"))
    assert SentinelUrl.parse(str(named)) == named


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sentinel://one:26379", "master_name=NAME"),
        ("sentinel://one:port?master_name=jobs", "is wrong"),
        ("sentinel://one/x?master_name=jobs", "is wrong"),
        ("sentinel://one;redis://two?master_name=jobs", "begins with sentinel://"),
        ("sentinel://:secret@one?master_name=jobs&tls=1", "no option tls"),
    ],
)
def test_a_wrong_address_is_refused_without_its_password(url: str, said: str) -> None:
    with pytest.raises(InvalidRedisUrl, match=said) as refusal:
        SentinelUrl.parse(url)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "other", "are_same"),
    [
        ("redis://h", "redis://user:pw@h:6379/0", True),
        ("redis://h/1", "redis://h", False),
        ("redis://localhost", "redis://127.0.0.1:6379/0", True),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock", False),
        ("redis+socket:///run/r.sock?virtual_host=2", "unix:///run/r.sock?db=2", True),
        ("redis+socket:///run/r.sock", "unix:///run/r.sock?db=2", False),
        ("rediss://h:1/0?ssl_ca_certs=ca.pem", "rediss://h:1", True),
        (URL, "sentinel://one;sentinel://two/4?master_name=jobs", False),
        (URL, "sentinel://:x@two/3;sentinel://one/3?master_name=jobs", True),
        (URL, URL.replace("=jobs", "=other"), False),
        (URL, "redis://one", False),
        ("amqp://h", "redis://h", False),
    ],
)
def test_two_addresses_of_the_same_data_are_told_apart_from_others(
    url: str, other: str, are_same: bool
) -> None:
    assert same_database(url, other) is are_same


def test_every_spelling_of_redis_that_kombu_knows_is_redis() -> None:
    assert all(map(is_redis, [URL, "redis://h", "rediss://h", "redis+socket:///s"]))
    assert not is_redis("amqp://h")


def test_the_apps_broker_by_sentinel_is_the_ledger_too() -> None:
    app = Celery("own", broker="sentinel://:pw@one:26379/2;sentinel://:pw@two:26379/2")
    app.conf.broker_transport_options = {
        "master_name": "jobs",
        "sentinel_kwargs": {"password": "s"},
        "visibility_timeout": 60,
    }
    supervise(app)
    settings = settings_of(app)
    assert settings is not None
    assert settings.redis_url == (
        "sentinel://:pw@one:26379/2;sentinel://:pw@two:26379/2?master_name=jobs&sentinel_password=s"
    )
    assert app.conf.broker_transport_options["visibility_timeout"] == 60


def test_the_ledgers_address_by_sentinel_is_what_kombu_and_redbeat_are_told() -> None:
    app = supervise(Celery("ledgers"), redis_url=URL)
    conf = app.conf
    assert (
        conf.broker_url == "sentinel://beat:p%40ss@one:26379/3;sentinel://beat:p%40ss@two:26379/3"
    )
    assert conf.broker_transport_options["master_name"] == "jobs"
    assert conf.broker_transport_options["sentinel_kwargs"]["password"] == "s"
    assert same_database(broker_address(app), URL)
    assert conf.redbeat_redis_url == "redis-sentinel://"
    told = conf.redbeat_redis_options
    assert (told["sentinels"], told["service_name"], told["username"], told["password"]) == (
        *([("one", 26379), ("two", 26379)], "jobs", "beat", "p@ss"),
    )


def test_a_broker_by_sentinel_without_the_primarys_name_is_refused() -> None:
    app = supervise(Celery("nameless", broker="sentinel://one:26379"))
    with pytest.raises(InvalidRedisUrl, match="master_name=NAME"):
        settings_of(app)


@pytest.mark.parametrize(
    "options",
    [
        {"redbeat_redis_url": "redis://:secret@schedules/1"},
        {"redbeat_redis_url": "redis-cluster://"},
        {
            "redbeat_redis_url": "redis-sentinel://",
            "redbeat_redis_options": {"sentinels": [("one", 26379)], "service_name": "other"},
        },
    ],
)
def test_redbeat_in_another_redis_than_the_ledger_is_refused(options: dict[str, object]) -> None:
    app = Celery("apart", broker="redis://:secret@ledger")
    app.conf.update(options)
    with pytest.raises(RedBeatElsewhere, match=r"is at ledger:6379/0: .* Leave") as refusal:
        required_settings(supervise(app))
    assert "secret" not in str(refusal.value)


def test_redbeats_own_address_of_the_ledgers_redis_is_taken() -> None:
    app = Celery("own", broker="redis://ledger", redbeat_redis_url="redis://:pw@ledger:6379/0")
    assert required_settings(supervise(app)).redis_url == "redis://ledger"
    by_sentinel = Celery("own", redbeat_redis_url="redis-sentinel://")
    by_sentinel.conf.redbeat_redis_options = {
        "sentinels": [("two", "26379"), ("one", 26379)],
        "service_name": "jobs",
        "db": 3,
    }
    required_settings(supervise(by_sentinel, redis_url=URL))


@pytest.mark.parametrize(
    ("broker", "words"),
    [
        (
            "redis://:pw@one:1/2",
            "the app's broker is one:1/2, and the ledger is at jobs of one:26379,two:26379/3",
        ),
        ("amqp://one", None),
        ("sentinel://two;sentinel://one/0?master_name=jobs", None),
    ],
)
def test_a_broker_on_another_server_is_told_of(broker: str, words: str | None) -> None:
    app = supervise(Celery("apart", broker=broker), redis_url=URL)
    assert broker_apart(app, Settings(URL)) == words
    assert redbeat_apart(app, Settings(URL)) is None
