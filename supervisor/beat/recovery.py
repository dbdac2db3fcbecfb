"""Silent leases, due retries and re-queues, forgotten waiters, a server clock that was set back."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.beat.admission_log import note_rescue
from supervisor.beat.turn import Turn
from supervisor.catalog.entries import Entries
from supervisor.ledger.leader import Poll
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import RUNS_PER_DISMISSAL
from supervisor.logs import get_logger
from supervisor.schedule import schedule_of

#: With so many runs rescued, the others are left for the next turn.
RESCUES_PER_TURN = 4_000

log = get_logger("supervisor.beat")


@dataclass(frozen=True, slots=True)
class Recovery:
    ledger: Ledger
    entries: Entries

    def is_due(self, turn: Turn) -> bool:
        return bool(turn.poll.set_back) or turn.poll.to_rescue

    def do(self, turn: Turn) -> None:
        if turn.poll.set_back:
            self._go_on_from(turn.poll)
        if turn.poll.to_rescue:
            self._rescue()

    def _go_on_from(self, poll: Poll) -> None:
        """After a set-back of the server's clock, from which all times of the ledger come.

        If it fails on the way, it is done again, by whichever beat leads then.
        """
        log.error("server clock set back", seconds=poll.set_back.total_seconds())
        specs = self.ledger.scheduled()
        ahead = self.ledger.ahead(specs)
        next_at = {name: schedule_of(specs[name]).next_after(poll.at) for name in ahead}
        self.entries.reschedule(next_at)
        self.ledger.go_on_from_now(poll.set_back, ahead)

    def _rescue(self) -> None:
        number = 0
        while number < RESCUES_PER_TURN:
            rescued = self.ledger.rescue()
            for rescue in rescued:
                note_rescue(rescue)
            if len(rescued) < RUNS_PER_DISMISSAL:
                return
            number += len(rescued)
