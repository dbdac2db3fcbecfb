"""What the leading beat sends to other servers, by kind.

**Revocations** go to Celery's result backend, for calls that ended before they began. A caller may
wait for the result, alone or in a chord. The result of a run that began is stored by its worker; of
one that was skipped, cancelled or expired before, no worker knows. Sent twice, a result stays what
it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from celery import Celery

from supervisor.beat.turn import BeatContext, Part, Turn
from supervisor.features.outbound.answer import Answer
from supervisor.features.outbound.sender import Outbound, Result, Send
from supervisor.features.outbound.store import Kind, LedgerOutbox, RunReport, Unsent
from supervisor.ledger.ledger import Ledger
from supervisor.sending.results import revoke


@dataclass(frozen=True, slots=True)
class Revocations:
    app: Celery
    ledger: Ledger

    def send(self, entry: Unsent) -> Result:
        report = RunReport.model_validate_json(entry.text)
        fields = {"job": report.job, "run": report.run}
        task = self.app.tasks.get(report.job)
        backend = self.app.backend if task is None else task.backend
        options = next((run.options for run in self.ledger.runs([report.run])), {})
        reason = ": ".join(filter(None, (report.outcome, report.reason)))
        try:
            revoke(backend, report.run, reason, options)
        except Exception as error:  # noqa: BLE001 - each backend has errors of its own
            return Result(Answer.UNAVAILABLE, str(error), fields)
        return Result(Answer.TAKEN)


class Sending:
    """senders: by kind; what waits of a kind that has none is not wanted, and taken off."""

    def __init__(self, ledger: Ledger, senders: Mapping[str, Send]) -> None:
        self._outbound = Outbound(LedgerOutbox(ledger), senders)

    def is_due(self, turn: Turn) -> bool:
        return turn.poll.has_outbound

    def do(self, turn: Turn) -> None:
        self._outbound.send_due(turn.poll.at)


def part(beat: BeatContext) -> Part:
    beat.senders[Kind.REVOCATION] = Revocations(beat.app, beat.ledger).send
    return Part(deliver=(Sending(beat.ledger, beat.senders),))
