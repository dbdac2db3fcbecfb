"""``python -m tools.chaos --minutes 3``: exits 1 when a promise was not kept."""

from __future__ import annotations

import json
import random
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

import click

from tools.chaos.campaign import Campaign
from tools.chaos.cluster import Cluster
from tools.chaos.report import as_text, report


@click.command()
@click.option("--minutes", type=click.FloatRange(min=0.1), default=3.0, show_default=True)
@click.option("--seed", type=int, help="Of the faults; a new one by default.")
@click.option(
    "--directory", type=click.Path(path_type=Path), help="A new one; temporary by default."
)
def main(minutes: float, seed: int | None, directory: Path | None) -> None:
    """Kill at random for some minutes, then say what became of every tick."""
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    directory = (directory or Path(tempfile.mkdtemp(prefix="chaos-"))).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    click.echo(f"seed {seed}, logs and witness in {directory}", err=True)
    signal.signal(signal.SIGTERM, leave)
    rng = random.Random(seed)
    cluster = Cluster(directory, rng)
    try:
        outcome = Campaign(cluster, rng).run(minutes)
    finally:
        cluster.destroy()
    made = report(seed, minutes, outcome.evidence, cluster.chronicle, outcome.of_service)
    (directory / "report.json").write_text(json.dumps(made, indent=2) + "\n")
    click.echo(as_text(made))
    sys.exit(1 if made["findings"] else 0)


def leave(number: int, _: FrameType | None) -> None:
    """SIGTERM ends the processes under fire as well."""
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
