"""The ledger's Redis: does it keep what it is told?"""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.checkup.facts import Facts
from supervisor.checkup.finding import Finding

OLDEST_VERSION = (6, 2)


def permissions(facts: Facts) -> Iterator[Finding]:
    """Of the user that asks; what others lack is in Redis' own ACL LOG."""
    for said in facts.forbidden:
        yield Finding(
            "permissions",
            f"Redis forbids this user a question: {said}",
            "what it would have told is not checked",
            "give the user what `deploy/redis/users.acl.example` gives to operator",
        )


def persistence(facts: Facts) -> Iterator[Finding]:
    server = facts.server
    if server is None or server.has_append_only_file:
        return
    if server.snapshots == "":
        yield Finding(
            "persistence",
            "Redis writes nothing to disk: no append-only file, no snapshots",
            "after a restart no job is loaded, no run is remembered, and counters begin anew",
            "set `appendonly yes` in its configuration",
        )
        return
    yield Finding(
        "persistence",
        "Redis has no append-only file",
        "what happened since the last snapshot is lost when it dies: ticks run a second time",
        "set `appendonly yes` in its configuration",
        is_note=True,
    )


def eviction(facts: Facts) -> Iterator[Finding]:
    if facts.server and facts.server.eviction != "noeviction":
        yield Finding(
            "eviction",
            f"Redis may evict keys: maxmemory-policy is {facts.server.eviction}",
            "a lock, a waiting run or a counter that is evicted is gone without a word",
            "set `maxmemory-policy noeviction`; give a cache a server of its own",
        )


def version(facts: Facts) -> Iterator[Finding]:
    if facts.server and facts.server.version < OLDEST_VERSION:
        yield Finding(
            "version",
            f"Redis is {dotted(facts.server.version)}; the oldest supported is "
            f"{dotted(OLDEST_VERSION)}",
            "the scripts are not tested with it",
            "use a newer Redis, or Valkey",
        )


def dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
