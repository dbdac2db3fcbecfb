"""Addresses of Redis: Sentinels as kombu spells them, and what each library is told of them."""

from __future__ import annotations

import re
import traceback
from inspect import signature
from ssl import CERT_NONE, CERT_REQUIRED, VerifyMode
from typing import Any

import pytest
from celery import Celery
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st
from redbeat.schedulers import ensure_conf, get_redis
from redis import CredentialProvider, Redis, SSLConnection

from supervisor.app import supervise
from supervisor.cli import main
from supervisor.errors import NotConfigured, SupervisorError
from supervisor.sending.app_settings import (
    broker_address,
    broker_apart,
    joined,
    redbeat_apart,
    required_settings,
    settings_of,
)
from supervisor.settings import Settings
from supervisor.store.address import SentinelUrl, is_redis, parsed, same_database
from supervisor.store.connection import Client, connect, server_options

URL = "sentinel://beat:p%40ss@one:26379;sentinel://two/3?master_name=jobs&sentinel_password=s"


def test_an_address_names_sentinels_and_the_servers_they_watch() -> None:
    assert SentinelUrl.parse(URL) == SentinelUrl(
        sentinels=(("one", 26379), ("two", 26379)),
        master_name="jobs",
        server={"username": "beat", "password": "p@ss", "db": 3},
        login={"password": "s"},
    )


def test_what_is_written_is_read_again() -> None:
    named = SentinelUrl.parse(URL.replace("two", "[::1]:5000").replace("=s", "=s%2541"))
    assert SentinelUrl.parse(str(named)) == named


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sentinel://one:26379", "master_name=NAME"),
        ("sentinel://one:port?master_name=jobs", "cannot be read"),
        ("sentinel://one/x?master_name=jobs", "cannot be read"),
        ("sentinel://one;redis://two?master_name=jobs", "begins with sentinel://"),
        ("sentinel://:secret@one?master_name=jobs&tls=1", "no option tls"),
    ],
)
def test_a_wrong_address_is_refused_without_its_password(url: str, message: str) -> None:
    with pytest.raises(NotConfigured, match=message) as refusal:
        SentinelUrl.parse(url)
    assert "secret" not in str(refusal.value)


PASSWORD = st.text("ab0/#?@[]:&=; +", min_size=1)


@given(PASSWORD, st.sampled_from(["redis://{}@h:1/2", "rediss://{}@h/0", "unix://{}@/s?db=1"]))
@example(":12345/two", "redis://{}@h:1/2")
@example("me:12#two", "redis://{}@h:1/2")
@example("me:a@?b=c", "redis://{}@h:1/2")
def test_an_address_is_read_as_it_is_meant_or_refused(password: str, address: str) -> None:
    credentials = password if password.startswith("me:") else f"me:{password}"
    meant = parsed(address.format("me:pw")) | {"password": credentials.removeprefix("me:")}
    try:
        assert parsed(address.format(credentials)) == meant
    except NotConfigured as refusal:
        assert re.search(r"cannot be read: .*write / as %2F", str(refusal))


SECRET = "hunter2"
SAID_BY = [
    f"redis://:{SECRET}/x@one:1/0",
    f"redis://:{SECRET}#x@one:1/0",
    f"redis://:x/{SECRET}@one:1/0",
    f"redis://:[{SECRET}]@one:1/0",
    f"redis://:1\u2100{SECRET}@one:1/0",
    f"redis://one:1/{SECRET}",
    f"redis://one?password={SECRET}&retry_on_timeout=x&{SECRET}=1",
    f"unix://:{SECRET}/x@/run/s",
    f"sentinel://:{SECRET}/x@one/0?master_name=m",
    f"{SECRET}",
]


@pytest.mark.parametrize("url", SAID_BY)
def test_a_wrong_address_is_described_without_it(url: str) -> None:
    with pytest.raises(NotConfigured) as refusal:
        connect(Settings(url))
    texts = "".join(traceback.format_exception(refusal.value))
    assert SECRET not in texts.replace(url, "")
    verb = CliRunner().invoke(main, ["--redis-url", url, "jobs"])
    assert (verb.exit_code, SECRET in verb.output) == (2, False)


