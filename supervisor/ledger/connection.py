"""Clients of the ledger's server. Every call has a time-out: nothing of ours hangs for ever."""

from __future__ import annotations

import socket
from typing import Any

import redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from supervisor.errors import WrongSchema
from supervisor.settings import Settings

#: A redis.Redis that decodes its replies, which redis-py's own types cannot express.
Client = Any

#: What a caller catches to mean "the server is away"; scripts are idempotent, so it may try again.
Unavailable = (RedisConnectionError, RedisTimeoutError, redis.exceptions.BusyLoadingError)

#: The same for who has a run at work, and one case more: another version has taken the ledger over.
OutOfReach = (*Unavailable, WrongSchema)

HEARTBEAT_TIMEOUT_SECONDS = 2

__all__ = ["Client", "OutOfReach", "RedisError", "Unavailable", "connect", "connect_for_heartbeat"]


def connect(settings: Settings, *, retries: int = 3) -> Client:
    """A client for beat, workers and commands; about a second of retries by default."""
    return redis.Redis.from_url(
        settings.redis_url,
        decode_responses=True,
        socket_timeout=5,
        socket_connect_timeout=2,
        retry=Retry(ExponentialBackoff(cap=1, base=0.05), retries),
        health_check_interval=30,
    )


def connect_for_heartbeat(settings: Settings) -> Client:
    """No retries and short time-outs: a renewal that comes late must say so, not insist.

    Nor may the kernel insist on one that was given up: delivered when a link is back, it would be a
    sign of life of somebody who may be dead by then.
    """
    options: dict[str, Any] = {}
    if hasattr(socket, "TCP_USER_TIMEOUT") and not settings.redis_url.startswith("unix"):
        unacknowledged = {socket.TCP_USER_TIMEOUT: 1000 * HEARTBEAT_TIMEOUT_SECONDS}
        options = {"socket_keepalive": True, "socket_keepalive_options": unacknowledged}
    return redis.Redis.from_url(
        settings.redis_url,
        decode_responses=True,
        socket_timeout=HEARTBEAT_TIMEOUT_SECONDS,
        socket_connect_timeout=1,
        retry=Retry(NoBackoff(), 0),
        **options,
    )
