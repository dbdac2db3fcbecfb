"""A Redis Cluster of three masters with a replica each, as real processes with a password."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from tests.acceptance.nodes import SERVER, Node, answers
from tests.ports import free_port
from tests.waiting import patience, wait_until

PASSWORD = "of-the-cluster"
MASTERS = 3

NODE = f"""\
{SERVER}
requirepass {PASSWORD}
masterauth {PASSWORD}
cluster-enabled yes
cluster-port {{bus}}
cluster-node-timeout 2000
cluster-require-full-coverage no
repl-diskless-sync-delay 0
"""


class Cluster:
    """`kill_master`: the others promote its replica; `restore`: the dead one is started again."""

    def __init__(self, directory: Path, tag: str = "supervisor") -> None:
        """tag: the keys with it lie in the slot that all of this is about."""
        directory.mkdir(parents=True)
        self.slot = key_slot(f"{{{tag}}}".encode())
        self.nodes = [Node(directory / f"node{n}") for n in range(2 * MASTERS)]
        self._buses = [free_port() for _ in self.nodes]

    @property
    def url(self) -> str:
        nodes = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:MASTERS])
        return f"redis-cluster://:{PASSWORD}@{nodes}/"

    def start(self) -> None:
        for node, bus in zip(self.nodes, self._buses, strict=True):
            node.start(NODE, bus=bus)
        wait_until(lambda: all(answers(client_of(node)) for node in self.nodes), 30)
        first, *others = self.nodes
        for number, node in enumerate(self.nodes[:MASTERS]):
            slots = [REDIS_CLUSTER_HASH_SLOTS * n // MASTERS for n in (number, number + 1)]
            ask(node, "ADDSLOTSRANGE", slots[0], slots[1] - 1)
            ask(node, "SET-CONFIG-EPOCH", number + 1)
        for node, bus in zip(others, self._buses[1:], strict=True):
            ask(first, "MEET", "127.0.0.1", node.port, bus)
        wait_until(lambda: all(known(node) == len(self.nodes) for node in self.nodes), 30)
        for master, replica in zip(self.nodes, self.nodes[MASTERS:], strict=False):
            ask(replica, "REPLICATE", id_of(master))
        wait_until(self.is_whole, 60)

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()

    def client(self) -> Any:
        """Of whichever node is the master of the slot."""
        return client_of(self.master())

    def master(self, slot: int | None = None) -> Node:
        """As a living node sees it."""
        slot = self.slot if slot is None else slot
        witness = next(node for node in self.nodes if is_running(node))
        port = next(
            master[1] for first, last, master, *_ in ask(witness, "SLOTS") if first <= slot <= last
        )
        return next(node for node in self.nodes if node.port == port)

    def kill_master(self) -> None:
        self.master().kill()

    def restore(self) -> None:
        """The dead node comes back as it was configured, and follows the one that was promoted."""
        for node, bus in zip(self.nodes, self._buses, strict=True):
            if not is_running(node):
                node.start(NODE, bus=bus)
        wait_until(self.is_whole, 60)

    def is_whole(self) -> bool:
        """Every node sees all slots served, and each master has its replica."""
        try:
            return all(map(sees_all, self.nodes)) and all(
                client_of(node).info("replication").get("connected_slaves", 0) == 1
                for node in {id(n): n for n in map(self.master, self._first_slots())}.values()
            )
        except redis.exceptions.RedisError:
            return False

    def begin_to_move_slot(self) -> tuple[Node, Node]:
        """From its master, to another one."""
        source = self.master()
        target = next(node for node in map(self.master, self._first_slots()) if node is not source)
        ask(target, "SETSLOT", self.slot, "IMPORTING", id_of(source))
        ask(source, "SETSLOT", self.slot, "MIGRATING", id_of(target))
        return source, target

    def move_slot(self) -> Node:
        """Key by key, as `redis-cli --cluster reshard` does; gives the node that has it then."""
        source, target = self.begin_to_move_slot()
        while keys := ask(source, "GETKEYSINSLOT", self.slot, 100):
            client_of(source).execute_command(
                *("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "AUTH", PASSWORD),
                *("KEYS", *keys),
            )
        for node in (target, source):
            ask(node, "SETSLOT", self.slot, "NODE", id_of(target))
        return target

    def _first_slots(self) -> list[int]:
        return [REDIS_CLUSTER_HASH_SLOTS * n // MASTERS for n in range(MASTERS)]


def is_running(node: Node) -> bool:
    return node.process is not None and node.process.poll() is None


def known(node: Node) -> int:
    return int(facts_of(node)["cluster_known_nodes"])


def sees_all(node: Node) -> bool:
    facts = facts_of(node)
    return (facts["cluster_state"], facts["cluster_slots_ok"], facts["cluster_size"]) == (
        *("ok", str(REDIS_CLUSTER_HASH_SLOTS), str(MASTERS)),
    )


def facts_of(node: Node) -> Mapping[str, str]:
    text = ask(node, "INFO")
    lines = text.splitlines() if isinstance(text, str) else [f"{k}:{v}" for k, v in text.items()]
    return dict(line.split(":", 1) for line in lines if ":" in line)


def id_of(node: Node) -> str:
    return str(ask(node, "MYID"))


def ask(node: Node, *command: str | int) -> Any:
    with client_of(node) as client:
        return client.execute_command("CLUSTER", *command)


def client_of(node: Node) -> Any:
    return redis.Redis(
        port=node.port, password=PASSWORD, decode_responses=True, socket_timeout=patience(5)
    )
