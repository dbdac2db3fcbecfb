"""Clients of the ledger's server. Every call has a time-out: nothing of ours hangs for ever."""

from __future__ import annotations

import socket
from typing import Any

import redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from redis.sentinel import Sentinel

from supervisor.errors import InvalidRedisUrl
from supervisor.redis_url import SENTINEL, SentinelUrl
from supervisor.settings import Settings

#: A redis.Redis that decodes its replies, which redis-py's own types cannot express.
Client = Any

#: What a caller catches to mean "the server is away", or takes no writes after a failover; scripts
#: are idempotent, so it may try again.
Unavailable = (
    *(RedisConnectionError, RedisTimeoutError),
    *(redis.exceptions.BusyLoadingError, ReadOnlyError),
)

#: A sentinel that does not answer within this is passed over: it may be gone with the primary.
SENTINEL_PATIENCE_SECONDS = 0.5

TIMEOUT_SECONDS = 5
HEARTBEAT_TIMEOUT_SECONDS = 2

#: Of a call for an answer of `supervisor serve`, which must be out before a scrape is given up.
ANSWER_TIMEOUT_SECONDS = 2

__all__ = [
    "Client",
    "RedisError",
    "Unavailable",
    "connect",
    "connect_for_answers",
    "connect_for_heartbeat",
    "may_pass",
]

#: What a server says that could answer, and will not as it is: out of memory, cut off from its
#: primary, forbidden by its people. redis-py has classes for some of it.
NOT_NOW = (
    *(redis.exceptions.OutOfMemoryError, redis.exceptions.ClusterDownError),
    *(redis.exceptions.TryAgainError, redis.exceptions.NoPermissionError),
)
NOT_NOW_CODES = ("BUSY", "MISCONF", "NOREPLICAS", "ACL failure")


def may_pass(error: Exception) -> bool:
    """Whether the same call may succeed later: the fault is not in what it asks for."""
    return isinstance(error, (*Unavailable, *NOT_NOW)) or str(error).startswith(NOT_NOW_CODES)


class NotWritable(RedisConnectionError):
    """The server takes no writes: it lacks replicas (`min-replicas-to-write`), or is one itself."""

    CODES = ("NOREPLICAS", "READONLY")


def connect(settings: Settings, *, retries: int = 3) -> Client:
    """A client for beat, workers and commands; about a second of retries by default.

    Raises InvalidRedisUrl.
    """
    return _client(
        settings.redis_url,
        decode_responses=True,
        socket_timeout=TIMEOUT_SECONDS,
        socket_connect_timeout=2,
        retry=Retry(ExponentialBackoff(cap=1, base=0.05), retries),
        health_check_interval=30,
        **given_up_after(TIMEOUT_SECONDS, settings),
    )


def connect_for_heartbeat(settings: Settings) -> Client:
    """No retries and short time-outs: a renewal that comes late must say so, not insist."""
    return _client(
        settings.redis_url,
        decode_responses=True,
        socket_timeout=HEARTBEAT_TIMEOUT_SECONDS,
        socket_connect_timeout=1,
        retry=Retry(NoBackoff(), 0),
        **given_up_after(HEARTBEAT_TIMEOUT_SECONDS, settings),
    )


def connect_for_answers(settings: Settings, client_class: type[Any]) -> Client:
    """Short time-outs; a call is made again where the server has closed its connection only.

    client_class: redis.Redis, or made of it. Raises InvalidRedisUrl.
    """
    return _client(
        settings.redis_url,
        client_class,
        decode_responses=True,
        socket_timeout=ANSWER_TIMEOUT_SECONDS,
        socket_connect_timeout=1,
        retry=Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
        **given_up_after(ANSWER_TIMEOUT_SECONDS, settings),
    )


def given_up_after(seconds: int, settings: Settings) -> dict[str, Any]:
    """Options with which the kernel, too, gives up a call that was.

    Delivered when a link is back, it would be a sign of life of somebody who may be dead by then,
    or tell of an end that was long ago as if it were now.
    """
    if not hasattr(socket, "TCP_USER_TIMEOUT") or settings.redis_url.startswith("unix"):
        return {}
    unacknowledged = {socket.TCP_USER_TIMEOUT: 1000 * seconds}
    return {"socket_keepalive": True, "socket_keepalive_options": unacknowledged}


def _client(url: str, client_class: type[Any] = redis.Redis, **options: Any) -> Client:
    if not url.startswith(SENTINEL):
        try:
            return client_class.from_url(url, **options)
        except ValueError as error:
            raise InvalidRedisUrl(str(error)) from error
    named = SentinelUrl.parse(url)
    sentinels: Client = Sentinel(  # type: ignore[no-untyped-call]
        named.sentinels,
        sentinel_kwargs={
            "socket_timeout": SENTINEL_PATIENCE_SECONDS,
            "retry": Retry(NoBackoff(), 0),
            **named.sentinel_credentials,
        },
        username=named.username,
        password=named.password,
        db=named.db,
        **options,
    )
    return sentinels.master_for(named.master_name, redis_class=client_class)
