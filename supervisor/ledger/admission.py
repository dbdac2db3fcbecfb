"""Admission: runs on their way to their places, and the places that they get."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import chain
from typing import Any, NamedTuple

from supervisor.job.run import Run, RunState
from supervisor.job.run_ids import manual_id, tick_id
from supervisor.job.spec import GuardedTaskSpec, JobSpec
from supervisor.job.steps import plan
from supervisor.ledger.actions import Action
from supervisor.ledger.attempt import Rescue
from supervisor.ledger.functions import CALLS_AHEAD, Call, CallsAhead, document
from supervisor.ledger.leader import Leadership
from supervisor.ledger.run_reads import RunReads
from supervisor.ledger.run_request import RunRequest, argument_texts
from supervisor.schedule.ticks import PassedOver, Tick
from supervisor.store.failures import UNREACHABLE, NotWritable, RedisError
from supervisor.times import ms_of, to_ms


class Placement(StrEnum):
    """What became of a tick, a trigger or a call at admission."""

    START = "start"
    WAIT = "wait"
    REQUEUE = "requeue"
    REPLACE = "replace"
    SKIP = "skip"
    DELAY = "delay"
    HOLD = "hold"
    EXCLUDED = "excluded"
    DUPLICATE = "duplicate"
    REPEATED = "repeated"
    NOT_LEADER = "not_leader"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Admission:
    """The place of one run."""

    run_id: str
    job: str
    placement: Placement
    reason: str | None = None
    blocked_by: str | None = None
    rescues: tuple[Rescue, ...] = ()
    """Silent runs that stood in the way, and what became of them."""

    to_publish: tuple[str, ...] = ()
    """Ids of runs whose messages Celery has to make."""

    @property
    def is_refused(self) -> bool:
        """Whether the server takes no writes at all."""
        is_failed = self.placement is Placement.FAILED
        return is_failed and (self.reason or "").startswith(NotWritable.CODES)


@dataclass(frozen=True, slots=True)
class FollowUp:
    """A run of a job without a schedule that follows runs of other jobs."""

    spec: JobSpec
    run_id: str
    nominal_at: datetime
    failed: str | None = None
    """The one of them for whose end it is skipped."""


class NewRun(NamedTuple):
    """A run as admit.lua reads it."""

    rules: str
    """JSON, without the lock."""

    fields: dict[str, Any]

    @property
    def run_id(self) -> str:
        return str(self.fields["id"])

    @property
    def job(self) -> str:
        return str(self.fields["job"])

    def is_next_tick_of(self, other: NewRun) -> bool:
        return self.job == other.job and self.fields["kind"] == other.fields["kind"] == "tick"


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


def admission_of(run_id: str, job: str, reply: Mapping[str, Any]) -> Admission:
    return Admission(
        run_id,
        job,
        Placement(reply["decision"]),
        reply.get("reason"),
        reply.get("blocked_by"),
        rescues=tuple(Rescue(**each) for each in reply.get("rescues", ())),
        to_publish=tuple(reply.get("to_publish", ())),
    )


ANY_RUN = RunRequest()


class Admissions(RunReads):
    """Each run is recorded, or known already, once the server has replied."""

    def admit(self, ticks: Iterable[Tick]) -> list[Admission]:
        """Gives each tick its place, in order. Raises NotWritable."""
        return self._admitted(map(run_of_tick, ticks))

    @contextmanager
    def admitting(self, action: Action | None = None) -> Iterator[Admitting]:
        """For ticks that are made while the server gives earlier ones their places.

        action: entered with the first of them.
        """
        with self.functions.ahead("act" if action else "admit") as calls:
            yield Admitting(calls, self.leadership, action.text() if action else "")

    def trigger(
        self, spec: JobSpec, request: RunRequest = ANY_RUN, action: Action | None = None
    ) -> Run:
        """Admits a run by hand, paused or not; beat publishes it. Raises InvalidKey."""
        return self.run(self.admit_requests(spec, [request], action)[0].run_id)

    def admit_request(self, spec: JobSpec, request: RunRequest) -> Admission:
        """Gives a run that code or a person asks for its place. Raises InvalidKey.

        An id that the ledger knows already is a `duplicate`, and nothing is changed.
        """
        return self.admit_requests(spec, [request])[0]

    def admit_requests(
        self, spec: JobSpec, requests: Sequence[RunRequest], action: Action | None = None
    ) -> list[Admission]:
        """Several of them, in order, all in one round trip.

        A call whose reply is lost is made once more, under the same ids: runs that it has recorded
        are then duplicates, but for those that it skipped. Raises InvalidKey, RedisError when the
        server refuses one of them or is unreachable: then it is not known which were recorded.
        """
        run_ids = [request.run_id or manual_id(spec.name) for request in requests]
        runs = [run_of_request(spec, i, r) for i, r in zip(run_ids, requests, strict=True)]
        try:
            admissions = self._admitted(runs, action)
        except UNREACHABLE:
            admissions = self._admitted(runs, action)
            skipped = {run.id: run for run in self.runs(run_ids) if run.state is RunState.SKIPPED}
            admissions = [
                Admission(run.id, run.job, Placement.SKIP, run.reason, run.blocked_by)
                if (run := skipped.get(each.run_id))
                else each
                for each in admissions
            ]
        for each in admissions:
            if each.placement is Placement.FAILED:
                raise RedisError(each.reason)
        return admissions

    def _admitted(self, runs: Iterable[NewRun], action: Action | None = None) -> list[Admission]:
        with self.admitting(action=action) as admitting:
            for run in runs:
                admitting.add(run)
            return admitting.admissions()

    def follow_up(self, runs: Iterable[FollowUp]) -> list[Admission]:
        """Gives runs that follow others their places. One that is known is a `duplicate`."""
        return self._admitted(map(run_of_follow_up, runs))

    def pass_over(self, passed: Iterable[PassedOver]) -> list[str]:
        """Records ticks that become no runs, a range in each call, all in one round trip."""
        leader = {"leader": self.leadership.token} if self.leadership.key else {}
        calls = [
            {
                **leader,
                "id": tick_id(p.spec.name, p.last_at),
                "first_id": tick_id(p.spec.name, p.first_at),
                "job": p.spec.name,
                "state": p.state.value,
                "reason": p.reason,
                "first": ms_of(p.first_at),
                "last": ms_of(p.last_at),
                "ticks": p.ticks,
                "history": p.spec.history,
                "notify": p.spec.own_rules.get("notify", ""),
            }
            for p in passed
        ]
        keys = self.leadership.keys
        return self.functions.many("pass", [Call((document(call),), keys) for call in calls])
