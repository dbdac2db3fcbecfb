"""The app's settings of the broker, of RedBeat and of the ledger, brought to agree with each other.

Celery's transport and RedBeat each spell Redis addresses, Sentinels above all, in their own way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from ssl import CERT_NONE, CERT_REQUIRED
from typing import Any

from celery import Celery
from celery.app.defaults import DEFAULTS

from supervisor.errors import NotConfigured
from supervisor.settings import DEFAULT_PREFIX, DEFAULT_URL, Settings
from supervisor.store.address import (
    SENTINEL,
    SERVER,
    SOCKETS,
    SentinelUrl,
    database_of,
    has_same_server,
    in_kombus_spelling,
    is_redis,
    parsed,
    tls_of,
    without_credentials,
)
from supervisor.store.connection import SENTINEL_TIMEOUT_SECONDS, connect, server_options

SEVERAL = (
    "the app's broker has several addresses of Redis, and the ledger has one: name it as"
    " SUPERVISOR_REDIS_URL, or as redis_url of supervise()"
)

BROKER_VARIABLE = "CELERY_BROKER_URL"

#: The `redbeat_redis_options` that are for RedBeat itself and not for a connection.
REDBEAT_INTERNAL_OPTIONS = frozenset(
    ("retry_period", "cluster", "sentinels", "service_name", "sentinel_kwargs", "startup_nodes")
)

#: In place of an address that cannot be read.
UNREADABLE = "redis://address-cannot-be-read.invalid/0"

#: What runs need of their worker, which sets it; an app's own value stays, and the worker says so.
NEEDED = {
    # A run that a busy worker has fetched would wait for the one before it, for nothing.
    "worker_prefetch_multiplier": 1,
    # A healthy run must not be killed because the broker's connection was lost.
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    # A channel error ends the worker by default (celery#6760). Redis causes one by refusing a
    # worker's pop, as a server without replicas does; RabbitMQ by closing the channel of a worker
    # that has not acknowledged a message within consumer_timeout.
    "broker_channel_error_retry": True,
}

#: A Redis that hangs must not hang the caller.
TIMEOUTS = {"socket_timeout": 5, "socket_connect_timeout": 2}


def address_of(broker_url: str, transport_options: Mapping[str, Any] | None) -> str:
    """A broker's address with what its options say of Sentinels. Raises NotConfigured."""
    if not broker_url.startswith(SENTINEL):
        return broker_url
    options = transport_options or {}
    login = options.get("sentinel_kwargs") or {}
    named = {
        "master_name": options.get("master_name"),
        "sentinel_username": login.get("username"),
        "sentinel_password": login.get("password"),
    }
    return str(SentinelUrl.parse(broker_url, named))


def broker_url_of(conf: Any) -> str:
    """Where the app sends messages; several addresses are joined with ; as kombu has them too."""
    return joined(conf.broker_write_url)


def joined(addresses: str | Sequence[str] | None) -> str:
    return addresses if isinstance(addresses, str) else ";".join(addresses or ())


def broker_address(conf: Any) -> str:
    """The app's broker, spelled as the ledger's address is. Raises NotConfigured."""
    return address_of(broker_url_of(conf), conf.get("broker_transport_options"))


def adjust_for_runs(conf: Any) -> None:
    """Sets what runs need in their worker, where the app has Celery's defaults."""
    for name, needed in NEEDED.items():
        if conf.get(name) == DEFAULTS[name]:
            setattr(conf, name, needed)


def adjust_broker(conf: Any) -> None:
    """Sets the broker's address in kombu's spelling, and moves the rest to kombu's options."""
    broker_url = broker_url_of(conf)
    if broker_url.startswith(SENTINEL):
        given = conf.get("broker_transport_options") or {}
        named = SentinelUrl.parse(address_of(broker_url, given))
        conf.broker_transport_options = {
            "master_name": named.master_name,
            "sentinel_kwargs": sentinel_options(named),
            **given,
        }
        if (tls := tls_of(named.server)) and not conf.get("broker_use_ssl"):
            conf.broker_use_ssl = {k: v for k, v in tls.items() if k != "ssl"}
        spelled = named.without_options
    else:
        if is_redis(broker_url):
            for each in broker_url.split(";"):
                parsed(each)
        spelled = in_kombus_spelling(broker_url)
    if joined(conf.broker_url) == broker_url:
        set_broker(conf, spelled)


def has_unchecked_broker(conf: Any) -> bool:
    """Whether kombu takes any certificate of the broker: its address says TLS, and nothing more."""
    url = broker_url_of(conf)
    return url.startswith("rediss://") and "ssl_" not in url and not conf.get("broker_use_ssl")