def report_of(**settings: Any) -> str:
    app = Celery("told", **settings)
    return str(supervise(app).bugreport()) + repr(settings_of(app))


@pytest.mark.parametrize(
    "settings",
    [
        {"broker": f"redis://me:{SECRET}@one/1"},
        {"broker": f"rediss://:{SECRET}@one/1", "broker_use_ssl": {"ssl_password": SECRET}},
        {"broker": f"unix://:{SECRET}@/run/s?db=1"},
        {"broker": f"redis+socket://:{SECRET}@/run/s?virtual_host=1"},
        {"broker": URL.replace("p%40ss", SECRET).replace("password=s", f"password={SECRET}")},
        {"redbeat_redis_url": f"redis://:{SECRET}@127.0.0.1"},
        {"REDBEAT_REDIS_URL": f"redis://:{SECRET}@127.0.0.1"},
    ],
)
def test_a_report_of_an_app_has_no_password(settings: dict[str, Any]) -> None:
    assert SECRET not in report_of(**settings)


def test_a_report_of_an_app_with_a_wrong_address_has_no_password() -> None:
    app = supervise(Celery("told", broker=f"redis://:{SECRET}/x@one:1/0"))
    assert SECRET not in app.bugreport()


@pytest.mark.parametrize(
    ("settings", "ledger", "told"),
    [
        ({"broker": "rediss://h?ssl_cert_reqs=CERT_NONE"}, {"ssl_cert_reqs": CERT_NONE}, True),
        (
            {"broker": "redis://h:1", "broker_use_ssl": {"ssl_cert_reqs": CERT_NONE}},
            *({"ssl_cert_reqs": CERT_NONE}, True),
        ),
        (
            {"broker": "rediss://h:1", "redbeat_redis_use_ssl": {"ssl_check_hostname": False}},
            *({"ssl_check_hostname": False}, True),
        ),
        (
            {"broker": "redis://h:1", "redbeat_redis_options": {"username": "me", "password": "p"}},
            *({"username": "me", "password": "p"}, False),
        ),
        (
            {"broker": "redis://h?credential_provider=tests.core.store.test_redis_url.Rotating"},
            *({"username": None}, False),
        ),
        ({"broker": "amqp://h", "broker_use_ssl": {"ssl_cert_reqs": CERT_NONE}}, {}, False),
    ],
)
def test_the_ledger_and_redbeat_connect_as_the_app_does(
    settings: dict[str, Any], ledger: dict[str, Any], told: bool
) -> None:
    app = supervise(Celery("connecting", **settings))
    for client in (connect(required_settings(app)), get_redis(app)):
        pool = client.connection_pool
        assert issubclass(pool.connection_class, SSLConnection) is told
        used = {name: pool.connection_kwargs.get(name) for name in ledger}
        assert used == ledger
        provider = pool.connection_kwargs.get("credential_provider")
        assert isinstance(provider, Rotating) is ("provider" in str(settings))


@pytest.mark.parametrize(
    ("address", "checks"),
    [
        ("rediss://h", CERT_REQUIRED),
        ("rediss://h?ssl_cert_reqs=CERT_NONE", CERT_NONE),
        ("rediss://h?ssl_ca_certs=ca&ssl_cert_reqs=required", CERT_REQUIRED),
    ],
)
def test_the_broker_checks_a_certificate_as_the_ledger_does(
    address: str, checks: VerifyMode
) -> None:
    for app in (Celery("own", broker=address), Celery("ledgers")):
        supervise(app, redis_url=address)
        assert app.connection().ssl["ssl_cert_reqs"] == checks


def test_a_broker_has_the_authority_that_redbeat_is_given() -> None:
    own = {"ssl_cert_reqs": CERT_NONE}
    app = supervise(Celery("own", broker="rediss://h", redbeat_redis_use_ssl=own))
    assert app.connection().ssl == own


