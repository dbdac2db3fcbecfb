"""The ledger: every transition of a run is one script and one round trip.

Each script checks the state it moves from, so a second delivery of anything - a message, a tick,
a reply that was lost and asked for again - changes nothing but a counter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, Self

from supervisor.durations import to_ms
from supervisor.elapsed import ms_since
from supervisor.guarded_spec import GuardedTaskSpec
from supervisor.ledger.admissions import admit_requests, admit_ticks
from supervisor.ledger.connection import Client, connect
from supervisor.ledger.drains import Drains
from supervisor.ledger.keys import Keys
from supervisor.ledger.presence import Presences
from supervisor.ledger.readings import Readings
from supervisor.ledger.replies import (
    Admission,
    Cancellation,
    Finished,
    Grant,
    Refusal,
    Refused,
    Renewal,
    Rescue,
    finished,
    instant,
    ms_of,
    renewal,
    rescues,
    to_instant,
)
from supervisor.ledger.reports import Reports
from supervisor.ledger.requests import Begun, RunRequest, Work, text
from supervisor.ledger.scripts import Call, Scripts
from supervisor.ledger.steps import Steps, flat
from supervisor.ledger.stretches import Stretches
from supervisor.ledger.ticks import Leadership, PassedOver, Tick
from supervisor.run import Run, RunState, tick_id
from supervisor.settings import Settings
from supervisor.spec import JobSpec

ANY_RUN = RunRequest()


#: Reasons are one line for a table, not a traceback.
REASON_LENGTH = 300


class Ledger(Readings):
    """The writing half. `client` decodes replies; all instants are aware UTC."""

    def __init__(self, client: Client, keys: Keys) -> None:
        super().__init__(client, keys)
        self._scripts = Scripts(client, keys)
        self.reports = Reports(client, keys, self._scripts)
        self.stretches = Stretches(client, keys, self._scripts)
        self.steps = Steps(client, keys, self._scripts)
        self.drains = Drains(client, keys, self._scripts)
        self.presences = Presences(client, keys)

    @classmethod
    def open(cls, settings: Settings) -> Self:
        return cls(connect(settings), Keys(settings.prefix))

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

    def begin(self, run_id: str, token: str, worker: str, queue: str = "") -> Grant | Refused:
        """Asks for the lease of one attempt; `token` is fresh for each delivery."""
        verdict, *rest = self._scripts("begin", run_id, token, worker, queue)
        if verdict != "begin":
            return Refused(run_id, Refusal(verdict), rest[0] if rest else None)
        fence, attempt, nominal, ttl, job, stage = rest
        return Grant(
            run_id=run_id,
            job=job,
            token=token,
            fencing_token=int(fence),
            attempt=int(attempt),
            nominal_at=instant(nominal),
            lease_ttl=timedelta(milliseconds=int(ttl)),
            stage=stage,
        )

    def renew(self, leases: Sequence[tuple[str, str, Begun | bool]]) -> list[Renewal]:
        """Renews the leases (run id, token, whether it has begun) of a worker in one call."""
        facts: list[str | int] = []
        for run_id, token, has_begun in leases:
            facts += (run_id, token, int(has_begun))
        return [renewal(reply) for reply in self._scripts("renew", *facts)] if facts else []

    def restore(self, work: Work, token: str) -> Renewal:
        """Writes a running run anew that the server has forgotten, where nobody else has begun."""
        return renewal(
            self._scripts(
                "restore",
                *(work.run_id, token, work.job, ms_of(work.nominal_at)),
                *(json.dumps(dict(work.rules)), work.worker, int(work.is_tick)),
            )
        )

    def finish(
        self,
        run_id: str,
        token: str,
        outcome: RunState,
        reason: str = "",
        returned: Mapping[str, Any] | None = None,
        ended_at: float | None = None,
    ) -> Finished:
        """Ends an attempt, in its own name; `outcome` lost lets the job's `on_crash` decide.

        returned: by a step, for the params of its run. ended_at: when its work was over, by the
        clock of elapsed.py; now without it.
        """
        facts = (outcome.value, reason[:REASON_LENGTH], 0, "", "")
        return self._finish((run_id, token, *facts), ended_at, flat(returned))

    def report_dead(self, run_id: str, token: str, reason: str) -> Finished:
        """Ends an attempt whose process is gone: it is lost, or what it was being ended for."""
        facts = ("dead", reason[:REASON_LENGTH], 0, "", "")
        return self._finish((run_id, token, *facts), None)

    def retry(
        self,
        run_id: str,
        token: str,
        delay: timedelta,
        reason: str = "",
        args: Any = None,
        kwargs: Any = None,
        ended_at: float | None = None,
    ) -> Finished:
        """Ends a failed attempt; the next is due after `delay`, and the lock is kept.

        `args` and `kwargs`, where given, replace the run's own for the next attempt. ended_at: as
        for `finish`.
        """
        facts = ("retry", reason[:REASON_LENGTH], to_ms(delay), text(args), text(kwargs))
        return self._finish((run_id, token, *facts), ended_at)

    def _finish(
        self, facts: tuple[str | int, ...], ended_at: float | None, returned: Sequence[str] = ()
    ) -> Finished:
        def call() -> Call:
            """Asked for each time that it is sent: it may be tried for long."""
            ago = 0 if ended_at is None else ms_since(ended_at)
            return Call((*facts, ago, *returned))

        return finished(self._scripts.as_of_sending("finish", call))

    def mark(self, run_id: str, token: str, outcome: RunState, reason: str = "") -> bool:
        """Says beforehand what a running attempt is about to be ended for."""
        return bool(self._scripts("mark", run_id, token, outcome.value, reason))

    def cancel(self, run_id: str, reason: str) -> Cancellation:
        """Ends a run that is not at work; asks one that is to end within its `stop_grace`."""
        verdict = self._scripts("cancel", run_id, "cancelled", reason[:REASON_LENGTH])[0]
        return Cancellation(verdict)

    def give_up(self, run_id: str, reason: str) -> None:
        """A run that has not begun has failed: it cannot be started as it is."""
        self._scripts("cancel", run_id, "failed", reason[:REASON_LENGTH])

    def rescue(self, limit: int = 100, leadership: Leadership | None = None) -> tuple[Rescue, ...]:
        """One pass over silent leases, due retries and re-queues, and forgotten waiters."""
        flat = self._scripts(
            "rescue",
            limit,
            leadership.token if leadership else "",
            keys=(leadership.key,) if leadership else (),
        )
        return rescues(flat)

    def outbox(self, limit: int = 500) -> list[str]:
        """Ids of the queued runs that beat is to publish now."""
        due = self.client.zrangebyscore(self.keys.outbox, "-inf", ms_of(self.now()), 0, limit)
        return list(due)

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

    def acknowledge_server(self) -> None:
        """Says that no lease lives that the server may have forgotten: nothing waits for one."""
        run_id = self.client.info("server")["run_id"]
        self.client.hset(self.keys.server, mapping={"run_id": run_id, "since": 0})
