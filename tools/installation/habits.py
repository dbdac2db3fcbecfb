"""The jobs of an installation, and what becomes of their runs."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import product
from typing import Any

from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec

TEAMS = ("billing", "imports", "mail", "reports", "search", "warehouse")
VERBS = ("archive", "check", "clean", "export", "rebuild", "refresh", "send", "sync")
NOUNS = (
    *("accounts", "addresses", "backups", "catalogue", "feeds", "images", "invoices"),
    *("ledgers", "orders", "prices", "scores", "sessions", "stock", "tokens"),
)
TENANTS = ("", "eu", "us", "asia", "test")

#: Keys of a job's schedule, one of which is drawn; the more there are of a kind, the more often.
OFTEN = [{"every": every} for every in ("5m", "10m", "15m")]
HOURLY = [{"cron": f"{minute} * * * *"} for minute in (0, 0, 0, 5, 17, 30, 42)]
DAILY = [
    *({"cron": f"0 {hour} * * *"} for hour in (0, 0, 0, 2, 2, 3, 4, 6, 12, 22)),
    *({"cron": f"{minute} {hour} * * *"} for minute, hour in ((10, 1), (30, 5), (45, 23))),
    {"cron": "30 2 * * *", "timezone": "Europe/Berlin"},
    {"cron": "0 1 * * *", "timezone": "America/New_York"},
]
WEEKLY = [{"cron": "0 5 * * 1"}, {"cron": "0 23 * * 5", "timezone": "Europe/London"}]
MONTHLY = [{"cron": "0 4 1 * *"}]

#: How many of a hundred jobs are of each kind, and between how many seconds their runs take.
KINDS = (
    (4, OFTEN, (3, 90)),
    (10, HOURLY, (15, 400)),
    (70, DAILY, (40, 4_000)),
    (11, WEEKLY, (300, 9_000)),
    (5, MONTHLY, (600, 20_000)),
)

ERRORS = (
    "ConnectionError: HTTPSConnectionPool(host='api.example.com', port=443): Max retries exceeded",
    "OperationalError: could not connect to server: Connection refused",
    "KeyError: 'customer_id'",
    "ValueError: time data '31.11.2026' does not match format '%d.%m.%Y'",
    "PermissionError: [Errno 13] Permission denied: '/srv/exports/today.csv'",
)

#: Of runs that time out, where their job names none.
LIMIT = timedelta(minutes=2)

TRACEBACK = """\
Traceback (most recent call last):
  File "/srv/app/{team}/tasks.py", line 118, in {verb}
    for row in source.rows(day):
  File "/srv/app/{team}/source.py", line 41, in rows
    return self._client.get(self._url, timeout=30)
{error}
"""


@dataclass(slots=True)
class Habit:
    """What becomes of a job's runs."""

    spec: JobSpec

    seconds: float
    """How long they took a week ago."""

    growth: float = 0.0
    """By what share more they take now."""

    failing_share: float = 0.003

    broken_for: timedelta = timedelta()
    """All have failed for that long."""

    outcome: RunState = RunState.FAILED
    error: str = ERRORS[0]
    crashing_share: float = 0.0

    is_stuck: bool = False
    """The last one hangs."""

    paused_for: timedelta = timedelta()

    def is_broken_at(self, at: datetime, now: datetime) -> bool:
        """`now`: where history ends."""
        return bool(self.broken_for) and at > now - self.broken_for

    @property
    def traceback(self) -> str:
        team, verb, *_ = self.spec.name.split("-")
        return TRACEBACK.format(team=team, verb=verb, error=self.error)


def habits(jobs: int, chance: random.Random) -> list[Habit]:
    """The jobs, and what is wrong with some of them: with one in sixty of each kind of trouble."""
    names = list(product(TEAMS, VERBS, NOUNS, TENANTS))
    chance.shuffle(names)
    found = [habit_of(*name, chance) for name in names[:jobs]]
    for number, habit in enumerate(found):
        trouble(habit, number % 60, chance)
    return found


def habit_of(team: str, verb: str, noun: str, tenant: str, chance: random.Random) -> Habit:
    [(_, schedules, (least, most))] = chance.choices(KINDS, [share for share, _, _ in KINDS])
    keys: dict[str, Any] = dict(chance.choice(schedules))
    labels = {"team": team, "tenant": tenant} if tenant else {"team": team}
    if schedules is OFTEN:
        keys["overlap"] = chance.choice(("skip", "skip", "queue_one"))
    if schedules is DAILY and chance.random() < 0.2:
        keys["due_by"] = "6h"
    if chance.random() < 0.3:
        keys["time_limit"] = 4 * most
    if chance.random() < 0.2:
        keys["max_duration"] = most + 1
    if chance.random() < 0.4:
        keys["description"] = f"{verb.capitalize()}s {noun}. Owner: team {team}."
    seconds = least * (most / least) ** chance.random()
    queue = "imports" if team == "imports" else None
    name = "-".join(filter(None, (team, verb, noun, tenant)))
    spec = JobSpec(name=name, task=f"{team}.{verb}", labels=labels, queue=queue, **keys)
    return Habit(spec, seconds, error=chance.choice(ERRORS))


def trouble(habit: Habit, kind: int, chance: random.Random) -> None:
    match kind:
        case 0 | 1:
            habit.broken_for = timedelta(hours=chance.choice((2, 5, 14, 40, 90)))
        case 2:
            habit.broken_for, habit.outcome = timedelta(days=3), RunState.TIMED_OUT
            limit = habit.spec.time_limit or LIMIT
            habit.error = f"ran longer than its time limit of {limit.total_seconds():.0f} s"
        case 3 | 4:
            habit.growth = chance.choice((0.6, 1.5, 4.0))
        case 5:
            habit.is_stuck = True
        case 6:
            habit.is_stuck = True
            keys = {**habit.spec.model_dump(exclude_unset=True), "overlap": "queue_all"}
            habit.spec = JobSpec.model_validate(keys)
        case 7:
            habit.paused_for = timedelta(hours=chance.choice((3, 30, 70)))
        case 8 | 9:
            habit.failing_share = 0.08
        case 10:
            habit.crashing_share = 0.1
        case _:
            pass
