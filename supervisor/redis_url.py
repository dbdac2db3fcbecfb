"""The address of a Redis: one server, or the primary that Sentinels name.

    redis://user:password@host:6379/0        rediss:// and unix:// likewise, as redis-py reads them
    sentinel://user:password@one:26379;sentinel://two:26379/0?master_name=supervisor

The second is kombu's spelling, with kombu's transport option `master_name` behind it. User,
password and database are those of the servers; `sentinel_username` and `sentinel_password` are
what the sentinels ask for, if anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from redis.connection import parse_url

from supervisor.errors import InvalidRedisUrl

SENTINEL = "sentinel://"
SENTINEL_PORT = 26379
OPTIONS = ("master_name", "sentinel_username", "sentinel_password")


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """sentinels: host and port of each; the rest is of the servers that they watch."""

    sentinels: tuple[tuple[str, int], ...]
    master_name: str
    username: str | None = None
    password: str | None = None
    db: int = 0
    sentinel_username: str | None = None
    sentinel_password: str | None = None

    @classmethod
    def parse(cls, url: str, options: Mapping[str, Any] | None = None) -> Self:
        """options: what the url does not name. Raises InvalidRedisUrl, without its secrets."""
        try:
            parts = [urlsplit(part) for part in url.split(";") if part]
            found = {**(options or {}), **dict(parse_qsl(parts[-1].query))}
            sentinels = tuple((p.hostname or "127.0.0.1", p.port or SENTINEL_PORT) for p in parts)
            db = int(next((p.path[1:] for p in parts if p.path[1:]), "0"))
        except (ValueError, IndexError) as error:
            raise InvalidRedisUrl(f"an address with sentinel:// is wrong: {error}") from error
        if unknown := sorted(found.keys() - set(OPTIONS)):
            raise InvalidRedisUrl(f"sentinel:// has no option {', '.join(unknown)}")
        if any(part.scheme != "sentinel" for part in parts):
            raise InvalidRedisUrl("each of the addresses between ; begins with sentinel://")
        if not found.get("master_name"):
            raise InvalidRedisUrl(
                "sentinel:// needs the name under which the sentinels watch the primary: "
                "sentinel://one:26379;sentinel://two:26379/0?master_name=NAME"
            )
        return cls(
            sentinels,
            username=_decoded(parts[0].username),
            password=_decoded(parts[0].password),
            db=db,
            **found,
        )

    def __str__(self) -> str:
        """The address with all its options, which `parse` reads again."""
        options = {name: getattr(self, name) for name in OPTIONS if getattr(self, name)}
        return f"{self.without_options}?{urlencode(options)}"

    @property
    def without_options(self) -> str:
        """As kombu has it: each sentinel with the credentials and the database of the servers."""
        user = quote(self.username or "", safe="")
        password = f":{quote(self.password, safe='')}" if self.password else ""
        credentials = f"{user}{password}@" if user or password else ""
        return ";".join(
            f"{SENTINEL}{credentials}{f'[{host}]' if ':' in host else host}:{port}/{self.db}"
            for host, port in self.sentinels
        )

    @property
    def sentinel_credentials(self) -> dict[str, str]:
        """What the sentinels themselves ask for."""
        own = {"username": self.sentinel_username, "password": self.sentinel_password}
        return {name: value for name, value in own.items() if value}


def is_redis(url: str) -> bool:
    """Whether a broker's address is one of Redis, by Sentinel or not."""
    return url.startswith(("redis:", "rediss:", "redis+socket:", "unix:", SENTINEL))


@dataclass(frozen=True, slots=True)
class Place:
    """Where an address leads, without who asks. server: host and port, a socket, or sentinels."""

    server: str
    db: int

    def __str__(self) -> str:
        return f"{self.server}/{self.db}"


def place_of(url: str) -> Place | None:
    """None for what is no Redis, or cannot be read."""
    try:
        if url.startswith(SENTINEL):
            named = SentinelUrl.parse(url)
            sentinels = ",".join(sorted(f"{host}:{port}" for host, port in named.sentinels))
            return Place(f"{named.master_name} of {sentinels}", named.db)
        parts: Mapping[str, Any] = parse_url(without_kombus_spelling(url))  # type: ignore[no-untyped-call]
    except ValueError:
        return None
    host = parts.get("host", "localhost")
    host = "127.0.0.1" if host == "localhost" else host
    return Place(parts.get("path") or f"{host}:{parts.get('port', 6379)}", parts.get("db") or 0)


def without_kombus_spelling(url: str) -> str:
    """Of a socket, as redis-py has it."""
    if not url.startswith("redis+socket:"):
        return url
    return url.replace("redis+socket:", "unix:", 1).replace("virtual_host=", "db=", 1)


def same_database(url: str, other: str) -> bool:
    """Whether both lead to the same data, whoever asks for it; False for what is no Redis."""
    place = place_of(url)
    return place is not None and place == place_of(other)


def _decoded(text: str | None) -> str | None:
    return unquote(text) if text else None
