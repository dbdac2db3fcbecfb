"""One attempt of a run, from its lease to its end, as its worker tells the ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from supervisor.ledger.replies import (
    Finished,
    Grant,
    Refusal,
    Refused,
    Renewal,
    finished,
    instant,
    ms_of,
    renewal,
)
from supervisor.ledger.requests import NOTHING, Asked, Begun, Work
from supervisor.ledger.scripts import Call, Scripts
from supervisor.ledger.steps import flat
from supervisor.runs.run import RunState
from supervisor.times.durations import to_ms
from supervisor.times.elapsed import clock, ms_since

#: Reasons are one line for a table, not a traceback.
REASON_LENGTH = 300


class Attempts:
    _scripts: Scripts

    def begin(self, run_id: str, token: str, worker: str, queue: str = "") -> Grant | Refused:
        """Asks for the lease of one attempt; `token` is fresh for each delivery."""
        asked_at = 0.0

        def call() -> Call:
            """Asked for each time that it is sent: the reply that came is to the last of them."""
            nonlocal asked_at
            asked_at = clock()
            return Call((run_id, token, worker, queue))

        verdict, *rest = self._scripts.as_of_sending("begin", call)
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
            asked_at=asked_at,
        )

    def renew(self, leases: Sequence[tuple[str, str, Begun | bool]]) -> list[Renewal]:
        """Renews the leases (run id, token, whether it has begun) of a worker in one call."""
        facts: list[str | int] = []
        for run_id, token, has_begun in leases:
            facts += (run_id, token, int(has_begun))
        return [renewal(reply) for reply in self._scripts("renew", *facts)] if facts else []

    def restore(self, work: Work, token: str, asked: Asked = NOTHING) -> Renewal:
        """Writes a running run anew that the server has forgotten, where nobody else has begun."""
        return renewal(
            self._scripts(
                "restore",
                *(work.run_id, token, work.job, ms_of(work.nominal_at)),
                *(json.dumps(dict(work.rules)), work.worker, int(work.is_tick)),
                *(*asked.facts, "1" if asked.is_awaited else "", asked.code),
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
        asked: Asked = NOTHING,
        ended_at: float | None = None,
    ) -> Finished:
        """Ends a failed attempt; the next is due after `delay`, and the lock is kept.

        asked: what the next attempt, and those after it, have in place of the run's own. ended_at:
        as for `finish`.
        """
        args, kwargs, *more = asked.facts
        facts = ("retry", reason[:REASON_LENGTH], to_ms(delay), args, kwargs)
        return self._finish((run_id, token, *facts), ended_at, more)

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
