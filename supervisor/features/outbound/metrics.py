"""What was sent to other servers, and what waits."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric

from supervisor.features.outbound.store import LedgerOutbox
from supervisor.ledger.ledger import Ledger
from supervisor.web.metric_families import at, counter, gauge, single


def metrics(ledger: Ledger) -> Iterator[Metric]:
    """Raises RedisError."""
    outbound = LedgerOutbox(ledger).figures()
    help = "What other servers took: notices, pings, check-ins and revocations."
    yield counter("outbound_sent", help, outbound.sent.items(), "kind")
    help = "The same that was given up: refused, or not taken for a day."
    yield counter("outbound_dropped", help, outbound.dropped.items(), "kind")
    help = "When the oldest of those that wait was to be sent."
    yield gauge("oldest_unsent_timestamp_seconds", help, single(at(outbound.oldest_at)))
