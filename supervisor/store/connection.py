"""Clients of the ledger's server. Every call has a time-out: nothing of ours hangs for ever."""

from __future__ import annotations

import socket
from collections.abc import Container, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from ssl import PROTOCOL_TLS_CLIENT, SSLContext, SSLSocket
from typing import Any, Literal, Protocol, cast, overload

import redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.client import Pipeline
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from supervisor.errors import NotConfigured
from supervisor.settings import Settings
from supervisor.store.address import SENTINEL, SOCKETS, SentinelUrl, parsed, tls_of, understood
from supervisor.store.failures import (
    CLUSTER,
    NO_FUNCTIONS,
    HandshakeUnanswered,
    NotServed,
    ResponseError,
    is_of_server_without_functions,
)

Value = str | int | float


class Client(Protocol):
    """What is used of a redis.Redis that decodes its replies, which its own types cannot say."""

    @property
    def connection_pool(self) -> redis.ConnectionPool: ...
    def close(self) -> None: ...
    def pipeline(self, transaction: bool = True) -> Pipeline: ...
    def execute_command(self, *args: Value, **options: bool) -> Any: ...
    def config_get(self, pattern: str) -> Mapping[str, str]: ...
    def info(self, section: str) -> Mapping[str, Any]: ...
    def time(self) -> tuple[int, int]: ...

    def eval(self, script: str, numkeys: int, *keys_and_args: Value) -> Any: ...
    def fcall(self, function: str, numkeys: int, *keys_and_args: Value) -> Any: ...
    def function_load(self, code: str, replace: bool) -> str: ...
    def function_list(self, library: str) -> list[Any]: ...
    def function_delete(self, library: str) -> object: ...

    def delete(self, *names: str) -> int: ...
    def scan_iter(self, *, match: str, count: int) -> Iterator[str]: ...
    def get(self, name: str) -> str | None: ...
    def mget(self, keys: Sequence[str]) -> list[str | None]: ...
    def set(self, name: str, value: Value, *, px: int) -> object: ...

    def hget(self, name: str, key: str) -> str | None: ...
    def hgetall(self, name: str) -> dict[str, str]: ...
    def hexists(self, name: str, key: str) -> bool: ...
    def hkeys(self, name: str) -> list[str]: ...
    def hlen(self, name: str) -> int: ...
    def hscan_iter(self, name: str, *, count: int) -> Iterator[tuple[str, str]]: ...
    def hmget(self, name: str, keys: Sequence[str]) -> list[str | None]: ...
    def hdel(self, name: str, *keys: str) -> int: ...
    def hincrby(self, name: str, key: str, amount: int) -> int: ...
    def hsetnx(self, name: str, key: str, value: Value) -> int: ...
    def hset(
        self,
        name: str,
        key: str | None = None,
        value: Value | None = None,
        *,
        mapping: Mapping[str, Value] | None = None,
    ) -> int: ...

    def llen(self, name: str) -> int: ...
    def lrange(self, name: str, start: int, end: int) -> list[str]: ...
    def lrem(self, name: str, count: int, value: str) -> int: ...
    def smembers(self, name: str) -> Set[str]: ...
    def scard(self, name: str) -> int: ...
    def sadd(self, name: str, *values: str) -> int: ...
    def srem(self, name: str, *values: str) -> int: ...
    def xrange(
        self, name: str, *, min: str, count: int | None = None
    ) -> list[tuple[str, dict[str, str]]]: ...
    def xrevrange(self, name: str, *, max: str, count: int) -> list[tuple[str, dict[str, str]]]: ...

    def zadd(
        self, name: str, mapping: Mapping[str, float], *, xx: bool = ..., nx: bool = ...
    ) -> object: ...
    def zrem(self, name: str, *values: str) -> int: ...
    def zscore(self, name: str, value: str) -> float | None: ...
    def zrevrange(self, name: str, start: int, end: int) -> list[str]: ...
    def zcard(self, name: str) -> int: ...
    @overload
    def zrange(self, name: str, start: int, end: int) -> list[str]: ...
    @overload
    def zrange(
        self, name: str, start: int, end: int, *, withscores: Literal[True]
    ) -> list[tuple[str, float]]: ...
    @overload
    def zrangebyscore(
        self, name: str, min: Value, max: Value, start: int | None = None, num: int | None = None
    ) -> list[str]: ...
    @overload
    def zrangebyscore(
        self,
        name: str,
        min: Value,
        max: Value,
        start: int | None = None,
        num: int | None = None,
        *,
        withscores: Literal[True],
    ) -> list[tuple[str, float]]: ...


