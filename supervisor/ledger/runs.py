"""The ledger: every transition of a run is one script and one round trip.

Each script checks the state it moves from, so a second delivery of anything - a message, a tick,
a reply that was lost and asked for again - changes nothing but a counter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Self

from supervisor.errors import ForeignLedger
from supervisor.job.guarded_spec import GuardedTaskSpec
from supervisor.job.spec import JobSpec
from supervisor.ledger.admissions import admit_requests, admit_ticks
from supervisor.ledger.attempts import REASON_LENGTH, Attempts
from supervisor.ledger.connection import Client, connect
from supervisor.ledger.drains import Drains
from supervisor.ledger.figures import Figures
from supervisor.ledger.keys import Keys
from supervisor.ledger.leader import Leader
from supervisor.ledger.portions import cancel_all, rescue_all, rewind_all
from supervisor.ledger.presence import Presences
from supervisor.ledger.readings import Readings, chunks
from supervisor.ledger.replies import (
    Admission,
    Cancellation,
    Rescue,
    ms_of,
    to_instant,
)
from supervisor.ledger.reports import Reports
from supervisor.ledger.requests import RunRequest, Statement, statement_facts
from supervisor.ledger.scripts import Call
from supervisor.ledger.steps import Steps
from supervisor.ledger.stretches import Stretches
from supervisor.ledger.ticks import Leadership, PassedOver, Tick
from supervisor.runs.run import Run, tick_id
from supervisor.settings import Settings

ANY_RUN = RunRequest()


class Ledger(Readings, Attempts):
    """The writing half. `client` decodes replies; all instants are aware UTC."""

    def __init__(self, client: Client, keys: Keys) -> None:
        super().__init__(client, keys)
        self.reports = Reports(client, keys, self._scripts)
        self.stretches = Stretches(self._scripts)
        self.steps = Steps(client, keys, self._scripts)
        self.drains = Drains(client, keys, self._scripts)
        self.figures = Figures(self._scripts)
        self.presences = Presences(client, keys)

    @classmethod
    def open(cls, settings: Settings) -> Self:
        return cls(connect(settings), Keys(settings.prefix))

    def close(self) -> None:
        """Gives the connections back; a later call opens them again."""
        self.client.close()

    def leader(self, lock: str, schedule: str, app: str = "") -> Leader:
        """One beat's claim to lead: the key of the lock, RedBeat's sorted set, its app's name."""
        return Leader(self._scripts, lock, schedule, app)

    def check_owner(self, app: str) -> None:
        """Raises ForeignLedger when the ledger is another app's."""
        owner = self.beat().app
        if owner not in (None, app):
            raise ForeignLedger(owner, app)

    def take_over(self, app: str) -> None:
        """The ledger is this app's from now on; a beat of another ends within its next tick."""
        self.client.hset(self.keys.beat, "app", app)

    def admit(self, ticks: Iterable[Tick], leadership: Leadership | None = None) -> list[Admission]:
        """Gives each tick its place, in order; those to come are made while some are placed."""
        return admit_ticks(self._scripts, ticks, leadership)

    def trigger(self, spec: JobSpec, request: RunRequest = ANY_RUN) -> Run:
        """Admits a run by hand, paused or not; beat publishes it. Raises InvalidKey."""
        return self.run(self.admit_request(spec, request).run_id)

    def admit_request(self, spec: JobSpec, request: RunRequest) -> Admission:
        """Gives a run that code or a person asks for its place. Raises InvalidKey.

        An id that the ledger knows already is a `duplicate`, and nothing is changed.
        """
        return self.admit_requests(spec, [request])[0]

    def admit_requests(self, spec: JobSpec, requests: Sequence[RunRequest]) -> list[Admission]:
        """Several of them, in order, all in one round trip."""
        return admit_requests(self._scripts, self, spec, requests)

    def pass_over(
        self, passed: Iterable[PassedOver], leadership: Leadership | None = None
    ) -> list[str]:
        """Accounts for ticks that become no runs, a range a call, all in one round trip."""
        calls = [
            Call(
                (
                    *(tick_id(p.spec.name, p.last_at), p.spec.name, p.state.value, p.reason),
                    *(ms_of(p.first_at), ms_of(p.last_at), p.ticks),
                    p.spec.history,
                    leadership.token if leadership else "",
                ),
                (leadership.key,) if leadership else (),
            )
            for p in passed
        ]
        return self._scripts.many("pass", calls)

    def cancel(self, run_id: str, reason: str) -> Cancellation:
        """Ends a run that is not at work; asks one that is to end within its `stop_grace`.

        The items of a large batch are ended some at a time, so that others have their turn.
        """
        return cancel_all(self._scripts, run_id, reason[:REASON_LENGTH])

    def give_up(self, run_id: str, reason: str) -> None:
        """A run that has not begun has failed: it cannot be started as it is."""
        self._scripts("cancel", run_id, "failed", reason[:REASON_LENGTH])

    def rescue(self, limit: int = 100, leadership: Leadership | None = None) -> tuple[Rescue, ...]:
        """One pass over silent leases, due retries and re-queues, and forgotten waiters."""
        return rescue_all(self._scripts, limit, leadership)

    def forget_owner(self) -> None:
        """The ledger is that of the app whose beat leads next."""
        self.client.hdel(self.keys.beat, "app")

    def ahead(self, jobs: Iterable[str]) -> list[str]:
        """Those of the jobs whose ticks have been dealt with up to a time that is still to come."""
        found, now = list[str](), ms_of(self.now())
        for some in chunks(list(jobs)):
            with self.client.pipeline(transaction=False) as pipe:
                for job in some:
                    pipe.hget(self.keys.job(job), "watermark")
                marks = pipe.execute()
            found += [job for job, at in zip(some, marks, strict=True) if int(at or 0) > now]
        return found

    def rewind(self, by: timedelta, since: datetime, jobs: Sequence[str]) -> None:
        """The server's clock was set back from then: leases, deadlines and retries go back with it.

        jobs: those that are ahead, and go on now. A tick whose run is known does not run a second
        time. Beats are told of the set-back until this has come to its end.
        """
        rewind_all(self._scripts, self, by, since, jobs)

    def leftovers(self) -> list[str]:
        """Queues in which messages of runs that ended before they began may lie."""
        return sorted(self.client.smembers(self.keys.leftovers))

    def ended(self, run_ids: Sequence[str]) -> set[str]:
        """Those of the runs that have ended, and whose records are still there."""
        with self.client.pipeline(transaction=False) as pipe:
            for run_id in run_ids:
                pipe.hget(self.keys.run(run_id), "finished")
            replies = pipe.execute() if run_ids else []
        return {run_id for run_id, at in zip(run_ids, replies, strict=True) if at}

    def outbox(self, limit: int = 500) -> list[str]:
        """Ids of the queued runs that beat is to publish now."""
        due = self.client.zrangebyscore(self.keys.outbox, "-inf", ms_of(self.now()), 0, limit)
        return list(due)

    def put_off(self, run_id: str, by: timedelta) -> None:
        """A run of the outbox is to be published later."""
        self.client.zadd(self.keys.outbox, {run_id: ms_of(self.now() + by)}, xx=True)

    def sent(self, queues: Mapping[str, str]) -> None:
        """The broker took the messages of these runs, each for its queue."""
        if queues:
            self._scripts("sent", *chain.from_iterable(queues.items()))

    def register(self, spec: GuardedTaskSpec) -> None:
        """The ledger knows a job that code guards, and counts its runs, from then on."""
        with self.client.pipeline(transaction=False) as pipe:
            text = spec.model_dump_json(exclude_defaults=True)
            pipe.hset(self.keys.guarded, spec.name, text)
            pipe.hsetnx(self.keys.job(spec.name), "created", ms_of(datetime.now(UTC)))
            pipe.execute()

    def pause(self, job: str, note: str = "", until: datetime | None = None) -> None:
        """Excludes the job's ticks, until it is resumed or until then."""
        self._scripts("pause", job, 1, note, ms_of(until) if until else "")

    def resume(self, job: str) -> datetime | None:
        """Ends a pause; gives since when the job had been paused, None if it had not."""
        return to_instant(self._scripts("pause", job, 0, "", ""))

    def state(self, pipe: Client, said: Sequence[Statement], at: datetime) -> None:
        """Adds to a transaction what schedule files say anew, which holds since `at`."""
        for some in chunks(said):
            facts = chain.from_iterable(map(statement_facts, some))
            self._scripts.within(pipe, "load", ms_of(at), *facts)

    def acknowledge_server(self) -> None:
        """Says that no lease lives that the server may have forgotten: nothing waits for one."""
        run_id = self.client.info("server")["run_id"]
        self.client.hset(self.keys.server, mapping={"run_id": run_id, "since": 0})
