"""One task that does nothing, under each of the peers: `PEER` says which this process is of.

A peer's function in `DRIVERS` gets so many items done and gives the seconds that it took.
"""

import os
import time

from celery import Celery, chord

import supervisor
from supervisor.app import supervise
from supervisor.ledger.runs import Ledger
from supervisor.settings import Settings

PEER, URL = os.environ["PEER"], os.environ["BROKER"]

app = Celery("noop", broker=URL, backend=URL if PEER == "chord" else None)
if PEER == "batch":
    supervise(app)


@app.task(ignore_result=PEER != "chord")
def nothing(item):
    pass


@app.task
def ended(results):
    return len(results)


def plain(items):
    """Until the broker has no message left, neither queued nor with a worker."""
    started = time.monotonic()
    with app.producer_or_acquire() as producer:
        for item in range(items):
            nothing.apply_async((item,), producer=producer)
    with app.connection_for_read() as connection:
        broker = connection.default_channel.client
        while broker.llen("celery") or broker.hlen("unacked"):
            time.sleep(0.02)
    return time.monotonic() - started


def with_chord(items):
    """Until the callback has run."""
    started = time.monotonic()
    done = chord(nothing.s(item) for item in range(items))(ended.s())
    assert done.get(timeout=600) == items
    return time.monotonic() - started


def batch(items):
    """From the call that starts the run to the end that the ledger has noted."""
    ledger, started = Ledger.open(Settings(redis_url=URL)), time.time()
    steps = [{"task": "noop.nothing", "priority": 1, "foreach": "items"}]
    run_id = supervisor.start(steps, params={"items": list(range(items))}, job="batch", app=app)
    while ledger.run(run_id).state.is_open:
        time.sleep(0.02)
    run = ledger.run(run_id)
    assert (run.state, run.reason) == ("succeeded", None)
    assert ledger.run(f"{run_id}/nothing").batch.ended == {"succeeded": items}
    return run.finished_at.timestamp() - started


DRIVERS = {"plain": plain, "chord": with_chord, "batch": batch}
