"""The ledger: every transition of a run is one function of Redis, and one round trip.

Each function checks the state it moves from, so a second delivery of anything - a message, a tick,
a reply that was lost and asked for again - changes nothing but a counter.

A run's life begins with its admission (admission.py) and has attempts (attempts.py); here is what
else happens to runs, and what concerns the ledger as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, Self

from supervisor.errors import Conflict, ForeignLedger, WrongSchema
from supervisor.job.reports import kept_text
from supervisor.job.spec import MOST_JOBS, GuardedTaskSpec, JobSpec
from supervisor.ledger.actions import Action, Actions, entry_of
from supervisor.ledger.admission import Admissions
from supervisor.ledger.attempt import Cancellation, Rescue, rescues
from supervisor.ledger.attempts import Attempts
from supervisor.ledger.beat_record import BeatRecord, beat_from
from supervisor.ledger.functions import Call, document
from supervisor.ledger.job_reads import JobReads
from supervisor.ledger.leader import Leader, Leadership
from supervisor.ledger.limits import REASON_LENGTH, SCHEMA
from supervisor.ledger.loading import EntryKeys, JobChange, LoadReply, change_entry, load_reply
from supervisor.ledger.presence import Presences, Processes
from supervisor.ledger.queues import Drains, LedgerQueues, Queue, Queues, queues
from supervisor.ledger.reader import chunks
from supervisor.ledger.runs import Reports, Steps
from supervisor.settings import Settings
from supervisor.store.connection import Client, connect, connect_for_heartbeat
from supervisor.store.failures import NotWritable, ResponseError, explained, refuses_writes
from supervisor.store.keys import Keys
from supervisor.times import instant, ms_of, optional_instant, to_ms

#: For how long it is reported that a queue is shared with another ledger.
SHARED_KEPT = timedelta(minutes=15)


# Some transitions are made of several calls, so that others have their turn.

#: Runs of each kind that one call rescues; more blocked the server for too long.
RUNS_PER_RESCUE = 100

#: Jobs of which one call writes when they are next due, likewise.
JOBS_PER_RESCHEDULE = 200

#: The reply of cancel.lua when another call has to end more items.
ENDING = "ending"


def too_many_jobs(jobs: int) -> Conflict:
    return Conflict(f"{jobs:,} jobs would be loaded at run time, and {MOST_JOBS:,} may be")


class Ledger(JobReads, Admissions, Attempts):
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

    def queues(
        self,
        specs: Iterable[JobSpec],
        broker: Queues | None = None,
        processes: Processes | None = None,
    ) -> list[Queue]:
        """As `queues.queues`. broker: without it, as the workers and beats report it."""
        there = processes or self.presences.processes()
        return queues(specs, there, broker or LedgerQueues(self.client, there), self.drains.since())

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
