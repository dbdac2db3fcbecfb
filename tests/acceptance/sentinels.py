"""A primary and a replica that three sentinels watch, as real processes with passwords."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import redis

from tests.acceptance.nodes import SERVER, Node
from tests.waiting import scaled, wait_until

PASSWORD = "of-the-servers"
SENTINEL_PASSWORD = "of-the-sentinels"

#: Every server may become the primary, so each knows the password that it would ask for.
REPLICATED = f"""\
{SERVER}
requirepass {PASSWORD}
masterauth {PASSWORD}
repl-diskless-sync-delay 0
"""

SENTINEL = f"""\
bind 127.0.0.1
port {{port}}
dir {{directory}}
logfile sentinel.log
requirepass {SENTINEL_PASSWORD}
sentinel sentinel-pass {SENTINEL_PASSWORD}
sentinel monitor jobs 127.0.0.1 {{primary}} 2
sentinel auth-pass jobs {PASSWORD}
sentinel down-after-milliseconds jobs 2000
sentinel failover-timeout jobs 6000
"""


class Watched:
    """`kill_primary`: the sentinels promote the other."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.servers = [Node(directory / f"server{n}") for n in range(2)]
        self.sentinels = [Node(directory / f"sentinel{n}") for n in range(3)]

    @property
    def url(self) -> str:
        hosts = ";".join(f"sentinel://:{PASSWORD}@127.0.0.1:{s.port}" for s in self.sentinels)
        return f"{hosts}/0?master_name=jobs&sentinel_password={SENTINEL_PASSWORD}"

    def start(self) -> None:
        first, second = self.servers
        first.start(REPLICATED)
        second.start(REPLICATED, "--replicaof", f"127.0.0.1 {first.port}")
        # Sentinels look for replicas every 10 s: this one is there at their first look.
        wait_until(lambda: replicates(first), 30)
        for sentinel in self.sentinels:
            sentinel.start(SENTINEL, "--sentinel", primary=first.port)
        wait_until(self.is_whole, 30)

    def kill_primary(self) -> None:
        self.primary().kill()

    def stop(self) -> None:
        for node in (*self.sentinels, *self.servers):
            node.kill()

    def primary(self) -> Node:
        """The one that the sentinels name."""
        port = self._asked(self.sentinels[0]).sentinel_get_master_addr_by_name("jobs")[1]
        return next(server for server in self.servers if server.port == port)

    def is_whole(self) -> bool:
        """All sentinels know each other, and the replica has all that the primary has."""
        try:
            return all(map(self._sees_all, self.sentinels)) and replicates(self.primary())
        except redis.exceptions.RedisError:
            return False

    def _sees_all(self, sentinel: Node) -> bool:
        reply = self._asked(sentinel).sentinel_master("jobs")
        return (reply["flags"], reply["num-other-sentinels"], reply["num-slaves"]) == (
            *("master", 2, 1),
        )

    def _asked(self, sentinel: Node) -> Any:
        return client_of(sentinel, SENTINEL_PASSWORD)


def replicates(server: Node) -> bool:
    try:
        reply = client_of(server, PASSWORD).info("replication")
    except redis.exceptions.RedisError:
        return False
    return bool(reply["connected_slaves"] == 1 and reply["slave0"]["state"] == "online")


def client_of(node: Node, password: str) -> Any:
    return redis.Redis(
        port=node.port, password=password, decode_responses=True, socket_timeout=scaled(5)
    )