def check_certificate(conf: Any, settings: Settings) -> None:
    """Verifies the certificate of a broker that is the ledger's server, where the ledger's is.

    It is done as for the ledger, which knows the authority.
    """
    if has_unchecked_broker(conf) and has_same_server(broker_url_of(conf), settings.redis_url):
        tls = {k: v for k, v in server_options(settings).items() if k.startswith("ssl_")}
        if tls != {"ssl_cert_reqs": CERT_NONE}:
            conf.broker_use_ssl = {"ssl_cert_reqs": CERT_REQUIRED, **tls}


def set_broker(conf: Any, url: str) -> None:
    conf.broker_url = url
    if os.environ.get(BROKER_VARIABLE):
        os.environ[BROKER_VARIABLE] = url  # Celery reads it before its own settings


def addresses_of(url: str) -> list[str]:
    """The addresses that kombu tries in turn; Sentinels together are one."""
    return [url] if url.startswith(SENTINEL) else url.split(";")


def hide_unreadable(conf: Any) -> None:
    """Replaces addresses that cannot be read: Celery would quote them, passwords and all."""
    for url, put in (
        (broker_url_of(conf), set_broker),
        (redbeat_address(conf), lambda conf, url: setattr(conf, "redbeat_redis_url", url)),
    ):
        if is_redis(url) and None in map(database_of, addresses_of(url)):
            put(conf, UNREADABLE)


def setting(conf: Any, name: str) -> Any:
    """One of RedBeat's settings, in lower or upper case, as RedBeat finds it."""
    return conf.first(name, name.upper())


#: RedBeat's default, which the ledger with the default prefix leaves unchanged.
REDBEAT_PREFIX = "redbeat:"


def own_redbeat_prefix(prefix: str) -> str:
    """What RedBeat's keys begin with next to the ledger's: lock, schedule, entries.

    prefix: the ledger's.
    """
    return REDBEAT_PREFIX if prefix == DEFAULT_PREFIX else f"{prefix}:{REDBEAT_PREFIX}"


def separate_redbeat(conf: Any, settings: Settings) -> None:
    """Gives each ledger of a database RedBeat's keys of its own, unless the app names others."""
    if not setting(conf, "redbeat_key_prefix") and settings.prefix != DEFAULT_PREFIX:
        conf.redbeat_key_prefix = own_redbeat_prefix(settings.prefix)


def redbeat_address(conf: Any) -> str:
    """Where RedBeat keeps its schedule, spelled as the ledger's address is."""
    url = str(setting(conf, "redbeat_redis_url") or "")
    own = setting(conf, "redbeat_redis_options") or conf.get("broker_transport_options") or {}
    if not url.startswith("redis-sentinel"):
        return url
    sentinels = tuple((str(host), int(port)) for host, port in own.get("sentinels", ()))
    named = SentinelUrl(
        sentinels,
        own.get("service_name", "master"),
        {name: own[name] for name in SERVER if own.get(name)},
    )
    return str(named)


def connection_of(conf: Any, url: str) -> dict[str, Any]:
    """The app's options, other than the address, for connections to the Redis at `url`."""
    ours: dict[str, Any] = {}
    for options in (conf.get("broker_transport_options"), setting(conf, "redbeat_redis_options")):
        if url.startswith(SENTINEL) and (options or {}).get("sentinel_kwargs"):
            ours["sentinel_kwargs"] = options["sentinel_kwargs"]
    for address, tls in (
        (broker_address(conf), conf.get("broker_use_ssl")),
        (redbeat_address(conf), setting(conf, "redbeat_redis_use_ssl")),
    ):
        if isinstance(tls, Mapping) and has_same_server(address or url, url):
            ours |= tls
    own = setting(conf, "redbeat_redis_options") or {}
    return ours | {k: v for k, v in own.items() if k not in REDBEAT_INTERNAL_OPTIONS}


def adjust_redbeat(app: Any, conf: Any, settings: Settings) -> None:
    """Gives RedBeat the ledger's Redis where the app names none, and a client made as the ledger's.

    RedBeat before 2.4 would leave most options out of its connection. User and password go into the
    options, which Celery hides where it shows settings.
    """
    own = setting(conf, "redbeat_redis_options") or {}
    url = str(setting(conf, "redbeat_redis_url") or "")
    if url and not url.startswith(("redis://", "rediss://", *SOCKETS)):
        return
    if url and database_of(url) not in (None, database_of(settings.redis_url)):
        return  # `redbeat_apart` says so where it matters
    if not url and settings.redis_url.startswith(SENTINEL):
        named = SentinelUrl.parse(settings.redis_url)
        shown = "redis-sentinel://"
        rest = {
            "sentinels": list(named.sentinels),
            "service_name": named.master_name,
            **{name: named.server[name] for name in SERVER if name in named.server},
            "sentinel_kwargs": {
                **sentinel_options(named),
                **settings.connection.get("sentinel_kwargs", {}),
            },
        }
    else:
        settings = replace(settings, redis_url=url or settings.redis_url)
        shown, rest = without_credentials(server_options(settings))
    conf.redbeat_redis_url = shown
    conf.redbeat_redis_options = {**TIMEOUTS, **rest, **own}
    if conf.get("REDBEAT_REDIS_URL"):
        conf.REDBEAT_REDIS_URL = shown
    app.redbeat_redis = connect_for_redbeat(settings, own)


