"""Which messages a destination gets of what happens to its jobs, and when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from random import Random

import pytest

from supervisor.features.notices.incidents import (
    FORGET_AFTER,
    Groups,
    Incident,
    JobEvent,
    Occurrences,
    Pair,
    by_id,
    destination_id,
    notice_of,
    update_incidents,
)
from supervisor.features.notices.keys import JOB_EVENTS, Destination, Event
from supervisor.features.notices.rules import title

START = datetime(2026, 3, 1, 10, 0, tzinfo=UTC)
URL = "https://hooks.example/x"
ID = destination_id(URL)

#: "10:05:30 title", by minutes and seconds from START.
Message = str


class Service:
    """Takes notices when they are due; a test sets `unavailable_until`."""

    def __init__(self, events: frozenset[Event] = JOB_EVENTS) -> None:
        self.destinations = by_id([Destination(url=URL, events=events)])
        self.groups = Groups()
        self.incidents: dict[Pair, Incident] = {}
        self.messages: list[Message] = []
        self.runs = 0
        self.failures_told = 0
        self.silence: tuple[float, float] | None = None

    def pass_time(self, events: Sequence[tuple[float, str, str]], until: float) -> None:
        """events: minutes from START, job, "ok", or an event and its reason."""
        waiting = sorted(events, key=lambda event: event[0])
        for second in count(step=2):
            now = START + timedelta(seconds=second)
            minutes = second / 60
            if minutes > until:
                return
            happened = []
            while waiting and waiting[0][0] <= minutes:
                _, job, what = waiting.pop(0)
                happened.append(self.happened(job, what, now))
            self.group(happened, now)
            self.send(now)

    def happened(self, job: str, what: str, now: datetime) -> JobEvent:
        if what == "ok":
            return JobEvent(job, Event.RECOVERED, Occurrences(first_at=now, last_at=now, runs=0))
        event, _, reason = what.partition(" ")
        self.runs += 1
        return JobEvent(job, Event(event), Occurrences(first_at=now, last_at=now, reason=reason))

    def group(self, happened: Sequence[JobEvent], now: datetime) -> None:
        due = [pair for pair, i in self.incidents.items() if i.next_check <= now]
        if happened or due:
            wanted = dict.fromkeys((each.job for each in happened), self.destinations)
            wanted |= dict.fromkeys((job for _, job in due), self.destinations)
            quiet = self.silenced(wanted, now)
            update_incidents(happened, due, wanted, self.incidents, {ID: self.groups}, now, quiet)

    def silenced(self, jobs: Iterable[str], now: datetime) -> dict[str, datetime]:
        if self.silence is None:
            return {}
        begins, ends = (START + timedelta(minutes=minutes) for minutes in self.silence)
        return dict.fromkeys(jobs, ends) if begins <= now < ends else {}

    def send(self, now: datetime) -> None:
        if self.groups.unavailable_until and now < self.groups.unavailable_until:
            return
        for id, pending in sorted(self.groups.notices.items(), key=lambda item: item[1].due_at):
            if pending.due_at <= now:
                del self.groups.notices[id]
                self.failures_told += pending.occurrences.runs
                clock = f"{now:%H:%M:%S}"
                self.messages.append(f"{clock} {title(notice_of(pending, '', ID))}")


def messages(*events: tuple[float, str, str], until: float = 150) -> list[Message]:
    service = Service()
    service.pass_time(events, until)
    assert service.failures_told == service.runs, "each failure is told of, in whichever message"
    return service.messages


BOOM = "failed ValueError: boom"

CASES: dict[str, tuple[list[tuple[float, str, str]], list[Message]]] = {
    "one failure is told after the group's wait": (
        [(0, "a", BOOM)],
        ["10:00:30 a failed: ValueError"],
    ),
    "a success without a failure is not told": ([(0, "a", "ok")], []),
    "recovery follows the failure": (
        [(0, "a", BOOM), (5, "a", "ok")],
        ["10:00:30 a failed: ValueError", "10:05:30 a recovered"],
    ),
    "recovery within the wait comes after the failure": (
        [(0, "a", BOOM), (0.1, "a", "ok")],
        ["10:00:30 a failed: ValueError", "10:01:00 a recovered"],
    ),
    "failures of one cause are one message": (
        [(0, f"j{n}", BOOM) for n in range(30)],
        ["10:00:30 30 jobs failed: ValueError"],
    ),
    "failures of two causes are two": (
        [(0, "a", BOOM), (0, "b", "failed KeyError: 'x'")],
        ["10:00:30 a failed: ValueError", "10:00:30 b failed: KeyError"],
    ),
    "what joins a group later waits for its interval": (
        [(0, "a", BOOM), (1, "b", BOOM), (2, "c", BOOM)],
        ["10:00:30 a failed: ValueError", "10:05:30 2 jobs failed: ValueError"],
    ),
    "a job that goes on failing is told once an hour": (
        [(minute, "a", BOOM) for minute in range(120)],
        [f"{hour}:00:30 a failed: ValueError" for hour in (10,)]
        + ["11:01:00 a failed: ValueError", "12:01:30 a failed: ValueError"],
    ),
    "a flapping job is told once an hour": (
        [(m, "a", BOOM if m % 10 == 0 else "ok") for m in range(0, 120, 5)],
        [
            *("10:00:30 a failed: ValueError", "10:05:30 a recovered"),
            *("11:01:00 a failed: ValueError", "11:05:30 a recovered"),
            *("12:01:30 a failed: ValueError", "12:02:00 a recovered"),
        ],
    ),
    "a recovery takes along what is unsent of its incident": (
        [(0, "a", BOOM), (10, "a", BOOM), (20, "a", BOOM), (30, "a", "ok")],
        ["10:00:30 a failed: ValueError", "10:30:30 a recovered"],
    ),
    "a recovery that does not last is not told": (
        [(0, "a", BOOM), (5, "a", "ok"), (5.2, "a", BOOM), (6, "a", "ok")],
        ["10:00:30 a failed: ValueError", "10:06:30 a recovered"],
    ),
    "jobs that recover together are one message": (
        [(0, f"j{n}", BOOM) for n in range(9)] + [(9, f"j{n}", "ok") for n in range(9)],
        ["10:00:30 9 jobs failed: ValueError", "10:09:30 9 jobs recovered"],
    ),
    "an overlap has no end": (
        [(0, "a", "overlapped"), (5, "a", "ok")],
        ["10:00:30 a had runs that overlapped"],
    ),
    "events of two kinds are two incidents with one end": (
        [(0, "a", BOOM), (10, "a", "due_by"), (20, "a", "ok")],
        [
            *("10:00:30 a failed: ValueError", "10:10:30 a has not succeeded in time"),
            "10:20:30 a recovered",
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_messages_of(case: str) -> None:
    events, said = CASES[case]
    assert messages(*events) == said


#: Notices of all jobs are silenced from 10:10 to 10:40.
SILENCED: dict[str, tuple[list[tuple[float, str, str]], list[Message]]] = {
    "what is over when it ends is not told": ([(15, "a", BOOM), (20, "a", "ok")], []),
    "what still fails is told when it ends": (
        [(15, "a", BOOM), (16, "b", BOOM), (20, "a", BOOM)],
        ["10:40:30 2 jobs failed: ValueError"],
    ),
    "what fails again after its recovery is told when it ends": (
        [(15, "a", BOOM), (20, "a", "ok"), (25, "a", "failed KeyError: 1")],
        ["10:40:30 a failed: KeyError"],
    ),
    "its recovery follows": (
        [(15, "a", BOOM), (50, "a", "ok")],
        ["10:40:30 a failed: ValueError", "10:50:30 a recovered"],
    ),
    "the end of what was told before is not": (
        [(0, "a", BOOM), (15, "a", "ok")],
        ["10:00:30 a failed: ValueError"],
    ),
    "what was told before is not told again within the hour": (
        [(0, "a", BOOM), (15, "a", BOOM)],
        ["10:00:30 a failed: ValueError", "11:01:00 a failed: ValueError"],
    ),
    "what fails anew after it is told": (
        [(0, "a", BOOM), (15, "a", "ok"), (70, "a", BOOM)],
        ["10:00:30 a failed: ValueError", "11:10:30 a failed: ValueError"],
    ),
    "an overlap is not told": ([(15, "a", "overlapped")], []),
    "what was made before it is told": (
        [(9.9, "a", BOOM), (15, "a", "ok")],
        ["10:10:24 a failed: ValueError"],
    ),
    "before and after it all is as ever": (
        [(0, "a", BOOM), (5, "a", "ok"), (45, "b", BOOM)],
        [
            *("10:00:30 a failed: ValueError", "10:05:30 a recovered"),
            "10:45:30 b failed: ValueError",
        ],
    ),
}


@pytest.mark.parametrize("case", SILENCED)
def test_messages_around_a_silence(case: str) -> None:
    events, said = SILENCED[case]
    service = Service()
    service.silence = (10, 40)
    service.pass_time(events, until=150)
    assert service.messages == said
    assert said or service.incidents == {}, "what was never told is forgotten"


def test_a_longer_silence_holds_what_the_first_would_have_told() -> None:
    service = Service()
    service.silence = (10, 40)
    service.pass_time([(15, "a", BOOM)], until=30)
    service.silence = (10, 60)
    service.group([], START + timedelta(minutes=40))
    assert service.messages == []
    [incident] = service.incidents.values()
    assert incident.next_check == START + timedelta(minutes=60)


def test_a_destination_gets_only_the_events_that_it_lists() -> None:
    service = Service(frozenset({Event.LOST}))
    service.pass_time([(0, "a", BOOM), (1, "a", "lost gone"), (2, "a", "ok")], until=10)
    assert service.messages == ["10:01:30 a lost its worker"]


def test_what_comes_while_a_service_is_away_joins_what_waits() -> None:
    service = Service()
    service.groups.unavailable_until = START + timedelta(minutes=60)
    service.pass_time([(minute, f"j{minute}", BOOM) for minute in range(40)], until=70)
    assert service.messages == ["11:00:00 40 jobs failed: ValueError"]
    assert service.failures_told == 40


def test_recovery_is_sent_after_its_problem_to_a_service_that_was_away() -> None:
    service, requested_at = Service(), START + timedelta(minutes=5)
    service.groups.unavailable_until = requested_at
    service.pass_time([(0, "a", BOOM), (1, "a", "ok")], until=4)
    service.group(
        [service.happened("b", BOOM, requested_at)], requested_at
    )  # while it is asked in vain
    service.groups.unavailable_until = START + timedelta(minutes=60)
    service.pass_time([(10, "b", "ok")], until=70)
    said = ["a failed: ValueError", "a recovered", "b failed: ValueError", "b recovered"]
    assert service.messages == [f"11:00:00 {each}" for each in said]


def test_incident_is_forgotten_when_nothing_is_left_of_it() -> None:
    service = Service()
    service.pass_time([(0, "a", BOOM), (5, "a", "ok")], until=70)
    assert service.incidents == {}
    service.pass_time([(0, "b", BOOM)], until=90)
    assert len(service.incidents) == 1, "it may recover"
    service.group([], START + FORGET_AFTER + timedelta(hours=1))
    assert service.incidents == {}


def test_what_no_file_asks_for_any_more_is_dropped() -> None:
    service = Service()
    service.pass_time([(0, "a", BOOM), (10, "a", BOOM)], until=20)
    update_incidents(
        [], [*service.incidents], {}, service.incidents, {}, START + timedelta(hours=2)
    )
    assert service.incidents == {}


def test_problem_and_recovery_name_one_incident() -> None:
    service = Service()
    service.group([service.happened("a", BOOM, START)], START)
    [problem] = service.groups.notices.values()
    later = START + timedelta(minutes=1)
    service.groups.notices.clear()
    service.group([service.happened("a", "ok", later)], later)
    [end] = service.groups.notices.values()
    told, closed = notice_of(problem, "1", ID, "https://jobs.example/"), notice_of(end, "2", ID)
    assert told.incident == closed.incident
    assert told.link == "https://jobs.example/jobs/a"
    assert closed.reason == "Before that: failed: ValueError"


class Unreliable(Service):
    """Does not answer now and then, for up to an hour."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.failing = random.choice([0, 0.3, 0.7])
        self.heard: list[tuple[Event, tuple[str, ...]]] = []

    def send(self, now: datetime) -> None:
        if self.groups.unavailable_until and now < self.groups.unavailable_until:
            return
        for id, pending in sorted(self.groups.notices.items(), key=lambda item: item[1].due_at):
            if pending.due_at > now:
                continue
            if self.random.random() < self.failing:
                wait = timedelta(seconds=self.random.choice([5, 60, 600, 3600]))
                self.groups.unavailable_until = now + wait
                return
            del self.groups.notices[id]
            self.failures_told += pending.occurrences.runs
            self.heard.append((pending.event, pending.jobs))


@pytest.mark.parametrize("seed", range(8))
def test_last_word_of_a_job_is_how_it_is(seed: int) -> None:
    """Whatever happens, and however often the service is away."""
    random, minutes, last = Random(seed), 0.0, dict[str, str]()
    service, happened = Unreliable(random), []
    for _ in range(40):
        minutes += random.choice([0.1, 1, 5, 20, 70])
        job, what = (
            random.choice("abc"),
            random.choice(["ok", BOOM, "failed KeyError: 1", "due_by"]),
        )
        happened.append((minutes, job, what))
        last[job] = what
    service.pass_time(happened, until=minutes + 1)
    service.failing = 0
    for seconds in range(0, 5 * 3600, 30):
        now = START + timedelta(minutes=minutes + 1, seconds=seconds)
        service.group([], now)
        service.send(now)
    assert service.failures_told == service.runs
    for job, what in last.items():
        events = [event for event, jobs in service.heard if job in jobs]
        assert (Event.RECOVERED in events[-1:]) == (what == "ok" and bool(events)), events
        assert (Event.RECOVERED, Event.RECOVERED) not in pairwise(events)
