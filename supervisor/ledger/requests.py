"""Requests of people, code, workers and beat to the ledger, as its functions read them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum
from itertools import chain
from typing import Any, NamedTuple

from supervisor.job.content import content_of_job
from supervisor.job.policies import AfterPolicy, OverlapPolicy
from supervisor.job.run import Message, Reference, RunRules, tick_id
from supervisor.job.spec import GuardedTaskSpec, JobSpec
from supervisor.job.steps import plan
from supervisor.job.templates import checked_key
from supervisor.ledger.functions import CALLS_AHEAD, Call, CallsAhead
from supervisor.ledger.replies import Admission, Placement, admission, ms_of
from supervisor.schedule.ticks import Tick
from supervisor.store.connection import NotWritable
from supervisor.times import to_ms


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run that is asked for by hand or by code; None means "as the job has it".

    nominal_at: the time that the run is for; now without it.
    params: of a run of several steps, over those of the job.
    key: the lock's key itself, not a template. max_wait: how long the run may wait for the lock;
    with `waits_for_ever` as long as it takes, whatever the job says.
    expires: from now on, the time in which it has to begin; it bounds the waiting as well.
    delay: the run is not to start before. options: of Celery's `apply_async`, for the message.
    is_awaited: code may wait for the run's result, and Celery is informed when there is none.
    is_of_code: the ledger is to know the job as code has it, from now on.
    message: of a call.
    after: id of a run that has to end first, as after_policy says.
    repeats: id of an ended run that this one repeats. references: where its arguments are words of
    a schedule file, to be resolved. plan: of the steps, with `params` as they begin with, in place
    of those of the job.
    """

    run_id: str | None = None
    nominal_at: datetime | None = None
    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    params: Mapping[str, Any] | None = None
    key: str | None = None
    overlap: OverlapPolicy | None = None
    max_wait: timedelta | None = None
    waits_for_ever: bool = False
    max_waiting: int | None = None
    expires: timedelta | None = None
    delay: timedelta = timedelta()
    options: Mapping[str, Any] = field(default_factory=dict)
    is_awaited: bool = False
    is_of_code: bool = False
    message: Message | None = None
    after: str | None = None
    after_policy: AfterPolicy = AfterPolicy.SUCCESS
    repeats: str = ""
    references: Sequence[Reference] = ()
    plan: Mapping[str, Any] | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """What this request says in place of the job's own rules."""
        said = {"overlap": self.overlap, "max_wait": self.max_wait, "max_waiting": self.max_waiting}
        changes: dict[str, Any] = {k: value for k, value in said.items() if value is not None}
        if self.waits_for_ever:
            changes["max_wait"] = None
        return changes

    def rules_for(self, spec: JobSpec) -> RunRules:
        """The job's rules with those of this request over them. Raises InvalidKey."""
        return self._ruled(spec).rules(self.lock_for(spec))

    def rules_text(self, spec: JobSpec) -> str:
        """The same as JSON, without the lock."""
        return self._ruled(spec).rules_text

    def _ruled(self, spec: JobSpec) -> JobSpec:
        changes = self.changes
        return spec.model_copy(update=changes) if changes else spec

    def lock_for(self, spec: JobSpec) -> str:
        if self.key is not None:
            return checked_key(self.key)
        if spec.steps:
            return spec.lock_for((), {**spec.params, **(self.params or {})})
        args = spec.args if self.args is None else self.args
        kwargs = spec.kwargs if self.kwargs is None else self.kwargs
        return spec.lock_for(args, kwargs)


class Begun(IntEnum):
    """What a heartbeat knows of an attempt. OVER: its work has ended, which is to be reported."""

    UNKNOWN = 0
    KNOWN = 1
    OVER = 2


@dataclass(frozen=True, slots=True)
class EntryKeys:
    """What keys of RedBeat's entries begin with, and the key of its sorted set."""

    prefix: str
    schedule: str


