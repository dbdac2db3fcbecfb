"""One task that does nothing, sent and worked in each of the ways.

A turn queues calls where no worker looks yet, then lets the worker have them and gives
the seconds from the first that it takes until none is left: ours have ended, the others' have been
acknowledged, which is as they begin. A batch and a chord are sent as they are worked.
"""

import os
import time
from itertools import count

from celery import Celery, chord

import supervisor
from supervisor.app import supervise
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings

SIDE, URL = os.environ["SIDE"], os.environ["BROKER"]
QUEUE = "calls"

#: A worker that leaves a queue may still ask for one message of it: each turn has a queue.
queues = (f"{QUEUE}{number}" for number in count())

app = Celery("noop", broker=URL, backend=URL if SIDE == "chord" else None)
options = {"ignore_result": SIDE != "chord"}
if SIDE in ("guarded", "batch"):
    supervise(app)
if SIDE == "guarded":
    options["guard"] = {"key": "{item}"}
if SIDE == "singleton":
    from celery_singleton import Singleton

    app.conf.singleton_backend_url = URL
    options["base"] = Singleton
if SIDE == "once":
    from celery_once import QueueOnce

    backend = "celery_once.backends.Redis"
    app.conf.ONCE = {"backend": backend, "settings": {"url": URL, "default_timeout": 3600}}
    options["base"] = QueueOnce


@app.task(name="noop.nothing", **options)
def nothing(item):
    pass


@app.task(name="noop.ended", ignore_result=SIDE != "chord")
def ended(results):
    return len(results)


def turn(items):
    """Seconds until all calls are queued; and what `drained` gives."""
    queue = next(queues)
    return send(items, queue), drained(items, queue)


def send(items, queue):
    started = time.monotonic()
    for item in range(items):
        nothing.apply_async((item,), queue=queue)
    return time.monotonic() - started


def drained(items, queue):
    """Seconds since the worker took the first of them; and the commands of each call."""
    ledger = Ledger.open(Settings(redis_url=URL))
    client = ledger.client
    assert client.llen(queue) == items
    before, calls_before = finished(ledger), client.info("commandstats")
    app.control.add_consumer(queue)
    while client.llen(queue) == items:
        time.sleep(0.001)
    started = time.monotonic()
    while client.llen(queue) or client.hlen("unacked") or finished(ledger) - before < runs(items):
        time.sleep(0.01)
    seconds = time.monotonic() - started
    scripts = calls_of("cmdstat_fcall", client.info("commandstats"), calls_before)
    app.control.cancel_consumer(queue)
    return {"seconds": seconds, "scripts": scripts / items}


def runs(items):
    return items if SIDE == "guarded" else 0


def finished(ledger):
    """By the ledger's own count, where it has one."""
    field = "n:finished:succeeded"
    return int(ledger.client.hget(ledger.keys.job("noop.nothing"), field) or 0)


def calls_of(command, after, before):
    return after.get(command, {}).get("calls", 0) - before.get(command, {}).get("calls", 0)


def plain(items):
    """Sent while it is worked, until the broker has none left."""
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
    assert ledger.run(f"{run_id}~nothing").batch.ended == {"succeeded": items}
    return run.finished_at.timestamp() - started


DRIVERS = {"plain": plain, "chord": with_chord, "batch": batch}
