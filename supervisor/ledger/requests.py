"""Requests of people, code, workers and beat to the ledger, as its functions read them.

A function that is asked for a lot has one argument, a JSON object (`document`), of which each Lua
file says what is in it. What is not said is not there.
"""

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
from supervisor.ledger.replies import Admission, admission_of, ms_of
from supervisor.schedule.ticks import Tick
from supervisor.store.connection import NotWritable
from supervisor.times import to_ms


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run that is asked for by hand or by code; None means "as the job has it"."""

    run_id: str | None = None
    nominal_at: datetime | None = None
    """The time that the run is for; now without it."""

    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    params: Mapping[str, Any] | None = None
    """Of a run of several steps, over those of the job."""

    key: str | None = None
    """The lock's key itself, not a template."""

    overlap: OverlapPolicy | None = None
    max_wait: timedelta | None = None
    """How long the run may wait for the lock."""

    waits_for_ever: bool = False
    """It waits as long as it takes, whatever the job says."""

    max_waiting: int | None = None
    expires: timedelta | None = None
    """The time from now in which it has to begin; it bounds the waiting as well."""

    delay: timedelta = timedelta()
    """The time from now before which it is not to start."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Of Celery's `apply_async`, for the message."""

    is_awaited: bool = False
    """Code may wait for the result: Celery is informed when there is none."""

    is_of_code: bool = False
    """The ledger is to know the job as code has it, from now on."""

    message: Message | None = None
    """Of a call."""

    after: str | None = None
    """Id of a run that has to end first, as `after_policy` says."""

    after_policy: AfterPolicy = AfterPolicy.SUCCESS
    repeats: str = ""
    """Id of an ended run that this one repeats."""

    references: Sequence[Reference] = ()
    """Where its arguments are words of a schedule file, to be resolved."""

    plan: Mapping[str, Any] | None = None
    """Of the steps, with `params` as they begin with, in place of those of the job."""

    @property
    def changes(self) -> dict[str, Any]:
        """What this request says in place of the job's own rules."""
        rules = {
            "overlap": self.overlap,
            "max_wait": self.max_wait,
            "max_waiting": self.max_waiting,
        }
        changes: dict[str, Any] = {k: value for k, value in rules.items() if value is not None}
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
    """What is to be done with one job that is loaded or not."""

    job: str
    spec: JobSpec | None
    """None to remove the job, or to change nothing but its place."""

    is_moved: bool = False
    """Whether nothing but its place has changed."""

    version: int | None = None
    """The job's at present, 0 of one that is not loaded; None for any."""

    place: str = ""
    """Where it stands, for people."""

    definition: str = ""
    """Its entry for RedBeat."""

    entry: str = ""
    """The name of that, where it is another than the job's."""

    has_new_times: bool = False
    is_paused: bool | None = None
    """None where that has not changed."""

    next_at: datetime | None = None
    """When a job with new times is next due."""

    due_at: datetime | None = None
    """When it would have been next due as it was: from then on the change is refused."""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """What the caller of a run, or a retry, gave it; None for the job's own."""

    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of Celery's `apply_async`."""

    references: Sequence[Reference] = ()
    """Where these arguments are words of a schedule file, to be resolved."""

    is_awaited: bool = False
    """As in a RunRequest."""

    code: str = ""
    """The job's spec (JSON), where code has it."""

    @property
    def texts(self) -> dict[str, str]:
        """As the functions read it. Raises TypeError for what JSON refuses."""
        are_all_the_jobs = self.args is None and self.kwargs is None
        references = None if are_all_the_jobs else [*self.references]
        return argument_texts(self.args, self.kwargs, self.options, references)


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


#: JSON for the functions. A character that UTF-8 has no bytes for is refused when it is sent, as in
#: any other argument.
document = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def change_entry(change: JobChange) -> dict[str, Any]:
    """The change as load.lua reads it."""
    entry: dict[str, Any] = {"job": change.job, "place": change.place}
    if change.entry:
        entry["entry"] = change.entry
    if change.version is not None:
        entry["version"] = change.version
    if change.due_at:
        entry["due_at"] = ms_of(change.due_at)
    if change.is_moved:
        entry["is_moved"] = True
    if change.spec is None:
        return entry
    entry["spec"] = change.spec.model_dump_json(exclude_defaults=True)
    entry["definition"] = change.definition
    entry["has_new_times"] = change.has_new_times
    if content := content_of_job(change.spec):
        entry["content"] = content
    if change.is_paused is not None:
        entry["is_paused"] = change.is_paused
    if change.next_at:
        entry["next_at"] = ms_of(change.next_at)
    return entry


class NewRun(NamedTuple):
    """A run as admit.lua reads it. rules: JSON, without the lock."""

    rules: str
    fields: dict[str, Any]

    @property
    def run_id(self) -> str:
        return str(self.fields["id"])

    @property
    def job(self) -> str:
        return str(self.fields["job"])

    def is_next_tick_of(self, other: NewRun) -> bool:
        return self.job == other.job and self.fields["kind"] == other.fields["kind"] == "tick"


