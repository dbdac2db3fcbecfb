"""Runs every measurement on a server of its own and prints its figures."""

from __future__ import annotations

import tempfile
from pathlib import Path

from supervisor.embedded import EmbeddedServer
from tests.acceptance.project import Project
from tests.bench import batches, fleet, handover

for measurement in (handover, batches, fleet):
    with tempfile.TemporaryDirectory() as directory:
        with EmbeddedServer(Path(directory) / "valkey") as server:
            project = Project(Path(directory) / "team", server.url)
            project.ledger.acknowledge_server()
            try:
                figures = measurement.measure(project)
            finally:
                project.stop()
        for name, figure in figures.items():
            print(f"{name:<22}{figure:10.3f}", flush=True)  # noqa: T201  (its output)
