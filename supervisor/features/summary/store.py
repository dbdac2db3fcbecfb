"""Counts and summaries of days in the ledger, and what these are made of."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta

from supervisor.features.summary.rule import Day, PastRun, Summary
from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import QUARTER, QUARTERS_A_DAY
from supervisor.times import instant, ms_of, optional_instant, to_ms

SUMMARIES_KEPT = timedelta(days=14)

RUN_FIELDS = ("state", "nominal", "started", "finished", "attempts")


class SummaryStore:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._client, self._keys = ledger.client, ledger.keys

    def counts(self, day: Day) -> Mapping[str, int]:
        """What happened on the day, of all jobs: failed, skipped, missed."""
        first, end = (ms_of(at) // to_ms(QUARTER) for at in (day.start, day.end))
        counts: Counter[str] = Counter()
        for number in range(first // QUARTERS_A_DAY, (end - 1) // QUARTERS_A_DAY + 1):
            for field, count in self._client.hgetall(self._keys.day(str(number))).items():
                quarter, _, what = field.partition(" ")
                if first <= int(quarter) < end:
                    counts[what] += int(count)
        return counts

    def older(self, jobs: Sequence[str], moment: datetime) -> list[str]:
        """Those that were loaded before then, as far as that is known."""
        with self._client.pipeline(transaction=False) as pipe:
            for job in jobs:
                pipe.hget(self._keys.job(job), "created")
            created = pipe.execute()
        dated = zip(jobs, created, strict=True)
        return [job for job, at in dated if at is None or instant(at) < moment]

    def runs(self, job: str, day: Day) -> tuple[list[PastRun], int]:
        """The job's history up to the end of the day, oldest first, and how long all of it is."""
        key = self._keys.history(job)
        entries = self._client.zrangebyscore(key, "-inf", ms_of(day.end) - 1, withscores=True)
        at = {run_id: instant(score) for run_id, score in entries}
        replies = self._ledger.read_fields([*at], *RUN_FIELDS)
        runs = [past_run(run_id, at[run_id], values) for run_id, values in replies if values[0]]
        return runs, self._client.zcard(key)

    def saved(self) -> dict[date, Summary]:
        """The summaries that are kept, by their day."""
        texts = self._client.hgetall(self._keys.days).values()
        summaries = (Summary.model_validate_json(text) for text in texts)
        return {each.date: each for each in summaries}

    def latest(self) -> tuple[Summary, Summary | None] | None:
        """The newest summary and that of the day before it, where they are known."""
        saved = self.saved()
        if not saved:
            return None
        newest = max(saved)
        return saved[newest], saved.get(newest - timedelta(days=1))

    def save(self, summary: Summary) -> None:
        key, oldest = self._keys.days, summary.date - SUMMARIES_KEPT
        self._client.hset(key, summary.date.isoformat(), summary.model_dump_json())
        for field in self._client.hkeys(key):
            if date.fromisoformat(field) < oldest:
                self._client.hdel(key, field)


def past_run(run_id: str, at: datetime, values: Sequence[str | None]) -> PastRun:
    """`values`: of RUN_FIELDS."""
    state, nominal, started, finished, attempts = values
    began, ended = optional_instant(started), optional_instant(finished)
    seconds = (ended - began).total_seconds() if began and ended else None
    if attempts:  # the first of those that are kept
        began = instant(json.loads(attempts.partition("\n")[0])["started"])
    return PastRun(run_id, at, RunState(state or ""), instant(nominal or "0"), began, seconds)
