"""A Redis server process with a configuration of its own; it is not waited for."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.deploy.embedded import server_binary
from tests.ports import free_port


@dataclass
class Node:
    """program: a server other than the one that the package brings."""

    directory: Path
    program: str | None = None
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
