"""The address of a Redis: one server, or the primary that Sentinels name.

    redis://user:password@host:6379/0             rediss:// likewise, with TLS
    unix://user:password@/run/redis.sock?db=0     as redis-py spells a socket, and as kombu does:
    redis+socket://user:password@/run/redis.sock?virtual_host=0
    sentinel://user:password@one:26379;sentinel://two:26379/0?master_name=supervisor

redis-py reads it, as it does for RedBeat. The address with sentinels is as kombu spells it, and has
kombu's transport option `master_name`. User, password and database are those of the servers;
`sentinel_username` and `sentinel_password` are for the sentinels, if they need any. With options
that begin with `ssl_`, servers and sentinels use TLS: `&ssl_ca_certs=/etc/ca.crt`.

Errors do not quote an address: any part of it may be the password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from ssl import VerifyMode
from typing import Any, Self
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from redis.connection import SSLConnection, parse_url

from supervisor.errors import NotConfigured

SENTINEL = "sentinel://"
SOCKETS = ("unix://", "redis+socket://")

DATABASE = re.compile(r"/*[0-9]{0,9}/?")

UNREADABLE = (
    "the address of Redis cannot be read: it is spelled redis://USER:PASSWORD@HOST:PORT/DATABASE,"
    " with rediss://, unix://, redis+socket:// or sentinel:// likewise; in a user or a password,"
    " write / as %2F, # as %23, ? as %3F, @ as %40, % as %25"
)

SENTINEL_PORT = 26379
SERVER = ("username", "password", "db")
OPTIONS = ("master_name", "sentinel_username", "sentinel_password")


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """An address of servers by the Sentinels that watch them."""

    sentinels: tuple[tuple[str, int], ...]
    """The host and the port of each."""

    master_name: str
    """Under which they watch the servers."""

    server: Mapping[str, Any] = field(default_factory=dict)
    """Options of connections to the servers: user, password, database, TLS."""

    login: Mapping[str, str] = field(default_factory=dict)
    """User and password of the sentinels themselves."""

    @classmethod
    def parse(cls, url: str, options: Mapping[str, Any] | None = None) -> Self:
        """options: for what the url leaves out. Raises NotConfigured, which has no secrets."""
        each = [part for part in url.split(";") if part]
        if not all(part.startswith(SENTINEL) for part in each):
            raise NotConfigured("each of the addresses between ; begins with sentinel://")
        parts = [parsed(part.replace(SENTINEL, "redis://", 1)) for part in each]
        server: dict[str, Any] = {}
        for part in reversed(parts):
            server |= {k: v for k, v in part.items() if k in SERVER or k.startswith("ssl_")}
        given = {**(options or {}), **dict(parse_qsl(urlsplit(each[-1]).query))}
        unknown = [k for k in sorted(given) if k not in OPTIONS and not k.startswith("ssl_")]
        if unknown:
            raise NotConfigured(f"sentinel:// has no option {', '.join(unknown)}")
        if not given.get("master_name"):
            raise NotConfigured(
                "sentinel:// needs the name under which the sentinels watch the primary: "
                "sentinel://one:26379;sentinel://two:26379/0?master_name=NAME"
            )
        return cls(
            tuple((p.get("host", "127.0.0.1"), p.get("port", SENTINEL_PORT)) for p in parts),
            given["master_name"],
            server,
            {k: given[f"sentinel_{k}"] for k in SERVER if given.get(f"sentinel_{k}")},
        )

    def __str__(self) -> str:
        """The address with all its options, as `parse` reads it."""
        tls = {k: getattr(v, "name", v) for k, v in self.server.items() if k.startswith("ssl_")}
        login = {f"sentinel_{name}": value for name, value in self.login.items()}
        options = urlencode({"master_name": self.master_name, **login, **tls})
        return f"{self.without_options}?{options}"

    @property
    def without_options(self) -> str:
        """For kombu: each sentinel with the credentials and the database of the servers."""
        return ";".join(written("sentinel", *at, **self.server) for at in self.sentinels)


def is_redis(url: str) -> bool:
    """Whether a broker's address is that of a Redis, by Sentinel or not."""
    return url.startswith(("redis:", "rediss:", "redis+socket:", "unix:", SENTINEL))