def run_of_request(spec: JobSpec, run_id: str, request: RunRequest) -> NewRun:
    """Raises InvalidKey, and TypeError for arguments that JSON refuses."""
    fields: dict[str, Any] = {
        "id": run_id,
        "job": spec.name,
        "lock": request.lock_for(spec),
        "kind": "repeat" if request.repeats else "manual",
        "delay": to_ms(request.delay),
        **argument_texts(request.args, request.kwargs, request.options, request.references or None),
        **steps_of_request(spec, request),
    }
    if request.nominal_at:
        fields["nominal"] = ms_of(request.nominal_at)
    if request.message:
        fields["message"] = request.message.lines
    if request.is_awaited:
        fields["awaited"] = True
    if request.expires is not None:
        fields["expires"] = to_ms(request.expires)
    if request.is_of_code and isinstance(spec, GuardedTaskSpec):
        fields["spec"] = spec.text
    if request.after:
        fields |= {"after": request.after, "after_policy": request.after_policy.value}
    if request.repeats:
        fields["repeats"] = request.repeats
    return NewRun(request.rules_text(spec), fields)


def argument_texts(
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    references: Sequence[Reference] | None,
) -> dict[str, str]:
    """Those that are given, as JSON; a job has the others itself."""
    given = {
        "args": args,
        "kwargs": kwargs,
        "options": dict(options) or None,
        "references": None if references is None else [*references],
    }
    return {name: json.dumps(value) for name, value in given.items() if value is not None}


def steps_of(spec: JobSpec, params: Mapping[str, Any] | None) -> dict[str, Any]:
    """The plan of a run of several steps, and what it begins with; nothing for one of one task."""
    planned = plan(spec)
    return as_planned(planned, {**spec.params, **(params or {})}) if planned else {}


def steps_of_request(spec: JobSpec, request: RunRequest) -> dict[str, Any]:
    """The same of a run that may have a plan of its own."""
    if request.plan is None:
        return steps_of(spec, request.params)
    return as_planned(request.plan, request.params or {})


def as_planned(steps: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: json.dumps(value) for name, value in params.items()}
    return {"steps": json.dumps(steps), "params": texts}


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

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that a call of the leading beat passes; none for other processes."""
        return (self.key,) if self.key else ()


#: Of a process that does not lead: its calls are never refused for that.
NOT_LEADING = Leadership("", "")


def run_of_tick(tick: Tick) -> NewRun:
    return scheduled_run(tick.spec, "tick", tick.run_id, tick.nominal_at)


def run_of_follow_up(follow_up: FollowUp) -> NewRun:
    run = scheduled_run(follow_up.spec, "after", follow_up.run_id, follow_up.nominal_at)
    if follow_up.failed:
        run.fields["failed"] = follow_up.failed
    return run


def scheduled_run(spec: JobSpec, kind: str, run_id: str, nominal_at: datetime) -> NewRun:
    """With everything as the job has it."""
    fields: dict[str, Any] = {
        "id": run_id,
        "job": spec.name,
        "lock": spec.lock,
        "kind": kind,
        "nominal": ms_of(nominal_at),
    }
    if spec.steps:
        fields |= steps_of(spec, None)
    return NewRun(spec.rules_text, fields)


# All of them on their way to admit.lua, and what comes back from it.

#: Runs that one call places. A call costs as much as a run or two; fifty keep the server from all
#: others for two or three milliseconds. A job that catches up has more.
RUNS_PER_CALL = 50


class Admitting:
    """Runs on their way to their places, in order, RUNS_PER_CALL of them a call.

    A call is sent as soon as it is full, and its reply is read after some more have been: the
    server gives runs their places while the caller makes the next.
    """

    def __init__(self, calls: CallsAhead, leadership: Leadership, entry: str = "") -> None:
        self._calls = calls
        self._is_act, self._entry = bool(entry), entry
        self._leader = {"leader": leadership.token} if leadership.key else {}
        self._keys = leadership.keys
        self._next: list[NewRun] = []
        self._sent: deque[NewRun] = deque()
        self._admissions: list[Admission] = []

    def add(self, run: NewRun) -> None:
        """Raises NotWritable, and what redis-py raises, for this run or for earlier ones."""
        # The ticks of a job stay together. Each moves the job's watermark: those of a call that
        # was refused would be behind it for good.
        if len(self._next) >= RUNS_PER_CALL and not run.is_next_tick_of(self._next[-1]):
            self._send()
        self._next.append(run)

    def admissions(self) -> list[Admission]:
        """The places of all runs, which have been sent and answered by then. Raises as `add`."""
        if self._next:
            self._send()
        self._read(calls_left=0)
        return self._admissions

    def _send(self) -> None:
        rules: dict[str, int] = {}
        runs = [
            {**run.fields, "rules": rules.setdefault(run.rules, len(rules) + 1)}
            for run in self._next
        ]
        call = document({**self._leader, "rules": [*rules], "runs": runs})
        args = (call, "admit", self._entry) if self._is_act else (call,)
        self._calls.send(Call(args, self._keys))
        self._entry = ""
        self._sent += self._next
        self._next = []
        self._read(calls_left=CALLS_AHEAD)

    def _read(self, calls_left: int) -> None:
        while len(self._calls) > calls_left:
            for reply in chain.from_iterable(map(json.loads, self._calls.replies())):
                run = self._sent.popleft()
                admission = admission_of(run.run_id, run.job, reply)
                if admission.is_refused:
                    raise NotWritable(admission.reason)
                self._admissions.append(admission)
