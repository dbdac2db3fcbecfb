"""Jobs that follow others, in the ledger: which follow which, what ended, and what is remembered.

The functions append to one list what others may wait for (`note_for_followers` in followers.lua):
that a run has ended, that a tick waits, that a job was edited. Beat reads from its head
(features/following/step.py), and follow.lua takes off what was dealt with, together with all that
came of it: a beat that dies in between leaves the list as it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from supervisor.errors import InvalidJob
from supervisor.features.following.links import following_problems
from supervisor.job.policies import AfterPolicy
from supervisor.job.run import RunState
from supervisor.job.run_ids import tick_id
from supervisor.job.spec import JobSpec
from supervisor.ledger.attempt import Rescue, rescues
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.run_record import lines_of
from supervisor.times import instant

#: A job remembers how the jobs that it follows ended: under each nominal time, or under LATEST
#: since its own last run. Fields that begin with WAITING name the ticks that wait.
LATEST = "latest"
WAITING = "waiting:"


@dataclass(frozen=True, slots=True)
class RunEnd:
    """A run of a job has ended, or ticks from `first` to `nominal` came to nothing; in ms."""

    job: str
    run_id: str
    state: RunState
    nominal: int
    first: int

    restored: tuple[int, ...] = ()
    """Of such ticks those that have runs nevertheless."""

    followed_by: tuple[tuple[AfterPolicy, str], ...] = ()
    """Single runs that wait for this one, and how it has to end for each."""

    @property
    def is_triggered(self) -> bool:
        """Whether the run's time is not what it is known by."""
        is_one = self.first == self.nominal
        return is_one and not self.run_id.startswith(tick_of(self.job, self.nominal))


@dataclass(frozen=True, slots=True)
class RunWaits:
    """A run waits for others: a tick, or a run that was triggered to follow another."""

    job: str
    run_id: str
    nominal: int


@dataclass(frozen=True, slots=True)
class Edited:
    """A job was edited or removed that followed others until then."""

    job: str


FollowEvent = RunEnd | RunWaits | Edited


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """What a waiting run waits for, if that is a single run."""

    after: str | None = None
    policy: AfterPolicy = AfterPolicy.SUCCESS

    ended: RunState | None = None
    """How that one ended, if it has."""


