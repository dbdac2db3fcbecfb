"""How the jobs of rows stand, read from the ledger in a few round trips for a whole page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from supervisor.errors import SupervisorError
from supervisor.integrations.django.checking import SOURCE
from supervisor.integrations.django.project import ledger
from supervisor.ledger.connection import RedisError, explained
from supervisor.ledger.page_reads import Trace, traces

#: How many runs of a job are shown.
RUNS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Standing:
    """Of one row. place: None for a row that is not loaded. is_own: its job is from this table.
    runs: the last ones, newest first."""

    place: str | None
    is_own: bool
    is_paused: bool
    runs: Sequence[Trace]


@dataclass(frozen=True, slots=True)
class Page:
    """Of the rows of a page. why_not: why nothing is known, such as that Redis is unavailable."""

    now: datetime | None
    standings: dict[str, Standing]
    why_not: str | None = None


def page_of(names: Sequence[str]) -> Page:
    try:
        found = ledger()
        loaded, paused = found.loaded(names), found.paused(names)
        runs = traces(found, names, RUNS_SHOWN)
        now = found.now()
    except (SupervisorError, RedisError) as error:
        why = explained(error) if isinstance(error, RedisError) else str(error)
        return Page(None, {}, why)
    return Page(
        now,
        {
            name: Standing(
                place=origin.place if (origin := loaded.origins.get(name)) else None,
                is_own=origin is not None and origin.source == SOURCE,
                is_paused=name in paused,
                runs=runs.get(name, [])[::-1],
            )
            for name in names
        },
    )
