"""What surrounds a run: when it was heard of, when no beat led, since when the server answers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from supervisor.ledger.readings import Readings
from supervisor.ledger.replies import instant, to_instant
from supervisor.runs.run import Run


def admitted_at(ledger: Readings, runs: Sequence[Run]) -> dict[str, datetime]:
    """By run id; left out are those that their job's history has lost."""
    with ledger.client.pipeline(transaction=False) as pipe:
        for run in runs:
            pipe.zscore(ledger.keys.history(run.job), run.id)
        scores = pipe.execute() if runs else []
    return {run.id: instant(at) for run, at in zip(runs, scores, strict=True) if at is not None}


def silences(ledger: Readings) -> list[tuple[datetime, datetime]]:
    """The times in which no beat led, newest first; the last of them as long as they are kept."""
    spans = (line.split() for line in ledger.client.lrange(ledger.keys.away, 0, -1))
    return [(instant(start), instant(end)) for start, end in spans]


def server_since(ledger: Readings) -> datetime | None:
    """Since when the server answers; None before anybody has looked."""
    return to_instant(ledger.client.hget(ledger.keys.server, "since"))
