"""A Redis server process with a configuration of its own; it is not waited for."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from supervisor.deploy.embedded import server_binary
from tests.ports import free_port

#: Of one that keeps its data. The last of two lines with one name is what counts.
SERVER = """\
bind 127.0.0.1
port {port}
dir {directory}
logfile server.log
appendonly yes
maxmemory-policy noeviction
save ""
"""


@dataclass
class Node:
    directory: Path

    program: str | None = None
    """A server other than the one that the package brings."""

    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def start(self, configuration: str, *options: str, **values: Any) -> None:
        self.directory.mkdir(exist_ok=True)
        path = self.directory / "node.conf"
        path.write_text(configuration.format(port=self.port, directory=self.directory, **values))
        command = [self.program or server_binary(), str(path), *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def answers(client: Any) -> bool:
    with suppress(RedisError):
        return bool(client.ping())
    return False