def connect_for_redbeat(settings: Settings, own: Mapping[str, Any]) -> Any:
    """own: the app's `redbeat_redis_options`."""
    client = connect(settings)
    if own.get("retry_period") is None:
        return client
    from redbeat.schedulers import RetryingConnection

    return RetryingConnection(own["retry_period"], client)


def sentinel_options(named: SentinelUrl) -> dict[str, Any]:
    login = {**named.login, **tls_of(named.server)}
    return {"socket_timeout": SENTINEL_TIMEOUT_SECONDS, **login}


def settings_of(app: Celery, url: str | None = None) -> Settings | None:
    """The ledger of a supervised app; None for an app that is not supervised.

    url: in place of the app's own address of it. Raises NotConfigured.
    """
    given: Mapping[str, Any] | None = getattr(app, "supervisor", None)
    return None if given is None else settings_from(app.conf, given, url)


def settings_from(conf: Any, given: Mapping[str, Any], url: str | None = None) -> Settings:
    """The ledger's address is the one that is given, else RedBeat's, else the broker's.

    A certificate that kombu does not check, the ledger does not check either; RedBeat and redis-py
    check that of an address which they are given.
    """
    is_unchecked = has_unchecked_broker(conf)  # the first setting that is read completes `given`
    if error := given.get("unreadable"):
        raise error
    named = url or given["redis_url"] or given.get("redbeat")
    url = named or ledger_in_broker(conf)
    connection = connection_of(conf, url)
    if is_unchecked and not named and not tls_of(connection):
        connection["ssl_cert_reqs"] = CERT_NONE
    return Settings(redis_url=url, prefix=given["prefix"], connection=connection)


def ledger_in_broker(conf: Any) -> str:
    """Raises NotConfigured for a broker of several addresses."""
    if not is_redis(broker_url_of(conf)):
        return DEFAULT_URL
    url = broker_address(conf)
    if len(addresses_of(url)) > 1:
        raise NotConfigured(SEVERAL)
    return url


def owner_of(app: Celery) -> str:
    """The name by which the ledger knows the app; two deployments of it may differ by
    `global_keyprefix` alone."""
    if owner := getattr(app, "supervisor", {}).get("owner"):
        return str(owner)
    options = app.conf.get("broker_transport_options") or {}
    return f"{options.get('global_keyprefix') or ''}{app.main or 'unnamed'}"


def identity_of(app: Celery, prefix: str) -> list[str]:
    """How the messages of its runs name a ledger. prefix: of its keys."""
    return [prefix, owner_of(app)]


def required_settings(app: Celery) -> Settings:
    """Raises NotConfigured for an app that is not supervised, sends by Celery 3's protocol, or has
    its RedBeat in another Redis."""
    settings = settings_of(app)
    if settings is None:
        raise NotConfigured("this Celery app is not supervised: call supervise(app)")
    if app.conf.task_protocol != DEFAULTS["task_protocol"]:  # its messages lack our headers
        raise NotConfigured(
            f"task_protocol={app.conf.task_protocol!r} cannot carry runs: leave it out of the app's"
            " settings (docs/reference/settings.md)"
        )
    if apart := redbeat_apart(app, settings):
        raise NotConfigured(apart)
    return settings


def redbeat_apart(app: Celery, settings: Settings) -> str | None:
    """In words, that the app's RedBeat keeps its schedule in another Redis."""
    redbeat, ledger = database_of(redbeat_address(app.conf)), database_of(settings.redis_url)
    if not ledger or redbeat == ledger:
        return None
    return (
        f"redbeat_redis_url leads to {redbeat or 'no Redis that is known here'}, and the ledger is"
        f" at {ledger}: both must be the same database, or beat never finds its jobs. Leave"
        " redbeat_redis_url out, because supervise() sets it; or give both one address"
        " (docs/reference/settings.md)"
    )


def broker_apart(app: Celery, settings: Settings) -> str | None:
    """A sentence if the app's broker is another Redis server than the ledger's; else None."""
    broker, ledger = database_of(broker_address(app.conf)), database_of(settings.redis_url)
    if broker is None or ledger is None or broker.server == ledger.server:
        return None
    return f"the app's broker is {broker}, and the ledger is at {ledger}"


def schedules_of(app: Celery) -> Path | None:
    """The directory of schedule files that beat follows."""
    schedules = getattr(app, "supervisor", {}).get("schedules")
    return Path(schedules) if schedules else None