def parsed(url: str) -> dict[str, Any]:
    """The options of redis-py's connections for the address of one server.

    Raises NotConfigured, which does not quote the address, also for one that redis-py would
    misread: a password with a / or # may end the host's part, and name another host.
    """
    is_socket = url.startswith(SOCKETS)
    if url.startswith("redis+socket:"):
        url = url.replace("redis+socket:", "unix:", 1).replace("virtual_host=", "db=", 1)
    try:
        parts = urlsplit(url)
        options = parse_url(url)  # type: ignore[no-untyped-call]
    except (ValueError, KeyError):
        raise NotConfigured(UNREADABLE) from None
    has_database = is_socket or DATABASE.fullmatch(parts.path)
    if "#" in url or "@" in parts.path + parts.query or not has_database:
        raise NotConfigured(UNREADABLE)
    return understood(options)


def understood(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a connection under redis-py's names, from those of Celery or redis-py.

    Raises NotConfigured.
    """
    meant = {name: value for name, value in options.items() if value is not None}
    if isinstance(needed := meant.get("ssl_cert_reqs"), str):
        try:
            meant["ssl_cert_reqs"] = VerifyMode[f"CERT_{needed.removeprefix('CERT_').upper()}"]
        except KeyError:
            raise NotConfigured("give ssl_cert_reqs as none, optional or required") from None
    if provider := meant.get("credential_provider"):
        try:
            meant["credential_provider"] = (
                resolve_name(provider)() if isinstance(provider, str) else provider
            )
        except (ValueError, ImportError, AttributeError) as error:
            what = "credential_provider names no class that can be imported"
            raise NotConfigured(f"{what}: {error}") from None
        meant = {name: v for name, v in meant.items() if name not in ("username", "password")}
    return meant


def tls_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options for TLS; `ssl` makes redis-py's clients use it."""
    tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
    return {"ssl": True, **tls} if tls else {}


@dataclass(frozen=True, slots=True)
class Database:
    """Where an address leads, without credentials."""

    server: str
    """Its host and port, its socket, or its sentinels."""

    db: int

    def __str__(self) -> str:
        return f"{self.server}/{self.db}"


def database_of(url: str) -> Database | None:
    """The database that an address names; None if it is not of Redis, or cannot be read."""
    try:
        if url.startswith(SENTINEL):
            named = SentinelUrl.parse(url)
            sentinels = ",".join(sorted(f"{host}:{port}" for host, port in named.sentinels))
            return Database(f"{named.master_name} of {sentinels}", named.server.get("db", 0))
        parts = parsed(url)
    except NotConfigured:
        return None
    host = parts.get("host", "localhost")
    host = "127.0.0.1" if host == "localhost" else host
    return Database(parts.get("path") or f"{host}:{parts.get('port', 6379)}", parts.get("db") or 0)


def in_kombus_spelling(url: str) -> str:
    """An address of a socket as kombu's transport spells it."""
    if not url.startswith("unix:"):
        return url
    return re.sub(r"([?&])db=", r"\1virtual_host=", url.replace("unix:", "redis+socket:", 1))


def without_credentials(options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Splits options of a connection into an address that may be shown and the other options.

    From both together, redis-py makes the same connection.
    """
    rest = dict(options)
    is_tls = issubclass(rest.pop("connection_class", object), SSLConnection)
    host, port, db = rest.pop("host", "localhost"), rest.pop("port", 6379), rest.pop("db", 0)
    if path := rest.pop("path", None):
        return f"unix://{quote(path)}?db={db}", rest
    return written("rediss" if is_tls else "redis", host, port, db=db), rest


def written(
    scheme: str, host: str, port: int, username: str = "", password: str = "", db: int = 0, **_: Any
) -> str:
    """The address of a server or sentinel, without options."""
    credentials = quote(username, safe="") + (f":{quote(password, safe='')}" if password else "")
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{credentials}{'@' if credentials else ''}{host}:{port}/{db}"


def same_database(url: str, other: str) -> bool:
    """Whether both lead to the same data, with whichever credentials; False if one is no Redis."""
    own = database_of(url)
    return own is not None and own == database_of(other)


def has_same_server(url: str, other: str) -> bool:
    """Whether both lead to one server, by Sentinel or not; False if one is no Redis."""
    own, there = database_of(url), database_of(other)
    return own is not None and there is not None and own.server == there.server