#: For the server's part of a TLS handshake. A port without TLS waits for more, and says nothing.
HANDSHAKE_TIMEOUT_SECONDS = 2


#: A sentinel that does not answer within this is passed over: it may have died with the primary.
SENTINEL_TIMEOUT_SECONDS = 0.5

TIMEOUT_SECONDS = 5
HEARTBEAT_TIMEOUT_SECONDS = 2

#: For `supervisor serve`, which has to answer before Prometheus gives up its scrape.
ANSWER_TIMEOUT_SECONDS = 2


def connect(settings: Settings) -> Client:
    """A client for beat, workers and commands, with about a second of retries.

    Raises NotConfigured.
    """
    return _client(
        settings,
        decode_responses=True,
        socket_timeout=TIMEOUT_SECONDS,
        socket_connect_timeout=2,
        retry=Retry(ExponentialBackoff(cap=1, base=0.05), 3),
        **given_up_after(TIMEOUT_SECONDS, settings),
    )


def connect_for_heartbeat(settings: Settings) -> Client:
    """No retries and short time-outs: a renewal that is late has to fail, not to wait longer."""
    return _client(
        settings,
        decode_responses=True,
        socket_timeout=HEARTBEAT_TIMEOUT_SECONDS,
        socket_connect_timeout=1,
        retry=Retry(NoBackoff(), 0),
        **given_up_after(HEARTBEAT_TIMEOUT_SECONDS, settings),
    )


def connect_for_answers(settings: Settings, client_class: type[redis.Redis]) -> Client:
    """Short time-outs; a call is made again where the server has closed its connection only.

    client_class: redis.Redis, or made of it. Raises NotConfigured.
    """
    return _client(
        settings,
        client_class,
        decode_responses=True,
        socket_timeout=ANSWER_TIMEOUT_SECONDS,
        socket_connect_timeout=1,
        retry=Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
        **given_up_after(ANSWER_TIMEOUT_SECONDS, settings),
    )


def given_up_after(seconds: int, settings: Settings) -> dict[str, Any]:
    """Options that make the kernel drop a call that timed out.

    Delivered once the network is back, it could renew the lease of a process that is dead by then,
    or report an end of long ago as if it were now.
    """
    if not hasattr(socket, "TCP_USER_TIMEOUT") or settings.redis_url.startswith(SOCKETS):
        return {}
    unacknowledged = {socket.TCP_USER_TIMEOUT: 1000 * seconds}
    return {"socket_keepalive": True, "socket_keepalive_options": unacknowledged}


def server_options(settings: Settings, but: Container[str] = ()) -> dict[str, Any]:
    """Options of connections to one server, with TLS if its address or the app asks for it.

    but: options of the app's settings that are not taken. Raises NotConfigured.
    """
    beside = understood({k: v for k, v in settings.connection.items() if k not in but})
    beside.pop("sentinel_kwargs", None)
    options = {**beside, **parsed(settings.redis_url)}
    if "path" not in options and (tls_of(options) or "connection_class" in options):
        options["connection_class"] = TlsConnection
    return options


class TlsConnection(redis.SSLConnection):
    """Gives a handshake a time of its own, so that a port without TLS is named soon."""

    def _connect(self) -> SSLSocket:
        given, self.socket_timeout = self.socket_timeout, HANDSHAKE_TIMEOUT_SECONDS
        try:
            connected: SSLSocket = super()._connect()  # type: ignore[no-untyped-call]
        except TimeoutError as error:
            if "handshake" not in str(error):
                raise
            what = f"no answer to a TLS handshake in {HANDSHAKE_TIMEOUT_SECONDS} s"
            raise HandshakeUnanswered(f"{what} by {self.host}:{self.port}") from None
        finally:
            self.socket_timeout = given
        connected.settimeout(given)
        return connected


