"""What is known of a job or a run: records made from the ledger's hashes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from supervisor.job.spec import JobSpec
from supervisor.ledger.histograms import Histogram, histogram_from
from supervisor.ledger.open_runs import OpenRuns
from supervisor.ledger.replies import instant, to_instant
from supervisor.ledger.reports import progress_from
from supervisor.runs.run import FAILURES, Attempt, Batch, Blocker, Run, RunState


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A loaded job and what has become of its ticks so far.

    `counters` has started, finished:<outcome>, skipped:<reason>, requeued, retried, rescued,
    triggered, restored, missed:<reason>, excluded:<reason>, overlaps, overlap_ms, leases_lost,
    reasserted, renew_delay_ms, duplicates, pings_dropped and ticks; an absent one is 0.
    """

    spec: JobSpec
    paused: bool
    counters: Mapping[str, int]
    durations: Histogram
    running: int
    waiting: int
    consecutive_skips: int
    last_start_at: datetime | None
    last_success_at: datetime | None
    last_failure_at: datetime | None
    last_finish_at: datetime | None
    next_run_at: datetime | None
    last_outcome: str | None
    last_run: str | None
    state: str
    unaccounted_ticks: int
    finding: Mapping[str, Any] | None
    paused_note: str | None = None
    paused_until: datetime | None = None

    @property
    def failures(self) -> int:
        """Runs that failed so far, in whatever way."""
        return sum(self.counters.get(f"finished:{outcome.value}", 0) for outcome in FAILURES)

    @property
    def skipped(self) -> int:
        """Runs skipped so far, for whatever reason."""
        return sum(n for what, n in self.counters.items() if what.startswith("skipped:"))


def run_from(run_id: str, fields: Mapping[str, str]) -> Run:
    attempts = [attempt_from(json.loads(line)) for line in fields.get("attempts", "").splitlines()]
    state = RunState(fields["state"])
    number = int(fields.get("attempt", 0))
    if state is RunState.RUNNING:
        attempts.append(Attempt(number, instant(fields["started"]), fields.get("worker", "")))
    return Run(
        id=run_id,
        job=fields["job"],
        state=state,
        nominal_at=instant(fields["nominal"]),
        queued_at=instant(fields["queued"]),
        started_at=to_instant(fields.get("started")),
        finished_at=to_instant(fields.get("finished")),
        attempt=number,
        crashes=int(fields.get("crashes", 0)),
        requeues=int(fields.get("requeues", 0)),
        fencing_token=int(fields["fence"]) if "fence" in fields else None,
        reason=fields.get("reason") or None,
        blocked_by=fields.get("blocked_by") or None,
        overlapped_with=fields.get("overlapped_with") or None,
        due_at=to_instant(fields.get("due")),
        worker=fields.get("worker") or None,
        sent_at=to_instant(fields.get("sent")),
        sends=int(fields.get("sends", 0)),
        ticks=int(fields.get("ticks", 1)),
        first_nominal_at=to_instant(fields.get("first_nominal")),
        attempts=tuple(attempts),
        has_steps="steps" in fields,
        error_step=fields.get("error_step"),
        foreach=fields.get("foreach"),
        batch=batch_from(fields) if "total" in fields else None,
        returned_twice={n: by.split(",") for n, by in starting_with("conflict:", fields).items()},
        args=json.loads(fields["args"]) if "args" in fields else None,
        kwargs=json.loads(fields["kwargs"]) if "kwargs" in fields else None,
        options=options_from(fields),
        references=json.loads(fields.get("references", "[]")),
        rules=json.loads(fields.get("rules", "{}")),
        progress=progress_from(fields, number),
        blocker=blocker_from(fields["blocker"]) if "blocker" in fields else None,
        duplicates=int(fields.get("duplicates", 0)),
        note=fields.get("note"),
        queue=fields.get("queue") or None,
        expires_at=to_instant(fields.get("expires")),
    )


def options_from(fields: Mapping[str, str]) -> dict[str, Any]:
    """Those of the call, and over them those of each retry."""
    lines = (fields.get("options", "{}"), *fields.get("retry_options", "").splitlines())
    return {key: value for line in lines for key, value in json.loads(line).items()}


def blocker_from(text: str) -> Blocker:
    """From what `snapshot` in placing.lua wrote."""
    state, attempt, fence, lease_ends, at = text.split()
    ends_at = instant(lease_ends) if float(lease_ends) else None
    return Blocker(state, int(attempt), int(fence), ends_at, instant(at))


def batch_from(fields: Mapping[str, str]) -> Batch:
    ended = {outcome: int(count) for outcome, count in starting_with("items:", fields).items()}
    return Batch(int(fields["total"]), ended)


def starting_with(prefix: str, fields: Mapping[str, str]) -> dict[str, str]:
    return {k.removeprefix(prefix): v for k, v in fields.items() if k.startswith(prefix)}


def attempt_from(line: Mapping[str, Any]) -> Attempt:
    return Attempt(
        number=int(line["number"]),
        started_at=instant(line["started"]),
        worker=line["worker"],
        finished_at=instant(line["finished"]),
        outcome=line["outcome"],
        reason=line["reason"] or None,
    )


def job_from(spec: JobSpec, fields: Mapping[str, str], open_runs: OpenRuns) -> JobRecord:
    paused = fields.get("paused") == "1"
    idle = "paused" if paused else "idle"
    return JobRecord(
        spec=spec,
        paused=paused,
        counters={key[2:]: int(value) for key, value in fields.items() if key[:2] == "n:"},
        durations=histogram_from(fields, "duration"),
        running=open_runs.running,
        waiting=open_runs.waiting,
        consecutive_skips=int(fields.get("consecutive_skips", 0)),
        last_start_at=to_instant(fields.get("last_start")),
        last_success_at=to_instant(fields.get("last_success")),
        last_failure_at=to_instant(fields.get("last_failure")),
        last_finish_at=to_instant(fields.get("last_finish")),
        next_run_at=to_instant(fields.get("next")),
        last_outcome=fields.get("last_outcome"),
        last_run=fields.get("last_run"),
        unaccounted_ticks=sum(
            abs(int(fields.get(key, 0))) for key in ("n:unaccounted", "unsettled", "overdue")
        ),
        finding=json.loads(fields["finding"]) if "finding" in fields else None,
        paused_note=fields.get("paused_note"),
        paused_until=to_instant(fields.get("paused_until")),
        state=open_runs.state or idle,
    )
