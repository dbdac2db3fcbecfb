"""What the ledger knows of runs: read, never changed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from supervisor.errors import UnknownRun
from supervisor.job.run import OPEN_STATES, Run, RunState
from supervisor.ledger.functions import Call
from supervisor.ledger.job_reads import JOBS_TRACED
from supervisor.ledger.reader import CHUNK, Reader, chunks
from supervisor.ledger.run_record import run_from
from supervisor.logs import get_logger
from supervisor.times import instant, ms_of

log = get_logger("supervisor.ledger")


#: The fields of a run's hash that a SentRun is made of.
SENT_RUN_FIELDS = ("state", "queue", "sends", "queued", "job")


@dataclass(frozen=True, slots=True)
class SentRun:
    """A run whose message was sent, and that has not begun."""

    id: str

    queue: str | None
    """Where to; empty if its record has lost that, None of a run that is not queued, or has no
    record."""

    sent_at: datetime

    sends: int
    """How often a message was sent for the attempt to come, last at `sent_at`."""

    queued_at: datetime
    job: str | None


def sent_run_from(run_id: str, sent: float, values: Sequence[str | None]) -> SentRun:
    """`sent`: its score, in ms; and the values of SENT_RUN_FIELDS."""
    state, queue, sends, queued, job = values
    return SentRun(
        run_id,
        (queue or "") if state == RunState.QUEUED else None,
        instant(sent),
        sends=int(sends or 0) or 1,
        queued_at=instant(queued or sent),
        job=job,
    )


def read_run(run_id: str, fields: Mapping[str, str]) -> Run | None:
    """The run; None, logged once, if its record cannot be read: the others go on without it."""
    try:
        return run_from(run_id, fields)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        note_run(run_id, repr(error)[:200])
        return None


@lru_cache(maxsize=10_000)
def note_run(run_id: str, error: str) -> None:
    """Logged once for each run in a process."""
    log.error("run not read", run=run_id, error=error)


class RunReads(Reader):
    """The runs of the ledger."""

    def run(self, run_id: str) -> Run:
        """Raises UnknownRun, also of a run whose record cannot be read."""
        fields = self.client.hgetall(self.keys.run(run_id))
        run = read_run(run_id, fields) if fields else None
        if run is None:
            raise UnknownRun(run_id, "its record cannot be read" if fields else None)
        return run

    def runs(self, run_ids: Sequence[str]) -> list[Run]:
        """The runs among these that the ledger still knows, without those it cannot read."""
        replies = self.read_each(run_ids, lambda pipe, run_id: pipe.hgetall(self.keys.run(run_id)))
        runs = (read_run(run_id, fields) for run_id, fields in replies if fields)
        return [run for run in runs if run is not None]

    def history(self, job: str, limit: int = 50) -> list[Run]:
        """The job's runs, newest first."""
        return self.runs(self.client.zrevrange(self.keys.history(job), 0, limit - 1))

    def first_open(self, job: str, limit: int) -> list[Run]:
        """Up to `limit` of the job's runs that have not ended, in the order of admission."""
        runs: list[Run] = []
        start, key = 0, self.keys.history(job)
        while len(runs) < limit and (page := self.client.zrange(key, start, start + CHUNK - 1)):
            states = self.read_fields(page, "state")
            is_open = [run_id for run_id, state in states if state in OPEN_STATES]
            runs += self.runs(is_open[: limit - len(runs)])
            start += CHUNK
        return runs

    def at_work_in(self, processes: Collection[str]) -> list[tuple[str, str, str]]:
        """The running attempts that began with one of these proofs of life: run, token, worker."""
        leases = self.client.zrange(self.keys.leases, 0, -1) if processes else []
        attempts: list[tuple[str, str, str]] = []
        records = self.read_fields(leases, "state", "token", "worker", "process")
        for run_id, (state, token, worker, proof) in records:
            process, _, of = (proof or "").rpartition(" ")
            if state == RunState.RUNNING and of == token and process in processes:
                attempts.append((run_id, token, worker))
        return attempts

    def last_runs(
        self,
        jobs: Sequence[str],
        fields: Sequence[str],
        limit: int,
        since: datetime | None = None,
        until: datetime | None = None,
        earlier: int = 0,
    ) -> Iterator[tuple[str, list[list[Any]]]]:
        """Each job with its last runs, newest first: the id, and the values of these fields.

        since and until: when they were admitted, both included; with them come up to `earlier` runs
        that were admitted before.
        """
        span = (ms_of(since) if since else "-inf", ms_of(until) if until else "+inf")
        portions = chunks(jobs, JOBS_TRACED)
        calls = (Call((limit, *span, earlier, len(fields), *fields, *some)) for some in portions)
        for some, replies in zip(portions, self.functions.stream("traces", calls), strict=True):
            yield from zip(some, replies, strict=True)

    def sent_runs(self, limit: int, skip: int = 0) -> list[SentRun]:
        """Runs that were published and have not begun, in the order in which they were sent."""
        sent = dict(self.client.zrange(self.keys.sent, skip, skip + limit - 1, withscores=True))
        replies = self.read_fields(list(sent), *SENT_RUN_FIELDS)
        return [sent_run_from(run_id, sent[run_id], values) for run_id, values in replies]

    def still_sent(self, run_ids: Sequence[str]) -> list[str]:
        """The runs among these that have not begun yet."""
        scores = self.read_each(run_ids, lambda pipe, run_id: pipe.zscore(self.keys.sent, run_id))
        return [run_id for run_id, at in scores if at is not None]

    def first_sent_at(self) -> datetime | None:
        """When the first of them was sent."""
        first = self.client.zrange(self.keys.sent, 0, 0, withscores=True)
        return instant(first[0][1]) if first else None

    def ended(self, run_ids: Sequence[str]) -> set[str]:
        """Which of the runs have ended, and still have a record."""
        return {run_id for run_id, at in self.read_fields(run_ids, "finished") if at}
