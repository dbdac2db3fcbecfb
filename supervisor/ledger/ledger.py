"""The ledger: every transition of a run is one function of Redis, and one round trip.

Each function checks the state it moves from, so a second delivery of anything - a message, a tick,
a reply that was lost and asked for again - changes nothing but a counter.

The file is long because the transitions are one list, in the order of a run's life: admission, one
attempt from its lease to its end, then what concerns the ledger as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import chain
from types import MappingProxyType
from typing import Any, Self

from supervisor.errors import Conflict, ForeignLedger, WrongSchema
from supervisor.job.content import Content
from supervisor.job.reports import kept_text
from supervisor.job.run import Run, RunState
from supervisor.job.run_ids import manual_id, tick_id
from supervisor.job.spec import MOST_JOBS, GuardedTaskSpec, JobSpec
from supervisor.ledger.actions import Action, Actions, entry_of
from supervisor.ledger.admission import (
    Admission,
    Admitting,
    FollowUp,
    NewRun,
    Placement,
    run_of_follow_up,
    run_of_request,
    run_of_tick,
)
from supervisor.ledger.attempt import (
    Cancellation,
    Finished,
    Grant,
    GrantedAttempt,
    LeaseState,
    LeaseToRenew,
    Refusal,
    Refused,
    Renewal,
    Rescue,
    Work,
    finished,
    grant_of,
    renewal,
    rescues,
)
from supervisor.ledger.beat_record import BeatRecord, beat_from
from supervisor.ledger.functions import Call, document
from supervisor.ledger.job_reads import JobReads
from supervisor.ledger.leader import Leader, Leadership
from supervisor.ledger.limits import SCHEMA
from supervisor.ledger.loading import (
    EntryKeys,
    JobChange,
    LoadReply,
    change_entry,
    load_reply,
)
from supervisor.ledger.presence import Presences
from supervisor.ledger.queues import Drains
from supervisor.ledger.reader import chunks
from supervisor.ledger.run_reads import RunReads
from supervisor.ledger.run_request import JOB_ARGUMENTS, CallArguments, RunRequest
from supervisor.ledger.runs import Reports, Steps
from supervisor.schedule.ticks import PassedOver, Tick
from supervisor.settings import Settings
from supervisor.store.connection import Client, connect, connect_for_heartbeat
from supervisor.store.failures import (
    UNREACHABLE,
    NotWritable,
    RedisError,
    ResponseError,
    explained,
    refuses_writes,
)
from supervisor.store.keys import Keys
from supervisor.times import clock, instant, ms_of, ms_since, optional_instant, to_ms

#: Reasons are one line for a table, not a traceback.
REASON_LENGTH = 300


#: For how long it is reported that a queue is shared with another ledger.
SHARED_KEPT = timedelta(minutes=15)


# Some transitions are made of several calls, so that others have their turn.

#: Runs of each kind that one call rescues; more blocked the server for too long.
RUNS_PER_RESCUE = 100

#: Jobs of which one call writes when they are next due, likewise.
JOBS_PER_RESCHEDULE = 200

#: The reply of cancel.lua when another call has to end more items.
ENDING = "ending"


ANY_RUN = RunRequest()


def attempt_fields(granted: GrantedAttempt | None) -> dict[str, dict[str, int]]:
    """What its worker was granted, as the functions read it."""
    return {"attempt": granted.fields} if granted else {}


def too_many_jobs(jobs: int) -> Conflict:
    return Conflict(f"{jobs:,} jobs would be loaded at run time, and {MOST_JOBS:,} may be")


class Ledger(JobReads, RunReads):
    """The ledger of one app. `client` decodes replies; all instants are aware UTC."""

    def __init__(self, client: Client, keys: Keys) -> None:
        super().__init__(client, keys)
        self.reports = Reports(self)
        self.steps = Steps(self)
        self.drains = Drains(self)
        self.actions = Actions(self)
        self.presences = Presences(self)

    @classmethod
    def open(cls, settings: Settings) -> Self:
        return cls(connect(settings), Keys.of(settings))

    @classmethod
    def open_without_retries(cls, settings: Settings) -> Self:
        """A ledger with short time-outs, for what must fail rather than be late."""
        return cls(connect_for_heartbeat(settings), Keys.of(settings))

    def led_by(self, leadership: Leadership) -> Self:
        """This ledger for the beat that leads: what it asks for is refused once another leads."""
        led = copy(self)
        led.leadership = leadership
        return led

    def close(self) -> None:
        """Gives the connections back; a later call opens them again."""
        self.client.close()

    def refusal(self) -> str | None:
        """Why the server refuses writes, tried by one that changes nothing; None if it does not,
        or if this user may not write anyway."""
        try:
            self.client.zadd(self.keys.outbox, {"": 0}, xx=True)
        except (ResponseError, NotWritable) as error:
            return explained(error) if refuses_writes(error) else None
        return None

    def leader(self, lock: str, schedule: str, app: str = "") -> Leader:
        """One beat's claim to lead: the key of the lock, RedBeat's sorted set, its app's name."""
        return Leader(self.functions, lock, schedule, app)

    def check_owner(self, app: str) -> None:
        """Raises ForeignLedger when the ledger is another app's."""
        owner = self.beat().app
        if owner not in (None, app):
            raise ForeignLedger(owner, app)

    def take_over(self, app: str) -> None:
        """The ledger is this app's from now on; a beat of another ends within its next turn."""
        self.client.hset(self.keys.beat, "app", app)

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

    def cancel(self, run_id: str, reason: str, action: Action | None = None) -> Cancellation:
        """Ends a run that is not running; asks a running one to end within its `stop_grace`.

        The items of a large batch are ended some at a time, so that others have their turn.
        """
        first = reply = self._cancel(run_id, "cancelled", reason, action)
        while reply == ENDING:
            reply = self._cancel(run_id, "cancelled", reason)
        # Beat rescues what is left as well, and may have ended the last of them.
        was_open = first == ENDING and reply == Cancellation.NOT_OPEN
        return Cancellation.CANCELLED if was_open else Cancellation(reply)

    def give_up(self, run_id: str, reason: str) -> None:
        """A queued run has failed: it cannot be started as it is, and no retry would help."""
        self._cancel(run_id, "failed", reason)

    def expire(self, run_id: str) -> None:
        """A queued run's message was older than its task's `expires`: no worker begins it."""
        self._cancel(run_id, "expired", "expires passed")

    def _cancel(self, run_id: str, outcome: str, reason: str, action: Action | None = None) -> str:
        call = {"run_id": run_id, "outcome": outcome, "reason": reason[:REASON_LENGTH]}
        return str(self.functions.act(entry_of(action), "cancel", document(call)))

    def rescue(self, limit: int = RUNS_PER_RESCUE) -> tuple[Rescue, ...]:
        """One pass over silent leases, due retries and re-queues, and forgotten waiters.

        limit: of the runs of each kind. If there are RUNS_PER_DISMISSAL or more, there may be more.
        """
        token, keys = self.leadership.token, self.leadership.keys
        return rescues(self.functions("rescue", limit, token, keys=keys))

    # One attempt of a run, from its lease to its end.

    def begin(
        self,
        run_id: str,
        token: str,
        worker: str,
        queue: str = "",
        retries: int | None = None,
        process: str = "",
        content: Content | None = None,
    ) -> Grant | Refused:
        """Asks for the lease of one attempt; `token` is fresh for each delivery.

        retries: of the run, when the message was made. process: the worker's proof of life
        (guard/lock_file.py). content: of the message, which is not compared without it.
        """
        requested_at = 0.0
        fields: dict[str, Any] = {"run_id": run_id, "token": token, "worker": worker}
        if queue:
            fields["queue"] = queue
        if retries is not None:
            fields["retries"] = retries
        if process:
            # With its token: an attempt that takes the run over without this call lacks this proof.
            fields["process"] = f"{process} {token}"
        if content:
            fields["content"] = asdict(content)
        call = Call((document(fields),))

        def sent_now() -> Call:
            """Called each time that it is sent: the reply is to the last of them."""
            nonlocal requested_at
            requested_at = clock()
            return call

        reply = json.loads(self.functions.as_of_sending("begin", sent_now))
        if reply["verdict"] != "begin":
            return Refused(run_id, Refusal(reply["verdict"]), reply.get("detail"))
        return grant_of(run_id, token, reply, requested_at)

    def renew(self, leases: Sequence[LeaseToRenew]) -> list[Renewal]:
        """Renews the leases of a worker in one call."""
        entries = [
            {"run_id": run_id, "token": token, "begun": int(phase), **attempt_fields(granted)}
            for run_id, token, phase, granted in leases
        ]
        replies = json.loads(self.functions("renew", document(entries))) if entries else []
        return [renewal(reply) for reply in replies]

    def restore(
        self,
        work: Work,
        token: str,
        granted: GrantedAttempt,
        arguments: CallArguments = JOB_ARGUMENTS,
    ) -> Renewal:
        """Writes back an attempt at work whose run the ledger has lost, or has as ended without it,
        unless another attempt has begun."""
        fields = {
            "run_id": work.run_id,
            "token": token,
            "job": work.job,
            "worker": work.worker,
            "nominal": ms_of(work.nominal_at),
            "rules": json.dumps(work.rules.json_fields),
            "is_tick": work.is_tick,
            "own": arguments.texts | ({"awaited": "1"} if arguments.is_awaited else {}),
            **attempt_fields(granted),
            **({"spec": arguments.code} if arguments.code else {}),
        }
        return renewal(json.loads(self.functions("restore", document(fields))))

    def restore_ended(self, work: Work, token: str, granted: GrantedAttempt) -> bool:
        """Writes back an attempt whose work is over, so that its end can be recorded.

        Not that of a call of which there is no record: its end may be known, and its record gone.
        """
        if not (work.is_tick or self.ended([work.run_id])):
            return False
        return self.restore(work, token, granted).state is LeaseState.REASSERTED

    def finish(
        self,
        run_id: str,
        token: str,
        outcome: RunState,
        reason: str = "",
        returned: Mapping[str, Any] | None = None,
        ended_at: float | None = None,
        traceback: str = "",
        granted: GrantedAttempt | None = None,
    ) -> Finished:
        """Ends an attempt, in its own name; `outcome` lost lets the job's `on_crash` decide.

        returned: by a step, for the params of its run. ended_at: when its work was over, by
        `times.clock`; now without it. traceback: of one that failed. granted: for a ledger that
        is older than the attempt.
        """
        more: dict[str, Any] = {}
        if traceback:
            more["traceback"] = traceback
        if returned:
            more["returned"] = {name: json.dumps(value) for name, value in returned.items()}
        return self._finish(run_id, token, outcome.value, reason, ended_at, granted, more)

    def report_dead(
        self, run_id: str, token: str, reason: str, granted: GrantedAttempt | None = None
    ) -> Finished:
        """Ends an attempt whose process is gone: it is lost, or what it was being ended for."""
        return self._finish(run_id, token, "dead", reason, granted=granted)

    def undo_begin(self, run_id: str, token: str) -> Finished:
        """Queues a run again whose attempt may have begun, and whose body never started."""
        return self._finish(run_id, token, "unbegun")

    def retry(
        self,
        run_id: str,
        token: str,
        delay: timedelta,
        reason: str = "",
        arguments: CallArguments = JOB_ARGUMENTS,
        ended_at: float | None = None,
        traceback: str = "",
        granted: GrantedAttempt | None = None,
    ) -> Finished:
        """Ends a failed attempt; the next is due after `delay`, and the lock is kept.

        arguments: what the next attempt, and those after it, have in place of the run's own.
        ended_at, traceback and granted: as for `finish`.
        """
        more = {"retry": {"delay": to_ms(delay), **arguments.texts}, "traceback": traceback}
        return self._finish(run_id, token, "retry", reason, ended_at, granted, more)

    def _finish(
        self,
        run_id: str,
        token: str,
        outcome: str,
        reason: str = "",
        ended_at: float | None = None,
        granted: GrantedAttempt | None = None,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> Finished:
        fields = {"run_id": run_id, "token": token, "outcome": outcome, **more}
        fields |= {"reason": reason[:REASON_LENGTH], **attempt_fields(granted)}

        def sent_now() -> Call:
            """Made again each time that it is sent, which may be for long."""
            ago = 0 if ended_at is None else ms_since(ended_at)
            return Call((document({**fields, "ago": ago}),))

        return finished(self.functions.as_of_sending("finish", sent_now))

    def note_ending(self, run_id: str, token: str, outcome: RunState, reason: str = "") -> bool:
        """Records why a running attempt is about to be ended, before it is."""
        return bool(self.functions("note_ending", run_id, token, outcome.value, reason))

    # The ledger's schema, owner, clock and queues.

    def schema(self) -> int | None:
        """The number of the ledger's schema; None before the first process wrote to it."""
        number = self.client.get(self.keys.schema)
        return None if number is None else int(number)

    def check_schema(self) -> None:
        """For what starts, and what writes without a function. Raises WrongSchema."""
        number = self.schema()
        if number not in (None, SCHEMA):
            raise WrongSchema(number, SCHEMA)

    def beat(self) -> BeatRecord:
        return beat_from(self.client.hgetall(self.keys.beat))

    def forget_owner(self) -> None:
        """The ledger is that of the app whose beat leads next."""
        self.client.hdel(self.keys.beat, "app")

    def ahead(self, jobs: Iterable[str]) -> list[str]:
        """The jobs whose ticks have been dealt with up to a time in the future."""
        now = self.now()
        marks = self.marks(list(jobs)).items()
        return [job for job, mark in marks if mark.watermark and mark.watermark > now]

    def go_on_from_now(self, set_back: timedelta, jobs: Sequence[str]) -> None:
        """The server's clock was set back by so much: the ticks of these jobs go on from now.

        jobs: those that are ahead. A tick whose run is known does not run a second time. What the
        ledger holds for a while, such as a retry, is that much later.
        """
        self.functions("set_back", to_ms(set_back), *jobs)

    def leftovers(self) -> list[str]:
        """Queues in which messages of runs that ended before they began may lie."""
        return sorted(self.client.smembers(self.keys.leftovers))

    def ended(self, run_ids: Sequence[str]) -> set[str]:
        """Which of the runs have ended, and still have a record."""
        return {run_id for run_id, at in self.read_fields(run_ids, "finished") if at}

    def outbox(self, limit: int = 500) -> list[str]:
        """Ids of the queued runs that beat is to publish now."""
        return self.client.zrangebyscore(self.keys.outbox, "-inf", ms_of(self.now()), 0, limit)

    def send(self, run_ids: Sequence[str]) -> list[str]:
        """Sends the messages of queued runs where the broker's queues are beside the ledger.

        Returns the ids of the others: Celery has to make their messages.
        """
        return list(self.functions("send", *run_ids)) if run_ids else []

    def keep_messages(self, messages: Mapping[str, tuple[int, Mapping[str, str]]]) -> None:
        """What Celery has made for the runs of these jobs, each with the job's version then: their
        messages, or as "apart", why it has to make the message of each."""
        made = [
            {
                "job": job,
                "version": version,
                **(fields if "apart" in fields else {"messages": fields}),
            }
            for job, (version, fields) in messages.items()
        ]
        if made:
            self.functions("keep_messages", document(made))

    def put_off(self, run_ids: Sequence[str], by: timedelta) -> None:
        """Runs of the outbox are to be published later."""
        later = ms_of(self.now() + by)
        self.client.zadd(self.keys.outbox, dict.fromkeys(run_ids, later), xx=True)

    def mend_leases(self, run_ids: Sequence[str]) -> None:
        """Rescue looks at those of these open runs for which no time is known at which it would.

        A ledger that has lost a part of its data has such runs, and they would stay open for ever.
        """
        if run_ids:
            due = dict.fromkeys(run_ids, ms_of(self.now()))
            self.client.zadd(self.keys.leases, due, nx=True)

    def sent(self, queues: Mapping[str, str]) -> None:
        """The broker took the messages of these runs, each for its queue."""
        if queues:
            self.functions("sent", *chain.from_iterable(queues.items()))

    def reschedule(
        self, schedule: str, jobs: Sequence[tuple[str, str, float, datetime | None]]
    ) -> None:
        """Writes when these jobs are next due, whose ticks before that have been dealt with.

        schedule: the key of RedBeat's sorted set. jobs: for each its name, the key of its entry,
        the score of that, and when it is next due.
        """
        due = [
            {"job": name, "entry": key, "score": score, **({"at": ms_of(at)} if at else {})}
            for name, key, score, at in jobs
        ]
        portions = chunks(due, JOBS_PER_RESCHEDULE)
        self.functions.many("next", [Call((document(some),), (schedule,)) for some in portions])

    def register(self, spec: GuardedTaskSpec) -> None:
        """The ledger knows a job that code guards, and counts its runs, from then on."""
        with self.client.pipeline(transaction=False) as pipe:
            pipe.hset(self.keys.guarded, spec.name, spec.text)
            pipe.hsetnx(self.keys.job(spec.name), "created", ms_of(datetime.now(UTC)))
            pipe.execute()

    def note_content(self, run_id: str, line: str) -> None:
        """The message of a run is to say this (job/content.py), and not what its job says."""
        self.functions("note_content", run_id, line)

    def note_obstacle(
        self, run_ids: Sequence[str], by: str, text: str, *, is_minor: bool = False
    ) -> None:
        """These runs, as far as they are queued, were kept from starting: by whom, and why.

        is_minor: a run keeps another obstacle that it has, and the count of it.
        """
        if run_ids:
            line = kept_text(text)[:REASON_LENGTH]
            self.functions("note_obstacle", by, line, int(is_minor), *run_ids)

    def note_shared_queue(self, queue: str, other: str) -> bool:
        """A message of another ledger came by this queue. Whether that is new."""
        key, now = self.keys.shared_queues, ms_of(self.now())
        with self.client.pipeline(transaction=False) as pipe:
            pipe.hset(key, f"{queue} {other}", now)
            pipe.expire(key, SHARED_KEPT)
            is_new, _ = pipe.execute()
        return bool(is_new)

    def shared_queues(self, now: datetime) -> list[tuple[str, str]]:
        """Queues by which messages of another ledger came lately, each with that ledger's name."""
        seen = self.client.hgetall(self.keys.shared_queues)
        recent = (name for name, ms in seen.items() if now - instant(ms) < SHARED_KEPT)
        return sorted((name.partition(" ")[0], name.partition(" ")[2]) for name in recent)

    def count_duplicate(self, job: str) -> None:
        """A second message of a run that is running was dropped without the ledger."""
        self.client.hincrby(self.keys.job(job), "n:duplicates", 1)

    def pause(
        self, job: str, note: str = "", until: datetime | None = None, action: Action | None = None
    ) -> None:
        """Excludes the job's ticks, until it is resumed or until then."""
        call: dict[str, Any] = {"job": job, "is_paused": True, "note": note}
        if until:
            call["ends_at"] = ms_of(until)
        self.functions.act(entry_of(action), "pause", document(call))

    def resume(self, job: str, action: Action | None = None) -> datetime | None:
        """Ends a pause; gives since when the job had been paused, None if it had not."""
        call = {"job": job, "is_paused": False}
        return optional_instant(self.functions.act(entry_of(action), "pause", document(call)))

    def check_room(self, more: int) -> None:
        """Raises Conflict if this many more jobs at run time would be refused."""
        if more > 0:
            others = int(self.client.hget(self.keys.beat, "at_run_time") or 0) + more
            if others > MOST_JOBS:
                raise too_many_jobs(others)

    def load(
        self,
        changes: Sequence[JobChange],
        entries: EntryKeys,
        source: str,
        at: datetime | None = None,
        digest: str = "",
        files_version: int | None = None,
        links: str = "",
        action: Action | None = None,
    ) -> LoadReply:
        """Loads and removes jobs of one source: all of them, or none.

        at: since when that holds, by default now. digest and files_version: of schedule files, that
        of those in the ledger from now on and that of those which were there before. links: of
        other sources, the edits of `after` that the writer has seen; with another one in between
        nothing is loaded.
        """
        call: dict[str, Any] = {
            "source": source,
            "entries": entries.prefix,
            "most": MOST_JOBS,
            "changes": [*map(change_entry, changes)],
        }
        if at:
            call["at"] = ms_of(at)
        if digest:
            call["digest"] = digest
        if seen := links if files_version is None else str(files_version):
            call["seen"] = seen
        keys = (entries.schedule,)
        return load_reply(self.functions.act(entry_of(action), "load", document(call), keys=keys))

    def acknowledge_server(self) -> None:
        """Confirms that the server has lost no lease that is alive: no run waits for one."""
        run_id = self.client.info("server")["run_id"]
        self.client.hset(self.keys.server, mapping={"run_id": run_id, "since": 0})
