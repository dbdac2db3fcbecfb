"""The queues of a broker that is the ledger's own server, for who runs without the app."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.job.spec import JobSpec
from supervisor.job.topology import DEFAULT_QUEUE, queues_of
from supervisor.ledger.connection import Client
from supervisor.ledger.presence import Roll

#: How kombu calls the lists of a queue with messages of other priorities, unless it is told else.
PRIORITIES = ("", "\x06\x163", "\x06\x166", "\x06\x169")


class LedgerQueues:
    """As `roll` says: the workers and beats that are there know their app."""

    def __init__(self, client: Client, roll: Roll) -> None:
        brokers = [present.broker for present in roll.present]
        self._client = client
        self._is_broker = bool(brokers) and all(broker.is_ledger for broker in brokers)
        self._default = brokers[0].default_queue if brokers else DEFAULT_QUEUE

    def of(self, spec: JobSpec) -> tuple[str, ...]:
        return queues_of(spec, lambda _: self._default)

    def lengths(self, queues: Sequence[str]) -> dict[str, int]:
        """Empty when the messages are somewhere else, or nobody is there to say where."""
        if not self._is_broker:
            return {}
        with self._client.pipeline(transaction=False) as pipe:
            for queue in queues:
                for priority in PRIORITIES:
                    pipe.llen(queue + priority)
            lengths = pipe.execute()
        step = len(PRIORITIES)
        return {
            queue: sum(lengths[number * step : (number + 1) * step])
            for number, queue in enumerate(queues)
        }
