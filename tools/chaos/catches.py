"""``python -m tools.chaos.catches``: exits 1 when a broken product is not seen to be.

Each break (breaks.py) has a short campaign under the faults that bring it to light, which ends with
the first promise that was not kept.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click

from tools.chaos.breaks import BREAKS, Break, broken_copy
from tools.chaos.campaign import Campaign, Plan
from tools.chaos.cluster import Cluster
from tools.chaos.evidence import Finding
from tools.chaos.faults import chosen
from tools.chaos.judgement import judge
from tools.chaos.report import table

#: From the first fault on: chaos, and what is left open after it.
CHAOS_SECONDS = 70.0
ENDING_SECONDS = 20.0

#: What a break may take to be seen.
MOST_SECONDS = 120.0

COLUMNS = ("break", "seen", "by which promise", "seconds")


@click.command()
@click.option("--only", multiple=True, help="Of a break's name; all of them by default.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--directory", type=click.Path(path_type=Path), help="Temporary by default.")
def main(only: tuple[str, ...], seed: int, directory: Path | None) -> None:
    """Break the product in one way after the other, and see whether the campaign notices."""
    directory = (directory or Path(tempfile.mkdtemp(prefix="chaos-catches-"))).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    click.echo(f"logs and witnesses in {directory}", err=True)
    wanted = [b for b in BREAKS if not only or any(part in b.name for part in only)]
    for number, broken in enumerate(wanted):  # a break that does not apply is known at once
        broken_copy(broken, directory / f"{number}" / "package")
    rows = []
    for number, broken in enumerate(wanted):
        found, seconds = caught(broken, directory / f"{number}", seed)
        is_seen = bool(found) and seconds <= MOST_SECONDS
        kinds = ", ".join(sorted({finding.kind for finding in found})) or "-"
        rows.append((broken.name, is_seen, kinds, f"{seconds:.0f}"))
        click.echo(f"{broken.name}: {kinds}, {seconds:.0f} s", err=True)
        for finding in found[:3]:
            click.echo(f"  {finding.kind}: {finding.job}: {finding.detail}", err=True)
    click.echo(table(COLUMNS, rows))
    missed = sum(not is_seen for _, is_seen, *_ in rows)
    click.echo(f"{len(rows)} breaks, {missed} of them not seen")
    sys.exit(1 if missed else 0)


def caught(broken: Break, directory: Path, seed: int) -> tuple[Sequence[Finding], float]:
    """What a campaign finds, and how long after its first fault."""
    rng = random.Random(seed)
    cluster = Cluster(directory, rng, package=directory / "package")
    faults = chosen(broken.faults)
    plan = Plan(faults, broken.fault_seconds, ending_seconds=ENDING_SECONDS, hunts=True)
    campaign = Campaign(cluster, rng, plan)
    try:
        outcome = campaign.run(CHAOS_SECONDS / 60)
        found = outcome.found or [
            *(finding for evidence in outcome.evidence for finding in judge(evidence)),
            *outcome.of_service,
        ]
        return found, time.monotonic() - campaign.started
    finally:
        cluster.destroy()


if __name__ == "__main__":
    main()
