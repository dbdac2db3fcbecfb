"""The step of beat that sums up the day before, and has it sent: SUPERVISOR_NOTIFY_DAILY.

Some jobs at a time, while no tick is due; a beat that dies meanwhile leaves it to the next, which
begins again. The summary is kept in the ledger, and the event of its notice names the day: it is
made once, whichever beats lead.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import date, datetime

from supervisor.beat.turn import BeatContext, Part, Turn
from supervisor.features.notices.incidents import SERVICE
from supervisor.features.notices.keys import Event
from supervisor.features.notices.store import NoticeStore, Occurrence
from supervisor.features.summary.rule import Daily, Day, JobDay, job_day, lines, summary_of
from supervisor.features.summary.store import SummaryStore
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.logs import get_logger
from supervisor.schedule.expectations import interval_of, late_after, next_ticks, usual_duration
from supervisor.settings import NOTIFY_DAILY

#: To judge the runs of one job takes less than this.
JOB_SECONDS = 0.02

#: Of how many jobs one round trip asks whether they are old enough to be judged.
JOBS_PER_LOOK = 200

log = get_logger("supervisor.summary")


class Summaries:
    def __init__(self, ledger: Ledger, environ: Mapping[str, str] = os.environ) -> None:
        """Raises NotConfigured for what `environ` says wrongly."""
        self._ledger = ledger
        self._daily = Daily.of(NOTIFY_DAILY, environ.get(NOTIFY_DAILY, ""))
        self._store = SummaryStore(ledger)
        self._days: list[Day] = []
        self._left: list[str] = []
        self._older: list[str] = []
        self._judged: list[JobDay] = []
        self._has_jobs = False
        self._summarized: date | None = None
        self._noted: date | None = None

    def is_due(self, turn: Turn) -> bool:
        return not turn.has_more

    def do(self, turn: Turn) -> None:
        now = turn.poll.at
        day = Day.before(now, self._daily.zone)
        if self._summarized != day.date:
            self._begin(day)
        while self._days:
            self._sum_up_some(self._days[0], now)
            if turn.seconds_left < JOB_SECONDS:
                return
        clock = self._daily.clock
        if clock and self._noted != day.date and now >= day.at(clock):
            self._note(day)

    def _begin(self, day: Day) -> None:
        """The day, and first the one before, if they are not summed up yet."""
        saved = self._store.saved()
        self._days = [each for each in (day.day_before, day) if each.date not in saved]
        self._summarized = day.date
        self._begin_next()

    def _begin_next(self) -> None:
        self._judged, self._older, self._has_jobs = [], [], False
        self._left = self._ledger.job_names() if self._days else []

    def _sum_up_some(self, day: Day, now: datetime) -> None:
        if self._left and not self._older:  # a job that is newer than the day has no runs of it
            names, self._left = self._left[:JOBS_PER_LOOK], self._left[JOBS_PER_LOOK:]
            self._older = self._store.older(names, day.end)
            self._has_jobs = self._has_jobs or bool(self._older)
            return
        if self._older:
            name = self._older.pop()
            for spec in self._ledger.some_specs([name], remembered=False).values():
                self._judged.append(self._judge(spec, day, now))
            return
        counts = self._store.counts(day)
        if self._has_jobs or counts:  # not of days before there was a job
            summary = summary_of(day, counts, self._judged)
            self._store.save(summary)
            log.info("day summed up", **summary.model_dump(mode="json"))
        self._days.pop(0)
        self._begin_next()

    def _judge(self, spec: JobSpec, day: Day, now: datetime) -> JobDay:
        runs, kept = self._store.runs(spec.name, day)
        if not runs:
            return JobDay(spec.name, 0, 0, None, is_whole=True)
        durations = self._ledger.durations_of([spec])[spec.name]
        interval = interval_of(next_ticks(spec, now))
        late = late_after(spec, interval, usual_duration(spec, durations, interval))
        is_whole = runs[0].at < day.start or kept < spec.history
        return job_day(spec.name, runs, day, late, is_whole=is_whole)

    def _note(self, day: Day) -> None:
        self._noted = day.date
        saved = self._store.saved()
        if day.date not in saved:
            return
        text = "\n".join(lines(saved[day.date], saved.get(day.day_before.date)))
        daily = Occurrence(SERVICE, Event.DAILY, Event.DAILY, day.date.isoformat(), text)
        NoticeStore(self._ledger).observe([daily])


def part(beat: BeatContext) -> Part:
    """Raises NotConfigured for what the environment says wrongly."""
    return Part(follow=(Summaries(beat.ledger),))