@dataclass(frozen=True, slots=True)
class JobChange:
    """What is to be done with one job that is loaded or not.

    version: the job's at present, 0 of one that is not loaded; None for any. spec: None to remove
    the job. place: for people. definition: its entry for RedBeat. entry: the name of that, where it
    is another than the job's. is_paused: None where that has not changed. next_at: when a job with
    new times is next due. due_at: when it would have been next due as it was: from then on the
    change is refused.
    """

    job: str
    spec: JobSpec | None
    version: int | None = None
    place: str = ""
    definition: str = ""
    entry: str = ""
    has_new_times: bool = False
    is_paused: bool | None = None
    next_at: datetime | None = None
    due_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Arguments and options that the caller of a run, or a retry, gave it; None for the job's own.

    options: of Celery's `apply_async`. references: where these arguments are words of a schedule
    file, to be resolved. is_awaited: as in a RunRequest. code: the job's spec (JSON), where code
    has it.
    """

    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    references: Sequence[Reference] = ()
    is_awaited: bool = False
    code: str = ""

    @property
    def facts(self) -> tuple[str, str, str, str]:
        """As the functions read it. Raises TypeError for what JSON refuses."""
        are_all_the_jobs = self.args is None and self.kwargs is None
        references = None if are_all_the_jobs else list(self.references)
        args, kwargs, options = text(self.args), text(self.kwargs), text(dict(self.options) or None)
        return args, kwargs, options, text(references)


NOTHING = CallArguments()


@dataclass(frozen=True, slots=True)
class Work:
    """A running run as its worker knows it: enough to write it again. worker: the child's name."""

    run_id: str
    job: str
    nominal_at: datetime
    rules: RunRules
    worker: str = ""

    @property
    def is_tick(self) -> bool:
        """Whether it is the run of a nominal time, and not one that was asked for."""
        return self.run_id == tick_id(self.job, self.nominal_at)


def change_facts(change: JobChange) -> tuple[str | int, ...]:
    """The change as load.lua reads it."""
    return (
        change.job,
        change.entry,
        "" if change.version is None else change.version,
        change.spec.model_dump_json(exclude_defaults=True) if change.spec else "",
        change.place,
        change.definition,
        "1" if change.has_new_times else "",
        "" if change.is_paused is None else str(int(change.is_paused)),
        ms_of(change.next_at) if change.next_at else "",
        ms_of(change.due_at) if change.due_at else "",
        content_of_job(change.spec) if change.spec else "",
    )


def move_facts(job: str, place: str) -> tuple[str | int, ...]:
    """The change of a job that only has another place, as load.lua reads it."""
    return (job, "", "", "=", place, "", "", "", "", "", "")


class Facts(NamedTuple):
    """A run as admit.lua reads it. rules: JSON, without the lock. rest: further fields; those at
    the end may be missing."""

    rules: str
    run_id: str
    job: str
    nominal: str | int
    lock: str
    kind: str
    rest: tuple[str | int, ...]


def request_facts(spec: JobSpec, run_id: str, request: RunRequest) -> Facts:
    """A request as admit.lua reads it. Raises InvalidKey."""
    nominal = ms_of(request.nominal_at) if request.nominal_at else ""
    expires = "" if request.expires is None else to_ms(request.expires)
    is_long = bool(request.after or request.repeats)
    rest = (
        request.message.lines if request.message else "",
        text(request.args),
        text(request.kwargs),
        text(dict(request.options) or None),
        to_ms(request.delay),
        *steps_of_request(spec, request),
        "1" if request.is_awaited else "",
        expires,
        spec.text if request.is_of_code and isinstance(spec, GuardedTaskSpec) else "",
        *((request.after or "", request.after_policy.value) if is_long else ()),
        *(("", request.repeats, text([*request.references] or None)) if request.repeats else ()),
    )
    rules, lock = request.rules_text(spec), request.lock_for(spec)
    kind = "repeat" if request.repeats else "manual"
    return Facts(rules, run_id, spec.name, nominal, lock, kind, rest)


def steps_of(spec: JobSpec, params: Mapping[str, Any] | None) -> tuple[str, str]:
    """The plan of a run of several steps, and what it begins with; '' for a job of one task."""
    if not spec.steps:
        return "", ""
    begins_with = {**spec.params, **(params or {})}
    return json.dumps(plan(spec)), param_texts(begins_with)


def steps_of_request(spec: JobSpec, request: RunRequest) -> tuple[str, str]:
    """The same of a run that may have a plan of its own."""
    if request.plan is None:
        return steps_of(spec, request.params)
    return json.dumps(request.plan), param_texts(request.params or {})


