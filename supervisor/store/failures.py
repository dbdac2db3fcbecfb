"""What the errors of Redis mean: whether to try again, and what to do about them."""

from __future__ import annotations

import re

import redis
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterCrossSlotError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

__all__ = [
    "UNREACHABLE",
    "RedisError",
    "ResponseError",
    "may_pass",
]


class HandshakeUnanswered(RedisError):
    """The server did not answer a TLS handshake in time; a client does not try that again."""


#: The server cannot be reached, or takes no writes after a failover. Scripts are idempotent, so a
#: caller may try again.
UNREACHABLE = (
    HandshakeUnanswered,
    RedisConnectionError,
    RedisTimeoutError,
    redis.exceptions.BusyLoadingError,
    ReadOnlyError,
)

#: Errors of a server that is reachable and refuses for now: out of memory, cut off from its
#: primary, forbidden by its operators. redis-py has classes for some of them.
NOT_NOW = (
    redis.exceptions.OutOfMemoryError,
    MasterDownError,
    NoPermissionError,
)
NOT_NOW_CODES = ("BUSY", "MISCONF", "NOREPLICAS", "ACL failure")


def may_pass(error: Exception) -> bool:
    """Whether the same call may succeed later: the fault is not in what it asks for."""
    return isinstance(error, (*UNREACHABLE, *NOT_NOW)) or str(error).startswith(NOT_NOW_CODES)


def refuses_writes(error: Exception) -> bool:
    """Whether the server takes no writes from any client now, and may still be read: its disk or
    its memory is full, it lacks replicas, or it is one."""
    refusals = (redis.exceptions.OutOfMemoryError, ReadOnlyError, NotWritable)
    return isinstance(error, refusals) or str(error).startswith(("MISCONF", "NOREPLICAS"))


class NotServed(ResponseError):
    """The server is of a kind that the ledger does not support, or not with this address."""


CLUSTER = (
    "this is a node of a Redis Cluster, and a ledger is on one server, which Sentinel may watch"
    " (docs/how-to/redis.md)"
)

NO_FUNCTIONS = (
    "this server has no Redis Functions, and the ledger needs them: Redis 7 or later, or Valkey"
    " (docs/how-to/redis.md)"
)

#: Errors of a cluster's nodes to a client of one server.
CLUSTER_ERRORS = (AskError, ClusterDownError, ClusterCrossSlotError, TryAgainError)
CLUSTER_WORDS = ("cluster mode", "cluster node", "hash to the same slot")

#: How Redis and Valkey word a command that the ACL forbids; it differs by version.
FORBIDDEN = re.compile("ACL failure|user executing the script")

PLAIN_PORT = "redis:// in place of rediss:// if it does not talk TLS on that port"

#: What OpenSSL and Redis say, and what to do about it.
HINTS = {
    "CERTIFICATE_VERIFY_FAILED": "the certificate has to be for this host, by an authority whose"
    " file ssl_ca_certs names; ssl_cert_reqs=none has nothing checked: docs/how-to/redis.md",
    "WRONG_VERSION_NUMBER": "the server talks no TLS on that port: redis:// in place of rediss://",
    "max number of clients": "raise maxclients of Redis, or end what keeps its connections open",
}


NOT_REACHED = (
    "is Redis, or `supervisor up`, running? Without -A and SUPERVISOR_REDIS_URL, the address is"
    " that of Redis on this machine"
)


def explained(error: Exception) -> str:
    """What went wrong, and what to do about it, in one sentence."""
    text = str(error)
    match error:
        case NotServed():
            return text
        case NoPermissionError():
            needed = "docs/how-to/redis.md has what each user needs"
            return f"Redis forbids it to this user: {text} ({needed})"
        case AuthenticationError():
            return (
                f"Redis does not let us in: {text} (look at the user and password in its address)"
            )
        case ResponseError() if is_of_cluster(error):
            return CLUSTER
        case HandshakeUnanswered():
            return f"the ledger is unavailable: {text} ({PLAIN_PORT})"
        case ResponseError() | NotWritable():
            return f"Redis refuses {'writes' if refuses_writes(error) else 'it'}: {text}"
        case _:
            hints = (hint for words, hint in HINTS.items() if words in text)
            hint = next(hints, NOT_REACHED)
            return f"the ledger is unavailable: {text} ({hint})"


def is_of_cluster(error: ResponseError) -> bool:
    return (isinstance(error, CLUSTER_ERRORS) and not isinstance(error, MasterDownError)) or any(
        words in str(error) for words in CLUSTER_WORDS
    )


def is_of_server_without_functions(error: ResponseError) -> bool:
    return re.match(r"unknown command ['`]?(FCALL|FUNCTION)\b", str(error), re.I) is not None


def is_of_rights(error: ResponseError) -> bool:
    """Whether a function called what this user may not; redis-py has a class for commands alone."""
    return FORBIDDEN.search(str(error)) is not None


class NotWritable(RedisConnectionError):
    """The server takes no writes: it lacks replicas (`min-replicas-to-write`), or is one itself."""

    CODES = ("NOREPLICAS", "READONLY")