@pytest.mark.parametrize(
    ("settings", "given", "checks"),
    [
        ({"broker": "rediss://h"}, {}, CERT_NONE),
        ({"broker": "rediss://h?ssl_check_hostname=true"}, {}, CERT_REQUIRED),
        ({"broker": "rediss://h", "redbeat_redis_url": "rediss://h"}, {}, CERT_REQUIRED),
        ({"broker": "rediss://h"}, {"redis_url": "rediss://h"}, CERT_REQUIRED),
        ({"broker": "rediss://h"}, {"redis_url": "rediss://other"}, CERT_REQUIRED),
    ],
)
def test_the_ledger_checks_no_certificate_that_the_app_does_not(
    settings: dict[str, Any], given: dict[str, Any], checks: VerifyMode
) -> None:
    app = supervise(Celery("bare", **settings), **given)
    options = server_options(settings_of(app) or Settings())
    assert options.get("ssl_cert_reqs", CERT_REQUIRED) == checks


@pytest.mark.parametrize(
    "settings",
    [
        {"BROKER_URL": "redis://h:1/2"},
        {"BROKER_HOST": "redis://h:1/2"},
        {"broker_write_url": "redis://h:1/2", "broker_read_url": "redis://replica:1/2"},
        {"BROKER_URL": "amqp://h", "REDBEAT_REDIS_URL": "redis://h:1/2"},
        {"broker_url": "redis://h:1/0", "redbeat_redis_url": "redis://h:1/2"},
        {"broker_url": ["redis://a", "redis://b"], "redbeat_redis_url": "redis://h:1/2"},
    ],
)
def test_the_ledger_is_where_the_app_has_its_redis(settings: dict[str, Any]) -> None:
    before, app = Celery("before"), Celery("spelled")
    for each in (before, app):
        each.config_from_object(type("Module", (), settings))
    assert required_settings(supervise(app)).redis_url == "redis://h:1/2"
    for url in ("broker_url", "broker_read_url", "broker_write_url"):
        assert joined(getattr(app.conf, url)) == joined(getattr(before.conf, url))


APART = {"redis_url": f"redis://:{SECRET}@ledger"}
#: Settings of an app, what supervise() is given, and why that is refused.
REFUSED: list[tuple[dict[str, Any], dict[str, str], str]] = [
    ({"broker_url": f"redis://:{SECRET}/x@one:1/0"}, {}, "cannot be read"),
    ({"broker_url": "redis://one:1;redis://two:1"}, {}, "name it as SUPERVISOR_REDIS_URL"),
    ({"broker_url": "redis://one:6379/0", "task_protocol": 1}, {}, "task_protocol"),
    ({"broker_url": "sentinel://one:26379"}, {}, "master_name=NAME"),
    ({"redbeat_redis_options": {"ssl_cert_reqs": "often"}}, {}, "as none, optional or required"),
    (
        {"redbeat_redis_options": {"credential_provider": "no.such.Class"}},
        {},
        "names no class that",
    ),
    (
        {"redbeat_redis_url": f"redis://:{SECRET}@schedules/1"},
        APART,
        "is at ledger:6379/0: .* Leave",
    ),
    ({"redbeat_redis_url": "redis-cluster://"}, APART, "is at ledger:6379/0: .* Leave"),
    (
        {
            "redbeat_redis_url": "redis-sentinel://",
            "redbeat_redis_options": {"sentinels": [("one", 26379)], "service_name": "other"},
        },
        APART,
        "is at ledger:6379/0: .* Leave",
    ),
]


@pytest.mark.parametrize(("settings", "given", "words"), REFUSED)
def test_settings_that_no_ledger_can_have_are_refused(
    settings: dict[str, Any], given: dict[str, str], words: str
) -> None:
    app = Celery("refused")
    app.conf.update({"broker_url": "redis://h", **settings})
    with pytest.raises(SupervisorError, match=words) as refusal:
        required_settings(supervise(app, **given))
    assert SECRET not in str(refusal.value)


def test_settings_of_a_namespace_are_found() -> None:
    class DjangoSettings:
        CELERY_BROKER_URL = "redis://:pw@ledger/1"
        CELERY_REDBEAT_REDIS_URL = "redis://:pw@other/1"

    app = Celery("django")
    app.config_from_object(DjangoSettings, namespace="CELERY")
    assert required_settings(supervise(app)).redis_url == "redis://:pw@other/1"


def test_settings_that_are_assigned_are_found() -> None:
    """As in apps that are made again with the settings of another; Celery loads none then."""
    made = Celery("made", broker="redis://ledger/1")
    again = Celery("again")
    again.conf = made.conf
    assert supervise(again).conf.redbeat_redis_url == "redis://ledger:6379/1"


