"""One attempt of a run, from its lease to its end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from supervisor.job.content import Content
from supervisor.job.run import RunState
from supervisor.ledger.attempt import (
    Finished,
    Grant,
    GrantedAttempt,
    LeaseToRenew,
    Refusal,
    Refused,
    Renewal,
    Work,
    finished,
    grant_of,
    renewal,
)
from supervisor.ledger.functions import Call, document
from supervisor.ledger.limits import REASON_LENGTH
from supervisor.ledger.run_reads import RunReads
from supervisor.ledger.run_request import JOB_ARGUMENTS, CallArguments
from supervisor.times import clock, ms_of, ms_since, to_ms


def attempt_fields(granted: GrantedAttempt | None) -> dict[str, dict[str, int]]:
    """What its worker was granted, as the functions read it."""
    return {"attempt": granted.fields} if granted else {}


class Attempts(RunReads):
    """Each call names the attempt by its token: one that has lost its run changes nothing."""

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

    def restore_ended(self, work: Work, token: str, granted: GrantedAttempt) -> str | None:
        """Writes back an attempt whose work is over, so that its end can be recorded.

        Returns the other run of an overlap that was counted by this.

        Not that of a call of which there is no record: its end may be known, and its record gone.
        """
        if not (work.is_tick or self.ended([work.run_id])):
            return None
        return self.restore(work, token, granted).detail

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
        over_at = clock() if ended_at is None else ended_at
        return self._finish(run_id, token, outcome.value, reason, over_at, granted, more)

    def report_dead(
        self,
        run_id: str,
        token: str,
        reason: str,
        granted: GrantedAttempt | None = None,
        at_work_at: float | None = None,
    ) -> Finished:
        """Ends an attempt whose process is gone: it is lost, or what it was being ended for.

        at_work_at: when it was last seen at work, by `times.clock`.
        """
        return self._finish(run_id, token, "dead", reason, at_work_at, granted)

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
        over_at = clock() if ended_at is None else ended_at
        return self._finish(run_id, token, "retry", reason, over_at, granted, more)

    def _finish(
        self,
        run_id: str,
        token: str,
        outcome: str,
        reason: str = "",
        over_at: float | None = None,
        granted: GrantedAttempt | None = None,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> Finished:
        fields = {"run_id": run_id, "token": token, "outcome": outcome, **more}
        fields |= {"reason": reason[:REASON_LENGTH], **attempt_fields(granted)}

        def sent_now() -> Call:
            """Made again each time that it is sent, which may be for long."""
            ago = {} if over_at is None else {"ago": ms_since(over_at)}
            return Call((document(fields | ago),))

        return finished(self.functions.as_of_sending("finish", sent_now))

    def note_ending(self, run_id: str, token: str, outcome: RunState, reason: str = "") -> bool:
        """Records why a running attempt is about to be ended, before it is."""
        return bool(self.functions("note_ending", run_id, token, outcome.value, reason))
