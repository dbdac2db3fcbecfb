"""A week of an installation's runs, made by the ledger's own functions, and what comes after it.

The functions are loaded a second time under another name, and read the time from a further argument
of each call. So a week takes a minute, and no record is of another make.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from itertools import count
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

from celery import Celery

from supervisor.app import supervise
from supervisor.beat.turn import Turn
from supervisor.catalog.entries import Entries
from supervisor.catalog.load import load
from supervisor.deploy.embedded import EmbeddedServer
from supervisor.features.days.store import FIRST, ROUNDS, WORDS, counts_of
from supervisor.features.summary.step import Summaries
from supervisor.job.reports import Reported, ReportedLine, ReportedProgress
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import Action, Actor
from supervisor.ledger.admission import Placement
from supervisor.ledger.attempt import AttemptPhase, Grant
from supervisor.ledger.function_library import Library, library_of
from supervisor.ledger.functions import Call, Functions
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import YEAR
from supervisor.ledger.presence import BeatProcess, Broker, Registration, WorkerProcess, digest_of
from supervisor.ledger.reader import chunks
from supervisor.ledger.run_request import RunRequest
from supervisor.ledger.runs import Reports
from supervisor.schedule import schedule_of
from supervisor.schedule.ticks import PassedOver, Tick
from supervisor.settings import Settings
from supervisor.store.connection import Client
from supervisor.store.keys import Keys
from supervisor.times import ms_of
from tools.installation.habits import LIMIT, Habit, habits

WEEK = timedelta(days=7)

#: Three days ago no beat led for so long.
SILENCE = timedelta(minutes=40)

#: Jobs that run often keep their last 200 runs, so these are all that is made.
MOST_RUNS = 200


Kind = Literal["tick", "begin", "end", "pause", "trigger"]


@dataclass(order=True, slots=True)
class Event:
    """What happens to a job at a moment: a tick, the begin of a run, or its end; or a person pauses
    the job, or triggers a run."""

    at: datetime
    number: int
    kind: Kind = field(compare=False)
    habit: Habit = field(compare=False)
    run: str = field(default="", compare=False)
    token: str = field(default="", compare=False)


class Installation:
    """The jobs, and the worker and beat that they need, in one process. now: where history ends."""

    def __init__(self, settings: Settings, app: Celery, jobs: int, now: datetime) -> None:
        self._chance = random.Random(jobs)
        self.habits = habits(jobs, self._chance)
        self.now, self.start = now, now - WEEK
        self._silent_from = now - timedelta(days=3)
        self.ledger = Ledger.open(settings)
        self._past = LedgerOfThePast.open(settings)
        self._entries = Entries(app, self.ledger)
        self._numbers = count()
        self._events: list[Event] = []
        self._running: dict[str, str] = {}

    def fill(self) -> None:
        self.ledger.acknowledge_server()
        self._load()
        self._expect_people()
        self._lead_until(self._silent_from)
        self._lead_until(self.now, since=self._silent_from + SILENCE)
        self._say_what_stuck_runs_do()
        marks = self.ledger.marks([habit.spec.name for habit in self.habits])
        following = {
            habit.spec.name: schedule_of(habit.spec).next_after(
                marks[habit.spec.name].watermark or self.now
            )
            for habit in self.habits
        }
        for names in chunks(list(following)):
            self._entries.reschedule({name: following[name] for name in names})
        self.ledger.functions.forget_other_versions()
        self._sum_up_days()
        for habit in self.habits:
            self._count_year(habit)

    def _sum_up_days(self) -> None:
        """Yesterday and the day before it, as beat does."""
        turn = SimpleNamespace(poll=SimpleNamespace(at=self.now), seconds_left=inf)
        Summaries(self.ledger, {}).do(cast(Turn, turn))

    def _count_year(self, habit: Habit) -> None:
        """The outcomes of the days before the history: each day has as many as that of the week."""
        key, name, now = self.ledger.keys.outcomes(habit.spec.name), habit.spec.name, self.now
        counts = counts_of(self.ledger, name, now.date())
        week = {day.weekday(): sum(of_day.values()) for day, of_day in counts.items()}
        if not week:
            return
        if habit.spec.every:  # its history is shorter than a week
            week = dict.fromkeys(range(7), max(week.values()))
        for ago in range(WEEK.days + 1, self._chance.randrange(60, YEAR)):
            runs = week.get((now - timedelta(days=ago)).weekday(), 0)
            is_bad = runs and self._chance.random() < habit.failing_share
            failed = self._chance.randint(1, runs) if is_bad else 0
            skipped = int(self._chance.random() < 0.02) if runs > failed else 0
            of_day = {"succeeded": runs - failed - skipped, "failed": failed, "skipped": skipped}
            write_day(self.ledger, key, now.date() - timedelta(days=ago), of_day)

    def _lead_until(self, end: datetime, since: datetime | None = None) -> None:
        """What happens until then; a beat leads at the end, and `since`."""
        leader = self._past.leader("redbeat::lock", self._entries.keys.schedule)
        if since:
            self._set_clock(since)
            leader.poll()
            leader.poll(since)
        while self._events and self._events[0].at <= end:
            self._set_clock(self._events[0].at)
            self._do(self._past, self._events[0].at)
        self._set_clock(end)
        leader.poll()
        leader.poll(end)
        leader.resign()

    def _set_clock(self, at: datetime) -> None:
        self._past.told.now = ms_of(at)

    def keep_alive(self) -> None:
        """Renews the leases of what runs."""
        for some in chunks(list(self._running.items())):
            self.ledger.renew([(run, token, AttemptPhase.AT_WORK, None) for run, token in some])

    def go_on(self) -> None:
        """Does what is due by now."""
        now = self.ledger.now()
        while self._events and self._events[0].at <= now:
            self._do(self.ledger, self._events[0].at)

    def _load(self) -> None:
        """Each job from where its history begins: files grow, and what is loaded stays."""
        starts: dict[datetime, list[Habit]] = {}
        for habit in self.habits:
            ahead = (habit.spec.every or WEEK) * MOST_RUNS
            starts.setdefault(max(self.start, self.now - ahead), []).append(habit)
        wanted: dict[str, JobSpec] = {}
        for start, some in sorted(starts.items()):
            wanted |= {habit.spec.name: habit.spec for habit in some}
            places = {name: f"schedules/{name.split('-')[0]}.yaml" for name in wanted}
            self._set_clock(start)
            load(self._past, self._entries, wanted, f"of {len(wanted)}", start, None, places)
            for habit in some:
                self._expect_tick(habit, start)

    def _expect_people(self) -> None:
        for habit in self.habits:
            if habit.paused_for:
                self._expect(self.now - habit.paused_for, "pause", habit)
        for habit in self.habits[::40]:
            at = self.now - timedelta(hours=self._chance.uniform(1, 100))
            self._expect(at, "trigger", habit)

    def _expect(
        self, at: datetime, kind: Kind, habit: Habit, run: str = "", token: str = ""
    ) -> None:
        heapq.heappush(self._events, Event(at, next(self._numbers), kind, habit, run, token))

    def _expect_tick(self, habit: Habit, after: datetime) -> None:
        if (tick := schedule_of(habit.spec).next_after(after)) is not None:
            self._expect(tick, "tick", habit)

    def _expect_begins(
        self, at: datetime, habit: Habit, runs: Sequence[str], placement: Placement
    ) -> None:
        for run in runs if placement is Placement.START else ():
            waits = self._chance.expovariate(1 / 0.4) + 0.05
            self._expect(at + timedelta(seconds=waits), "begin", habit, run)

    def _do(self, ledger: Ledger, at: datetime) -> None:
        """All that happens at this moment."""
        due: list[Habit] = []
        while self._events and self._events[0].at == at:
            event = heapq.heappop(self._events)
            match event.kind:
                case "tick":
                    due.append(event.habit)
                    self._expect_tick(event.habit, at)
                case "begin":
                    self._begin(ledger, event)
                case "end":
                    self._finish(ledger, event)
                case "pause":
                    self._pause(ledger, event.habit.spec.name)
                case "trigger":
                    self._trigger(ledger, event)
        if due:
            self._admit(ledger, due, at)

    def _admit(self, ledger: Ledger, due: Sequence[Habit], at: datetime) -> None:
        if self._silent_from <= at < self._silent_from + SILENCE:
            specs = [habit.spec for habit in due]
            missed = RunState.MISSED
            ledger.pass_over(PassedOver(spec, missed, "catchup", at, at, 1) for spec in specs)
            return
        admissions = ledger.admit([Tick(habit.spec, at) for habit in due])
        for habit, admission in zip(due, admissions, strict=True):
            self._expect_begins(at, habit, [admission.run_id], admission.placement)
        if ledger is self.ledger:
            following = {h.spec.name: schedule_of(h.spec).next_after(at) for h in due}
            self._entries.reschedule(following)

    def _pause(self, ledger: Ledger, job: str) -> None:
        action = Action(Actor("ann", "page", "10.0.3.7"), "pause", job, "CHG-2041", (job,))
        ledger.pause(job, "the share moves to the new filer", action=action)

    def _trigger(self, ledger: Ledger, event: Event) -> None:
        habit, job = event.habit, event.habit.spec.name
        request = RunRequest(kwargs={"day": f"{event.at:%Y-%m-%d}", "is_full": True})
        action = Action(Actor("bob", "cli", "ops-1"), "trigger", job, "the file came late", (job,))
        [admission] = ledger.admit_requests(habit.spec, [request], action)
        self._expect_begins(event.at, habit, [admission.run_id], admission.placement)

    def _begin(self, ledger: Ledger, event: Event) -> None:
        token = f"token-{next(self._numbers)}"
        worker = f"worker-{self._chance.randrange(8)}@app-{self._chance.randrange(1, 4)}"
        if not isinstance(ledger.begin(event.run, token, worker), Grant):
            return
        habit, at = event.habit, event.at
        self._running[event.run] = token
        if habit.is_stuck and self._is_last(habit, at):
            return
        passed = max(0.0, (at - self.start) / WEEK)
        seconds = habit.seconds * (1 + habit.growth * passed) * self._chance.lognormvariate(0, 0.15)
        if habit.outcome is RunState.TIMED_OUT and habit.is_broken_at(at, self.now):
            seconds = (habit.spec.time_limit or LIMIT).total_seconds()
        self._expect(at + timedelta(seconds=seconds), "end", habit, event.run, token)

    def _is_last(self, habit: Habit, at: datetime) -> bool:
        """Of those that begin before now; of jobs that run often, one of some hours ago."""
        following = schedule_of(habit.spec).next_after(at + timedelta(hours=3))
        return following is None or following > self.now

    def _finish(self, ledger: Ledger, event: Event) -> None:
        habit, at = event.habit, event.at
        del self._running[event.run]
        is_broken = habit.is_broken_at(at, self.now)
        drawn = self._chance.random()
        if drawn < habit.crashing_share:
            done = ledger.report_dead(event.run, event.token, "its process ended with signal 9")
        elif is_broken or drawn < habit.crashing_share + habit.failing_share:
            self._log(ledger, event, ("connecting", "reading the first page"))
            outcome = habit.outcome if is_broken else RunState.FAILED
            traceback = habit.traceback if outcome is RunState.FAILED else ""
            done = ledger.finish(event.run, event.token, outcome, habit.error, traceback=traceback)
        else:
            done = ledger.finish(event.run, event.token, RunState.SUCCEEDED)
        self._expect_begins(at, habit, done.to_publish, Placement.START)

    def _log(self, ledger: Ledger, event: Event, texts: Sequence[str]) -> None:
        lines = tuple(ReportedLine(n, text, 0.0) for n, text in enumerate(texts, 1))
        ledger.reports.write(event.run, event.token, Reported(1, None, lines), 0.0)

    def _say_what_stuck_runs_do(self) -> None:
        self._set_clock(self.now)
        for run, token in self._running.items():
            progress = ReportedProgress(self._chance.randrange(1, 40), 40, "pages", 0.0)
            lines = (ReportedLine(1, "reading page 1 of 40", 0.0),)
            self._past.reports.write(run, token, Reported(1, progress, lines), 0.0)

    @property
    def tasks(self) -> list[str]:
        return sorted({task for habit in self.habits for task in habit.spec.tasks})


def write_day(ledger: Ledger, key: str, date: date, counts: Mapping[str, int]) -> None:
    """As if these outcomes had been counted on that day."""
    day = (date - FIRST).days
    words: list[str | int] = []
    for place, word in enumerate(WORDS, len(WORDS) * (day % YEAR)):
        count = counts.get(word, 0)
        words += ["SET", "u20", f"#{place}", 65_536 * (day // YEAR % ROUNDS + 1) + count]
    ledger.client.execute_command("BITFIELD", key, *words)


#: A function that another one calls has the time of that.
TOLD = """\
local told
local function told_in(argv)
  local ms = string.match(argv[#argv] or '', '^@(%d+)$')
  if ms then
    told = tonumber(ms)
    table.remove(argv)
  end
  return told
end
"""


class FunctionsOfThePast(Functions):
    """Those that are told the time with each call, in ms: `now`."""

    now = 0

    @cached_property
    def _library(self) -> Library:
        library = copy(library_of(self._keys.prefix))
        changed = library.text.replace(library.name, f"{library.name}_past")
        for here, told in (
            ("local function start_call()", f"{TOLD}local function start_call(ms)"),
            (
                "local time = redis.call('TIME')",
                "local time = { math.floor(ms / 1000), ms % 1000 * 1000 }",
            ),
            ("\nstart_call()\n", "\nstart_call(told_in(ARGV))\n"),
        ):
            assert here in changed
            changed = changed.replace(here, told)
        library.name, library.text = f"{library.name}_past", changed
        return library

    def _arguments(self, call: Call) -> tuple[Any, ...]:
        return (*super()._arguments(call), f"@{self.now}")


class LedgerOfThePast(Ledger):
    def __init__(self, client: Client, keys: Keys) -> None:
        super().__init__(client, keys)
        self.functions = self.told = FunctionsOfThePast(client, keys)
        self.reports = Reports(self)


class Processes:
    """A beat that leads and the workers of three machines, as far as they say that they do."""

    def __init__(self, installation: Installation, settings: Settings) -> None:
        self._tasks = installation.tasks
        entries = installation._entries.keys
        self._leader = installation.ledger.leader("redbeat::lock", entries.schedule, "installation")
        self._last_turn: datetime | None = None

        def registration() -> Registration:
            ledger = Ledger.open_without_retries(settings)
            return Registration(ledger, Broker("celery", is_ledger=True))

        names = [f"worker-{number}@app-{host}" for number, host in ((0, 1), (1, 2), (2, 3))]
        queues, tasks = ("celery", "imports"), digest_of(self._tasks)
        self._workers = [(registration(), WorkerProcess(name, queues, 8, tasks)) for name in names]
        self._beat = registration()

    def say(self) -> None:
        self._last_turn = self._leader.poll(self._last_turn).at
        self._beat.say(BeatProcess(self._leader.instance, leads=True))
        for registration, process in self._workers:
            registration.say(process, self._tasks)


@contextmanager
def installed(
    directory: Path, jobs: int, now: datetime | None = None
) -> Iterator[tuple[Installation, Processes, str]]:
    """An installation on a server of its own in this directory, and the server's address."""
    with EmbeddedServer(directory / "server") as server:
        settings = Settings(redis_url=server.url)
        app = Celery("installation", broker=server.url, set_as_current=False)
        with supervise(app):
            made = Installation(settings, app, jobs, now or datetime.now(UTC))
            made.fill()
            made.keep_alive()
            processes = Processes(made, settings)
            processes.say()
            yield made, processes, server.url
