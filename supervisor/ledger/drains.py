"""Queues that are drained: what runs goes on, nothing more begins, and nothing is lost.

1. A drained queue is a field of one hash. `begin` looks at it, in the script that gives the lease:
   so it holds from the call that drains the queue on, and for workers that start afterwards.
2. A run that is refused stays queued and keeps its lock. It is in the outbox without a time, and is
   sent anew when the queue goes on.
3. `start_deadline` is not for the time in which a queue is drained: whoever finds that a queued run
   has reached it gives it another one, and so does the end of the drain.
"""

from __future__ import annotations

from datetime import datetime

from supervisor.ledger.connection import Client
from supervisor.ledger.keys import Keys
from supervisor.ledger.replies import instant, to_instant
from supervisor.ledger.scripts import Scripts
from supervisor.runs.run import RunState


class Drains:
    def __init__(self, client: Client, keys: Keys, scripts: Scripts) -> None:
        self._client = client
        self._keys = keys
        self._scripts = scripts

    def drain(self, queue: str) -> datetime:
        """Nothing begins from the queue any more; since when that is so."""
        return instant(self._scripts("drain", queue, 1))

    def undrain(self, queue: str) -> datetime | None:
        """Lets it go on; since when it had been drained, None if it had not."""
        return to_instant(self._scripts("drain", queue, 0))

    def since(self) -> dict[str, datetime]:
        """The drained queues, by name, and since when each of them is."""
        drained = self._client.hgetall(self._keys.drained)
        return {queue: instant(drained[queue]) for queue in sorted(drained)}

    def at_work(self, queue: str) -> list[str]:
        """Ids of runs that began from the queue and are at work: runs, steps, items of batches."""
        run_ids = self._client.zrange(self._keys.leases, 0, -1)
        with self._client.pipeline(transaction=False) as pipe:
            for run_id in run_ids:
                pipe.hmget(self._keys.run(run_id), "state", "queue")
            replies = pipe.execute() if run_ids else []
        at_work = [RunState.RUNNING.value, queue]
        return [run_id for run_id, reply in zip(run_ids, replies, strict=True) if reply == at_work]
