"""The table of jobs, drawn anew each second until Ctrl-C."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime

import click
from redis.exceptions import RedisError
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from supervisor.cli.output import table_lines
from supervisor.display.rows import JOB_COLUMNS, job_row
from supervisor.display.words import stamp
from supervisor.ledger.runs import Ledger

REFRESH_SECONDS = 1.0


def watch_jobs(ledger: Ledger) -> None:
    """A ledger that is away is said, and waited for."""
    if not sys.stdout.isatty():
        text = "--watch draws on a terminal; elsewhere repeat `supervisor jobs` or use --json"
        raise click.UsageError(text)
    console = Console(highlight=False, markup=False)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(screen_of(ledger, console.width), refresh=True)
                time.sleep(REFRESH_SECONDS)
    except KeyboardInterrupt:
        return


def screen_of(ledger: Ledger, width: int) -> Group:
    now = datetime.now(UTC)
    try:
        rows = [job_row(record, now) for record in ledger.jobs()]
    except RedisError as error:
        return Group(Text(f"the ledger is away: {error}"))
    header, *table = table_lines(JOB_COLUMNS, rows, width)
    return Group(Text(f"{stamp(now)}  Ctrl-C ends"), Text(header, style="bold"), *map(Text, table))
