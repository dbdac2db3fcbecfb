"""For the tests of an app: a ledger of its own, what became of a run, and faults on demand.

None of it is for production: `empty` deletes everything in a database.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta

from celery import Celery

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.errors import NotConfigured
from supervisor.job.run import Run, RunState
from supervisor.job.run_ids import StepId
from supervisor.ledger.ledger import Ledger
from supervisor.sending.publisher import publisher_of
from supervisor.store.keys import Keys
from supervisor.times import ms_of, to_ms

__all__ = [
    "EmbeddedServer",
    "comes_due",
    "empty",
    "has_run_for",
    "leadership_runs_out",
    "lease_runs_out",
    "ledger_of",
    "server_changes",
    "wait_for_end",
]

#: Between two looks at a run.
PAUSE_SECONDS = 0.02


def ledger_of(app: Celery) -> Ledger:
    """The ledger of a supervised app, for the functions below. Its `run(run_id)` is the record of a
    run, with `state`, `attempt`, `reason` and `worker`; `history(job)` has the runs of a job,
    newest first. A run that it does not know raises UnknownRun."""
    return publisher_of(app).ledger


def empty(ledger: Ledger) -> None:
    """Deletes the whole database: the ledger, and any queues in it.

    The server then has nothing to remember, and runs may begin at once. Raises NotConfigured while
    SUPERVISOR_REDIS_URL is set: it takes precedence over the address that a test gives its app, so
    the database may be one that is in use.
    """
    if "SUPERVISOR_REDIS_URL" in os.environ:
        raise NotConfigured(
            "SUPERVISOR_REDIS_URL is set, and takes precedence over a test's `redis_url`: remove it"
            " from the environment of tests (docs/how-to/testing.md)"
        )
    ledger.client.execute_command("FLUSHDB")
    ledger.acknowledge_server()


def wait_for_end(ledger: Ledger, run_id: str, timeout: timedelta = timedelta(seconds=30)) -> Run:
    """The run, once it has ended. Raises TimeoutError, which says how far it has come."""
    until = time.monotonic() + timeout.total_seconds()
    while (run := ledger.run(run_id)).state.is_open:
        if time.monotonic() > until:
            kept = f", kept from starting: {run.obstacle.text}" if run.obstacle else ""
            raise TimeoutError(f"{run_id} is still {run.state.value}{kept}")
        time.sleep(PAUSE_SECONDS)
    return run


def lease_runs_out(ledger: Ledger, run_id: str) -> None:
    """As if the worker of a running run had been silent for its whole `lease_ttl`.

    The next turn of beat, or `ledger.rescue()`, does what `on_crash` says. Of a run that is queued,
    its `start_deadline` has passed; of one that waits, its `max_wait`.
    """
    client, keys, run = ledger.client, ledger.keys, ledger.run(run_id)
    record = keys.run(run_id)
    if run.state is RunState.WAITING:
        if client.hexists(record, "wait_until"):
            client.hset(record, "wait_until", 1)
            client.zadd(keys.leases, {run_id: 1})
        return
    slot, token = client.hmget(record, ["slot", "token"])
    if StepId.of(run_id) is None:
        client.delete(slot_key(keys, run.rules.lock, int(slot or 1)))
    if run.rules.serial and client.get(keys.lock(run.rules.serial)) == token:
        client.delete(keys.lock(run.rules.serial))
    # Of two that ran out, the one in the lower slot did so first.
    client.zadd(keys.leases, {run_id: int(slot or 1)})


def slot_key(keys: Keys, lock: str, slot: int) -> str:
    return keys.lock(lock) + ("" if slot == 1 else f":{slot}")


def has_run_for(ledger: Ledger, run_id: str, time: timedelta) -> None:
    """As if the attempt that is running had begun that long ago, or one that ended had taken as
    long."""
    record = ledger.keys.run(run_id)
    until = int(ledger.client.hget(record, "finished") or ms_of(ledger.now()))
    ledger.client.hset(record, "started", until - to_ms(time))


def leadership_runs_out(ledger: Ledger, lock: str = "redbeat::lock") -> None:
    """As if the beat that leads had been silent for 12 seconds: the next one that asks leads.

    lock: RedBeat's `redbeat_lock_key`, if the app sets one or a prefix.
    """
    ledger.client.delete(lock)


def server_changes(ledger: Ledger) -> None:
    """As after a restart of Redis or a failover: no run begins until those that may have been
    running have had their `lease_ttl` to come back, or until `ledger.acknowledge_server()`.
    """
    ledger.client.hset(ledger.keys.server, "run_id", "before")


def comes_due(ledger: Ledger, run_id: str) -> None:
    """The delay of a retry, of a re-queue or of a `countdown` is over.

    The next turn of beat, or `ledger.rescue()`, queues the run.
    """
    ledger.client.zadd(ledger.keys.delayed, {run_id: 1}, xx=True)