def test_settings_that_come_after_supervise_are_found() -> None:
    app = supervise(Celery("later"))
    assert not app.configured
    app.config_from_object({"broker_url": "redis://ledger/1"})
    assert app.conf.redbeat_redis_url == "redis://ledger:6379/1"
    named = supervise(Celery("named", broker="redis://early/1"))
    named.conf.broker_url = "redis://ledger/1"
    assert named.conf.redbeat_redis_url == "redis://ledger:6379/1"


class Rotating(CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        return "me", "today's"


@pytest.mark.parametrize("name", [name for name in vars(Client) if name[0] != "_"])
def test_each_method_of_our_client_is_one_of_redis_py(name: str) -> None:
    if name == "connection_pool":
        return
    ours, theirs = (signature(getattr(client, name)).parameters for client in (Client, Redis))
    if not any(p.kind is p.VAR_KEYWORD for p in theirs.values()):
        named = [p.name for p in ours.values() if p.kind is p.KEYWORD_ONLY]
        assert set(named) <= set(theirs), "given by name"


@pytest.mark.parametrize("url", ["redis://h?colour=red", "sentinel://h?master_name=m&ssl_red=1"])
def test_options_that_no_connection_has_are_refused(url: str) -> None:
    with pytest.raises(NotConfigured, match="an option that redis-py does not know"):
        connect(Settings(url))


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


@pytest.mark.parametrize(
    "urls",
    [
        ["amqp://one//", "amqp://two//"],
        ["sentinel://one:26379/0", "sentinel://two:26379/0"],
        ["redis://one:6379/0"],
    ],
    ids=lambda urls: urls[0],
)
def test_several_addresses_of_a_broker_are_tried_in_turn(urls: list[str]) -> None:
    app = Celery("several")
    app.conf.broker_url = urls
    app.conf.broker_transport_options = {"master_name": "jobs"}
    supervise(app)
    connection = app.connection()
    assert connection.hostname == "one"
    assert list(connection.alt or urls) == urls
    settings = settings_of(app)
    assert settings is not None
    assert ("one" in settings.redis_url) == ("amqp" not in urls[0])


def test_kombu_and_redbeat_get_the_ledgers_address_by_sentinel() -> None:
    app = supervise(Celery("ledgers"), redis_url=URL)
    conf = app.conf
    assert (
        conf.broker_url == "sentinel://beat:p%40ss@one:26379/3;sentinel://beat:p%40ss@two:26379/3"
    )
    assert conf.broker_transport_options["master_name"] == "jobs"
    assert conf.broker_transport_options["sentinel_kwargs"]["password"] == "s"
    assert same_database(broker_address(app.conf), URL)
    assert conf.redbeat_redis_url == "redis-sentinel://"
    told = conf.redbeat_redis_options
    assert (told["sentinels"], told["service_name"], told["username"], told["password"]) == (
        *([("one", 26379), ("two", 26379)], "jobs", "beat", "p@ss"),
    )


def test_redbeats_own_address_of_the_ledgers_redis_is_taken() -> None:
    app = Celery("own", broker="redis://ledger", redbeat_redis_url="redis://:pw@ledger:6379/0")
    supervise(app, redis_url="redis://ledger")
    assert required_settings(app).redis_url == "redis://ledger"
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


@pytest.mark.parametrize(
    "prefix", ["", "it's", "a b", "a'..redis.call('x')..'", "ä", "a" * 101, "*"]
)
def test_a_prefix_that_is_not_plain_is_refused(prefix: str) -> None:
    with pytest.raises(NotConfigured, match="cannot be the prefix of the ledger's keys: it has"):
        Settings(prefix=prefix)


def test_a_prefix_of_its_own_gives_redbeat_one_too() -> None:
    default, own, chosen = (
        supervise(Celery("one")),
        supervise(Celery("two"), prefix="a-b"),
        supervise(Celery("three", redbeat_key_prefix="mine:"), prefix="a-b"),
    )
    prefixes = [ensure_conf(app).key_prefix for app in (default, own, chosen)]
    assert prefixes == ["redbeat:", "a-b:redbeat:", "mine:"]
    assert ensure_conf(own).lock_key == "a-b:redbeat::lock"
