"""What stands in each part of each page: read when the part is asked for, alone or in its page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from supervisor.display.steps import params_shape
from supervisor.errors import UnknownJob
from supervisor.execution.consumption import Queues
from supervisor.ledger.glances import MOST_OPEN, latest_failures, open_runs, traces
from supervisor.ledger.runs import Ledger
from supervisor.runs.run import Run, RunState, StepId
from supervisor.web.crew import crew_of, troubles_of
from supervisor.web.job_rows import pace_of, rows_of
from supervisor.web.listing import Wish, listing_of
from supervisor.web.timeline import SPANS, timeline_of
from supervisor.why.answer import answer
from supervisor.why.reading import facts_of_run_id

Context = dict[str, Any]

MOST_SHOWN_NOW = 12
MOST_RUNS = 200
RUNS_SHOWN = 25
MOST_FAILURES = 100
LINES_SHOWN = 20
KEPT_ITEMS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Asked:
    """target: the job or run of the page, if it is about one. now: by the ledger's clock."""

    ledger: Ledger
    target: str
    query: Mapping[str, str]
    now: datetime
    broker: Queues | None


Part = Callable[[Asked], Context]


def beat(asked: Asked) -> Context:
    found = asked.ledger.beat()
    return {
        "beat": found,
        "is_silent": not found.leads(asked.now),
        "troubles": list(troubles_of(asked.ledger, asked.broker)),
    }


def now(asked: Asked) -> Context:
    runs = open_runs(asked.ledger)
    at_work = [run for run in runs if run.state is RunState.RUNNING]
    held = [run for run in runs if run.state is not RunState.RUNNING]
    return {
        "at_work": at_work[:MOST_SHOWN_NOW],
        "held": held[:MOST_SHOWN_NOW],
        "at_work_count": len(at_work),
        "held_count": len(held),
        "is_cut": len(runs) >= MOST_OPEN,
        "shown": MOST_SHOWN_NOW,
    }


def jobs(asked: Asked) -> Context:
    listing = listing_of(asked.ledger, Wish.of(asked.query), asked.now)
    return {"listing": listing, "rows": rows_of(asked.ledger, listing.names, asked.now)}


def job(asked: Asked) -> Context:
    record = asked.ledger.job(asked.target)
    last = traces(asked.ledger, [asked.target], RUNS_SHOWN)[asked.target]
    return {"job": record, "pace": pace_of(record.spec, last, asked.now)}


def timeline(asked: Asked) -> Context:
    runs = asked.ledger.history(asked.target, MOST_RUNS)
    picture = timeline_of(runs, asked.query.get("span"), asked.now)
    return {"timeline": picture, "spans": SPANS, "target": asked.target}


def runs(asked: Asked) -> Context:
    limit = MOST_RUNS if asked.query.get("runs") == "all" else RUNS_SHOWN
    found = asked.ledger.history(asked.target, limit)
    return {"runs": found, "target": asked.target, "has_more": len(found) == RUNS_SHOWN}


def job_log(asked: Asked) -> Context:
    """The end of the log of the last run that began."""
    found = asked.ledger.history(asked.target, RUNS_SHOWN)
    last = next((run for run in found if run.started_at), None)
    lines = asked.ledger.reports.lines(last.id) if last else []
    return {"logged": last, "lines": lines[-LINES_SHOWN:], "line_count": len(lines)}


def run(asked: Asked) -> Context:
    found = asked.ledger.run(asked.target)
    return {"run": found, "why": why(asked.ledger, found)}


def why(ledger: Ledger, run: Run) -> list[str]:
    """Nothing of a run at work, whose times would stand still; nor what its page has anyway: of
    several attempts, and of a run that succeeded as it should.
    """
    if run.state is RunState.RUNNING or len(run.attempts) > 1 or StepId.of(run.id):
        return []
    try:
        sentences = answer(facts_of_run_id(ledger, run.id))
    except UnknownJob:
        return []
    return [] if run.state is RunState.SUCCEEDED and len(sentences) == 1 else sentences


def steps(asked: Asked) -> Context:
    found = asked.ledger.run(asked.target)
    kept = asked.ledger.steps.kept_items(found.id, KEPT_ITEMS_SHOWN) if found.batch else []
    texts = asked.ledger.steps.params(found.id) if found.has_steps else {}
    return {
        "run": found,
        "steps": asked.ledger.steps.records(found.id) if found.has_steps else [],
        "params": params_shape(found, texts),
        "kept": asked.ledger.runs(kept),
    }


def run_log(asked: Asked) -> Context:
    lines = asked.ledger.reports.lines(asked.target)
    return {"logged": None, "lines": lines, "line_count": len(lines)}


def failures(asked: Asked) -> Context:
    return {"failures": latest_failures(asked.ledger, MOST_FAILURES)}


def queues(asked: Asked) -> Context:
    return {"crew": crew_of(asked.ledger, asked.broker)}