def param_texts(params: Mapping[str, Any]) -> str:
    return json.dumps({name: json.dumps(value) for name, value in params.items()})


def text(value: Any) -> str:
    """JSON for the functions; '' stands for "as the job has it"."""
    return "" if value is None else json.dumps(value)


# Requests of beat, in the name of the leader.


@dataclass(frozen=True, slots=True)
class FollowUp:
    """A run of a job without a schedule that follows runs of other jobs.

    failed: the one of them for whose end it is skipped.
    """

    spec: JobSpec
    run_id: str
    nominal_at: datetime
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Leadership:
    """The lock of the leading beat; requests in its name are refused once another beat has it."""

    key: str
    token: str


def tick_facts(tick: Tick) -> Facts:
    """A tick as admit.lua reads it; short, because that takes the server less time."""
    spec, nominal = tick.spec, ms_of(tick.nominal_at)
    rest = ("", "", "", "", 0, *steps_of(spec, None)) if spec.steps else ()
    return Facts(spec.rules_text, tick.run_id, spec.name, nominal, spec.lock, "tick", rest)


def follow_up_facts(run: FollowUp) -> Facts:
    """A run that follows others as admit.lua reads it."""
    spec, nothing_given, not_of_code = run.spec, ("", "", "", "", 0), ("", "", "", "", "")
    rest = (*nothing_given, *steps_of(spec, None), *not_of_code, run.failed or "")
    nominal = ms_of(run.nominal_at)
    return Facts(spec.rules_text, run.run_id, spec.name, nominal, spec.lock, "after", rest)


# All of them on their way to admit.lua, and what comes back from it.

#: Runs that one call places. A call costs as much as a run or two; fifty keep the server from all
#: others for two or three milliseconds. A job that catches up has more.
RUNS_PER_CALL = 50


class Admitting:
    """Runs on their way to their places, in order, RUNS_PER_CALL of them a call.

    A call is sent as soon as it is full, and its reply is read after some more have been: the
    server gives runs their places while the caller makes the next.
    """

    def __init__(
        self, calls: CallsAhead, leadership: Leadership | None = None, entry: str = ""
    ) -> None:
        self._calls = calls
        self._is_act, self._entry = bool(entry), entry
        self._token = leadership.token if leadership else ""
        self._keys = (leadership.key,) if leadership else ()
        self._next: list[Facts] = []
        self._sent: deque[Facts] = deque()
        self._admissions: list[Admission] = []

    def add(self, facts: Facts) -> None:
        """Raises NotWritable, and what redis-py raises, for this run or for earlier ones."""
        # The ticks of a job stay together. Each moves the job's watermark: those of a call that
        # was refused would be behind it for good.
        if len(self._next) >= RUNS_PER_CALL and not is_next_tick(self._next[-1], facts):
            self._send()
        self._next.append(facts)

    def admissions(self) -> list[Admission]:
        """The places of all runs, which have been sent and answered by then. Raises as `add`."""
        if self._next:
            self._send()
        self._read(calls_left=0)
        return self._admissions

    def _send(self) -> None:
        rules: dict[str, int] = {}
        rest = max(len(facts.rest) for facts in self._next)
        runs = [
            (
                rules.setdefault(facts.rules, len(rules) + 1),
                *facts[1:6],
                *facts.rest,
                *("",) * (rest - len(facts.rest)),
            )
            for facts in self._next
        ]
        facts_of_all = chain((self._token, len(rules)), rules, (len(runs[0]),), *runs)
        args: tuple[str | int, ...] = tuple(facts_of_all)
        self._calls.send(Call((*args, "admit", self._entry) if self._is_act else args, self._keys))
        self._entry = ""
        self._sent += self._next
        self._next = []
        self._read(calls_left=CALLS_AHEAD)

    def _read(self, calls_left: int) -> None:
        while len(self._calls) > calls_left:
            for place in chain.from_iterable(self._calls.replies()):
                if place[0] == Placement.FAILED and place[1].startswith(NotWritable.CODES):
                    raise NotWritable(place[1])
                facts = self._sent.popleft()
                self._admissions.append(admission(facts.run_id, facts.job, place))


def is_next_tick(before: Facts, facts: Facts) -> bool:
    return before.kind == facts.kind == "tick" and before.job == facts.job
