"""A RabbitMQ of the tests' own: Debian's server on free ports, with its data in a folder."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kombu

from tests.ports import free_port
from tests.programs import needed
from tests.waiting import status_of, wait_until

#: The programs without Debian's wrappers, which would become another user.
PROGRAMS = Path("/usr/lib/rabbitmq/bin")


@dataclass
class RabbitMQ:
    url: str
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    @contextmanager
    def started_again(self) -> Iterator[RabbitMQ]:
        """After it was killed, with what it has on disk."""
        self.process.wait()
        with served(self.url, self.environment, None) as broker:
            yield broker

    def ctl(self, *words: str) -> str:
        """What `rabbitmqctl` prints; takes seconds. Raises CalledProcessError."""
        command = [PROGRAMS / "rabbitmqctl", "--quiet", *words]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=True
        ).stdout

    def consumers(self, queue: str) -> int:
        with kombu.Connection(self.url) as connection:
            declared = connection.default_channel.queue_declare(queue, passive=True)
            return int(declared.consumer_count)


@contextmanager
def rabbitmq(directory: Path) -> Iterator[RabbitMQ]:
    needed("rabbitmq-server")
    port, names_port, clustering_port = free_port(), free_port(), free_port()
    (directory / "plugins").write_text("[].")
    environment = {
        **os.environ,
        "HOME": str(directory),
        "ERL_EPMD_PORT": str(names_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"test-{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(clustering_port),
        "RABBITMQ_MNESIA_BASE": str(directory),
        "RABBITMQ_LOG_BASE": str(directory),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_CONF_ENV_FILE": str(directory / "none"),
        # The server is then the process that is started, and no child of it.
        "RUNNING_UNDER_SYSTEMD": "true",
    }
    url = f"amqp://guest:guest@127.0.0.1:{port}//"
    with (
        (directory / "output").open("ab") as output,
        # Left to itself the server starts one that outlives it.
        ended(["epmd"], environment, output),
        served(url, environment, output) as broker,
    ):
        yield broker


@contextmanager
def served(url: str, environment: Mapping[str, str], output: Any) -> Iterator[RabbitMQ]:
    with ended([str(PROGRAMS / "rabbitmq-server")], environment, output) as server:
        wait_until(lambda: answers(url), 60, 0.2)
        yield RabbitMQ(url, environment, server)


@contextmanager
def ended(
    command: list[str], environment: Mapping[str, str], output: Any
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        try:
            status_of(process, 20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(url: str) -> bool:
    try:
        with kombu.Connection(url, connect_timeout=1) as connection:
            connection.ensure_connection(max_retries=1)
    except (OSError, kombu.exceptions.OperationalError):
        return False
    return True