@dataclass(slots=True)
class Memory:
    """What a job that follows others remembers."""

    times: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Nominal time in ms as text, or LATEST -> {"ended": {job: [state, run id]}, "decided": "ran",
    "skipped" or absent}."""

    waiting: dict[str, int] = field(default_factory=dict)
    """Ids of the ticks that wait -> their nominal times in ms."""

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Memory:
        memory = cls()
        for name, text in fields.items():
            if name.startswith(WAITING):
                memory.waiting[name.removeprefix(WAITING)] = int(text)
            else:
                memory.times[name] = json.loads(text)
        return memory

    @property
    def fields(self) -> dict[str, str]:
        times = {name: json.dumps(record, sort_keys=True) for name, record in self.times.items()}
        return {**times, **{WAITING + run_id: str(at) for run_id, at in self.waiting.items()}}


@dataclass(frozen=True, slots=True)
class Effect:
    """One change that follow.lua makes: release, skip, cancel or set, and of what."""

    kind: str
    subject: str
    what: str = ""
    value: str = ""

    @property
    def arguments(self) -> tuple[str, str, str, str]:
        return self.kind, self.subject, self.what, self.value


def event_from(text: str) -> FollowEvent:
    record = json.loads(text)
    if "waiting" in record:
        return RunWaits(record["job"], record["waiting"], int(record["nominal"]))
    if "edited" in record:
        return Edited(record["edited"])
    waiting = (line.partition(" ") for line in lines_of(record.get("followed_by")))
    return RunEnd(
        job=record["job"],
        run_id=record["run"],
        state=RunState(record["state"]),
        nominal=int(record["nominal"]),
        first=int(record.get("first", record["nominal"])),
        restored=tuple(record.get("restored", ())),
        followed_by=tuple((AfterPolicy(policy), run_id) for policy, _, run_id in waiting),
    )


class Followers:
    """Reads and writes of all this; a few round trips, whatever the number of events."""

    def __init__(self, ledger: Ledger) -> None:
        self._client = ledger.client
        self._keys = ledger.keys
        self._functions = ledger.functions
        self._leadership = ledger.leadership

    def of(self, jobs: Sequence[str]) -> dict[str, list[str]]:
        """Job -> names of the jobs that follow it, sorted; without jobs that none follows."""
        with self._client.pipeline(transaction=False) as pipe:
            for job in jobs:
                pipe.smembers(self._keys.followers(job))
            followers = zip(jobs, pipe.execute(), strict=True)
        return {job: sorted(names) for job, names in followers if names}

    def endings(self, limit: int) -> list[str]:
        """The first texts of the list, as they are."""
        texts: list[str] = self._client.lrange(self._keys.endings, 0, limit - 1)
        return texts

    def memories(self, jobs: Sequence[str]) -> dict[str, Memory]:
        with self._client.pipeline(transaction=False) as pipe:
            for job in jobs:
                pipe.hgetall(self._keys.following(job))
            return {
                job: Memory.of(fields) for job, fields in zip(jobs, pipe.execute(), strict=True)
            }

    def waiting(self, run_ids: Sequence[str]) -> dict[str, WaitingRun]:
        """The runs among these that still wait for others."""
        of_waiting = ("waits_for_others", "after", "after_policy")
        runs = {
            run_id: WaitingRun(after, AfterPolicy(policy or AfterPolicy.SUCCESS))
            for run_id, (waits, after, policy) in self._fields(run_ids, of_waiting).items()
            if waits
        }
        after = [run.after for run in runs.values() if run.after]
        # A run without a record ended long ago. Its outcome is unknown, so it counts as lost.
        ended = {
            run_id: RunState(state or RunState.LOST)
            for run_id, (state, finished) in self._fields(after, ("state", "finished")).items()
            if finished or not state
        }
        return {
            run_id: WaitingRun(run.after, run.policy, ended.get(run.after)) if run.after else run
            for run_id, run in runs.items()
        }

    def ends(self, run_ids: Sequence[str]) -> dict[str, RunState]:
        """How those of the runs ended that have ended."""
        records = self._fields(run_ids, ("state", "finished"))
        return {i: RunState(state) for i, (state, finished) in records.items() if finished}

    def _fields(self, run_ids: Sequence[str], fields: Sequence[str]) -> dict[str, list[Any]]:
        with self._client.pipeline(transaction=False) as pipe:
            for run_id in run_ids:
                pipe.hmget(self._keys.run(run_id), fields)
            return dict(zip(run_ids, pipe.execute(), strict=True))

    def commit(self, texts: Sequence[str], changes: Iterable[Effect]) -> tuple[Rescue, ...] | None:
        """Takes these endings off the list with all that came of them.

        None, and nothing is changed, when another beat leads or has dealt with them.
        """
        token, keys = self._leadership.token, self._leadership.keys
        arguments = chain.from_iterable(change.arguments for change in changes)
        reply = self._functions("follow", token, texts[0], len(texts), *arguments, keys=keys)
        return None if reply is None else rescues(reply)


def tick_of(job: str, nominal: int) -> str:
    """The id of the run of a nominal time in ms."""
    return tick_id(job, instant(nominal))


def check_following(ledger: Ledger, changed: Mapping[str, JobSpec | None]) -> None:
    """Raises InvalidJob for a job that would follow one that is not there, or go in a circle."""
    removed = [name for name, spec in changed.items() if spec is None]
    followers = {name for names in Followers(ledger).of(removed).values() for name in names}
    specs = {name: spec for name, spec in changed.items() if spec is not None}
    specs.update(ledger.some_specs(followers - changed.keys()))
    while more := {name for spec in specs.values() for name in spec.after} - {*specs, *removed}:
        others = ledger.some_specs(more)
        if not others:
            break
        specs.update(others)
    if following_problems(specs):
        left = [name for name in ledger.job_names() if name not in removed]
        problems = following_problems(specs, left, removed)
        texts = [p.what + (f" ({p.hint})" if p.hint else "") for p in problems]
        is_one = len(changed) == 1 and problems[0].job in changed
        words = texts if is_one else [f"{p.job}: {t}" for p, t in zip(problems, texts, strict=True)]
        raise InvalidJob(next(iter(changed)) if len(changed) == 1 else "", words)
