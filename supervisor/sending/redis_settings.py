"""What Celery's broker and RedBeat are told of a Redis: each spells Sentinels in its own way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from supervisor.ledger.connection import SENTINEL_PATIENCE_SECONDS
from supervisor.redis_url import SENTINEL, SentinelUrl

#: A Redis that hangs must not hang who asks.
PATIENCE = {"socket_timeout": 5, "socket_connect_timeout": 2}


def address_of(broker_url: str, transport_options: Mapping[str, Any] | None) -> str:
    """A broker's address with what its options say of Sentinels. Raises InvalidRedisUrl."""
    if not broker_url.startswith(SENTINEL):
        return broker_url
    options = transport_options or {}
    asked = options.get("sentinel_kwargs") or {}
    told = {
        "master_name": options.get("master_name"),
        "sentinel_username": asked.get("username"),
        "sentinel_password": asked.get("password"),
    }
    return str(SentinelUrl.parse(broker_url, told))


def settle_broker(conf: Any) -> None:
    """Moves what a broker's address says beside kombu's spelling into its transport options."""
    broker_url = str(conf.broker_url or "")
    if not broker_url.startswith(SENTINEL):
        return
    given = conf.get("broker_transport_options") or {}
    named = SentinelUrl.parse(address_of(broker_url, given))
    conf.broker_url = named.without_options
    conf.broker_transport_options = {
        "master_name": named.master_name,
        "sentinel_kwargs": sentinel_options(named),
        **given,
    }


def redbeat_address(conf: Any) -> str:
    """Where RedBeat keeps its schedule, spelled as the ledger's address is."""
    url = str(conf.get("redbeat_redis_url") or "")
    if not url.startswith("redis-sentinel"):
        return url
    told = conf.get("redbeat_redis_options") or conf.get("broker_transport_options") or {}
    sentinels = tuple((str(host), int(port)) for host, port in told.get("sentinels", ()))
    return str(SentinelUrl(sentinels, told.get("service_name", "master"), db=told.get("db", 0)))


def settle_redbeat(conf: Any, url: str) -> None:
    if not url.startswith(SENTINEL):
        conf.redbeat_redis_url, conf.redbeat_redis_options = url, dict(PATIENCE)
        return
    named = SentinelUrl.parse(url)
    conf.redbeat_redis_url = "redis-sentinel://"
    conf.redbeat_redis_options = {
        "sentinels": list(named.sentinels),
        "service_name": named.master_name,
        "username": named.username,
        "password": named.password,
        "db": named.db,
        "sentinel_kwargs": sentinel_options(named),
        **PATIENCE,
    }


def sentinel_options(named: SentinelUrl) -> dict[str, Any]:
    return {"socket_timeout": SENTINEL_PATIENCE_SECONDS, **named.sentinel_credentials}
