"""What the API answers: JSON, the same shapes as the command line prints with --json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from supervisor import control
from supervisor.display.reports import line_shape
from supervisor.display.shapes import instant, job_shape, run_shape
from supervisor.display.steps import params_shape, step_shape
from supervisor.execution.consumption import Queue, Queues
from supervisor.ledger.glances import latest_failures
from supervisor.ledger.runs import Ledger
from supervisor.ledger.searching import Wanted, search
from supervisor.runs.run import RunState
from supervisor.web import requests
from supervisor.web.crew import Worker, crew_of
from supervisor.web.listing import Filter, Sort, Wish, names_of
from supervisor.web.operations import MOST_JOBS, MOST_RUNS
from supervisor.web.problems import Refused, unless_skipped

Shape = dict[str, Any]


class Api:
    """A method for each operation of the table, under its name."""

    def __init__(self, ledger: Ledger, broker: Queues | None) -> None:
        self._ledger = ledger
        self._broker = broker

    def jobs(self, query: Mapping[str, str]) -> list[Shape]:
        limit = bounded(query, MOST_JOBS, most=MOST_JOBS)
        wanted = after(names_of(self._ledger, wish_of(query), self._ledger.now()), query)[:limit]
        specs = self._ledger.some_specs(wanted)
        known = [specs[name] for name in wanted if name in specs]
        return [job_shape(record) for record in self._ledger.records_of(known)]

    def job(self, job: str) -> Shape:
        return job_shape(self._ledger.job(job))

    def runs(self, query: Mapping[str, str]) -> list[Shape]:
        wanted = Wanted(outcome_of(query), limit=bounded(query, 50, most=MOST_RUNS))
        job = query.get("job")
        names = self._ledger.job_names() if job is None else [self._ledger.spec(job).name]
        return [run_shape(run) for run in search(self._ledger, names, wanted)]

    def failures(self, query: Mapping[str, str]) -> list[Shape]:
        limit = bounded(query, 50, most=MOST_RUNS)
        return [run_shape(run) for run in latest_failures(self._ledger, limit)]

    def run(self, run: str) -> Shape:
        found = self._ledger.run(run)
        steps, params = None, None
        if found.has_steps:
            steps = [step_shape(step) for step in self._ledger.steps.records(run)]
            params = params_shape(found, self._ledger.steps.params(run))
        return run_shape(found) | {"steps": steps, "params": params}

    def run_log(self, run: str) -> list[Shape]:
        known = self._ledger.run(run)
        return [line_shape(line) for line in self._ledger.reports.lines(known.id)]

    def queues(self) -> Shape:
        crew = crew_of(self._ledger, self._broker)
        return {
            "queues": [queue_shape(queue) for queue in crew.queues],
            "workers": [worker_shape(worker) for worker in crew.workers],
            "at_work": {who: [run.id for run in runs] for who, runs in crew.at_work.items()},
        }

    def beat(self) -> Shape:
        beat = self._ledger.beat()
        return {
            "leader": beat.leader,
            "last_tick_at": instant(beat.last_tick_at),
            "last_reload_successful": beat.last_reload_successful,
            "last_reload_at": instant(beat.last_reload_at),
            "problems": beat.problems,
        }

    def trigger(self, job: str, asked: requests.Trigger) -> Shape:
        run = control.trigger(self._ledger, job, asked.as_request())
        return run_shape(unless_skipped(run))

    def pause(self, job: str, asked: requests.Pause) -> Shape:
        until = control.pause(self._ledger, job, asked.note, asked.until)
        return {"job": job, "until": instant(until)}

    def resume(self, job: str, asked: requests.Resume) -> Shape:
        caught_up = control.resume(self._ledger, job, catch_up=asked.catch_up)
        return {"job": job, "caught_up": caught_up}

    def cancel(self, run: str, _: requests.Cancel) -> Shape:
        return {"run": run, "cancellation": control.cancel(self._ledger, run).value}


def queue_shape(queue: Queue) -> Shape:
    return {
        "queue": queue.name,
        "serial": queue.is_serial,
        "jobs": queue.jobs,
        "length": queue.length,
        "consumers": queue.consumers,
        "drained_at": instant(queue.drained_at),
    }


def worker_shape(worker: Worker) -> Shape:
    facts, present = worker.facts, worker.present
    return {
        "worker": worker.name,
        "present": present is not None,
        "last_seen_at": instant(worker.last_seen_at),
        "started_at": instant(present.started_at) if present else None,
        "host": present.host if present else None,
        "pid": present.pid if present else None,
        "queues": facts.queues if facts else [],
        "processes": facts.pool_size if facts else None,
    }


def bounded(query: Mapping[str, str], default: int, most: int) -> int:
    text = query.get("limit")
    if text is None:
        return default
    if text.isascii() and text.isdigit() and len(text) <= 9 and 0 < int(text) <= most:
        return int(text)
    raise Refused(400, f"limit is a number from 1 to {most:,}")


def wish_of(query: Mapping[str, str]) -> Wish:
    """Raises Refused of what the page would leave out."""
    state, order = query.get("state"), query.get("sort")
    if state is not None and state not in set(Filter):
        raise Refused(400, f"state is one of {', '.join(Filter)}")
    if order is not None and order.removeprefix("-") not in set(Sort):
        raise Refused(400, f"sort is one of {', '.join(Sort)}, or one of them after a -")
    return replace(Wish.of(query), search=query.get("search", ""))


def after(names: list[str], query: Mapping[str, str]) -> list[str]:
    """Those behind the named one; it need not be there any more where they are sorted by name."""
    last = query.get("after")
    if last is None:
        return names
    if query.get("sort", Sort.NAME) == Sort.NAME:
        return [name for name in names if name > last]
    if last not in names:
        raise Refused(400, "after is the name of a job that was listed")
    return names[names.index(last) + 1 :]


def outcome_of(query: Mapping[str, str]) -> RunState | None:
    word = query.get("outcome")
    try:
        return RunState(word) if word is not None else None
    except ValueError:
        raise Refused(400, f"outcome is one of {', '.join(RunState)}") from None