def client_of(options: Mapping[str, Any], client_class: type[redis.Redis]) -> Client:
    """Raises NotConfigured for options that no connection has."""
    check_certificates(options)
    pool = redis.ConnectionPool(**options)
    with refusing_unknown_options():
        pool.connection_class(**pool.connection_kwargs)
    return cast(Client, client_class.from_pool(pool))


@contextmanager
def refusing_unknown_options() -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError):
        raise NotConfigured(
            "the connection to Redis has an option that redis-py does not know, or not with this"
            " value: look behind the ? of the address, and in the app's broker_use_ssl,"
            " redbeat_redis_use_ssl and redbeat_redis_options"
        ) from None


class Sentinels(Sentinel):
    """Their errors have no representation of clients, in which redis-py 6 shows passwords."""

    def discover_master(self, service_name: str) -> Any:
        try:
            return super().discover_master(service_name)  # type: ignore[no-untyped-call]
        except MasterNotFoundError as error:
            text, *clients = str(error).split("<redis.")  # each as <redis.client...> - its error
            text += "".join(each.rpartition("> - ")[2] for each in clients if "> - " in each)
            raise MasterNotFoundError(text) from None


def check_certificates(options: Mapping[str, Any]) -> None:
    """Raises NotConfigured for a file that cannot be read, which redis-py would not name."""
    authority, own, key = (
        options.get(f"ssl_{name}") for name in ("ca_certs", "certfile", "keyfile")
    )
    path = None
    todo = "ssl_ca_certs, ssl_certfile and ssl_keyfile name PEM files that this user may read"
    try:
        for path in filter(None, (authority, own, key)):
            Path(path).read_bytes()
        if path := authority:
            SSLContext(PROTOCOL_TLS_CLIENT).load_verify_locations(path)
        if path := own:
            # Without a password, OpenSSL would ask the terminal for one.
            password = options.get("ssl_password") or ""
            SSLContext(PROTOCOL_TLS_CLIENT).load_cert_chain(path, key, password)
    except OSError as error:  # an SSLError is one
        what = f"the certificate or key {path} cannot be read"
        raise NotConfigured(f"{what}: {error.strerror} ({todo})") from None


def _client(
    settings: Settings, client_class: type[redis.Redis] = redis.Redis, **options: Any
) -> Client:
    """options: our own. They win over those of the app's settings, and the address over both."""
    url = settings.redis_url
    if not url.startswith(SENTINEL):
        return client_of({**options, **server_options(settings, but=options)}, client_class)
    named, beside = SentinelUrl.parse(url), understood(settings.connection)
    of_sentinels = {
        "socket_timeout": SENTINEL_TIMEOUT_SECONDS,
        **understood(beside.pop("sentinel_kwargs", {})),
        **named.login,
        **tls_of(named.server),
    }
    options = {**named.server, **tls_of(beside), **beside, **options, **tls_of(named.server)}
    for each in (of_sentinels, options):
        check_certificates(each)
    with refusing_unknown_options():
        sentinels = Sentinels(  # type: ignore[no-untyped-call]
            named.sentinels,
            sentinel_kwargs={**of_sentinels, "retry": Retry(NoBackoff(), 0)},
            **options,
        )
        primary = sentinels.master_for(named.master_name, client_class)  # type: ignore[no-untyped-call]
        for client in (primary, *sentinels.sentinels):
            pool = client.connection_pool
            pool.connection_class(**pool.connection_kwargs)
    return cast(Client, primary)


def check_served(client: Client) -> None:
    """Asks the server what it is, in one call. Raises NotServed."""
    try:
        answer = client.execute_command("HELLO")
    except ResponseError:  # a proxy that does not have the command
        client.time()
        return
    if not isinstance(answer, Mapping):
        answer = dict(zip(answer[::2], answer[1::2], strict=True))
    if answer.get("mode") == "cluster":
        raise NotServed(CLUSTER)
    if int(str(answer.get("version", "7")).partition(".")[0]) < 7:
        raise NotServed(NO_FUNCTIONS)


def check_functions(client: Client) -> None:
    """Whether a server that says it is a Redis 7 has functions. Raises NotServed."""
    try:
        client.fcall("supervisor_is_served", 0)  # there is none of this name
    except ResponseError as error:
        if is_of_server_without_functions(error):
            raise NotServed(NO_FUNCTIONS) from None
