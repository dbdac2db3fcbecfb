"""A task that may not run beside itself, with the locks that people use; and how long it takes.

Each start and end is a line in Redis: what happened, when, and in which process.
"""

import json
import os
import random
import time

import redis
from celery import Celery

SIDE, URL = os.environ["SIDE"], os.environ["BROKER"]
#: What each lock is told of how long it may outlive its holder; ours and the brokers' too.
LOCK_SECONDS = 10

client = redis.Redis.from_url(URL, decode_responses=True)
app = Celery("locked", broker=URL)
options = {"ignore_result": True, "bind": True}
OURS = SIDE in ("ours", "unseen")
if OURS:
    from supervisor.app import supervise

    supervise(app)
    options["guard"] = {
        "overlap": "queue_all",
        "max_waiting": 1000,
        "key": "one",
        "lease_ttl": f"{LOCK_SECONDS}s",
    }
if SIDE == "singleton":
    from celery_singleton import Singleton

    app.conf.singleton_backend_url = URL
    options |= {"base": Singleton, "lock_expiry": LOCK_SECONDS}
if SIDE == "once":
    from celery_once import QueueOnce

    settings = {"url": URL, "default_timeout": LOCK_SECONDS}
    app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": settings}
    options |= {"base": QueueOnce, "once": {"graceful": True}}
if SIDE == "acks_late":
    app.conf.broker_transport_options = {"visibility_timeout": LOCK_SECONDS}
    options |= {"acks_late": True, "reject_on_worker_lost": True}


def sign(event):
    client.rpush("signs", json.dumps([event, time.time(), os.getpid(), os.getppid()]))


def signs():
    return [json.loads(line) for line in client.lrange("signs", 0, -1)]


@app.task(name="locked.work", **options)
def work(self, seconds):
    if SIDE == "countdown" and not client.set("lock", 1, nx=True, ex=60):
        raise self.retry(countdown=1, max_retries=None)
    while SIDE == "polled" and not client.set("lock", 1, nx=True, ex=60):
        time.sleep(0.1)
    sign("start")
    time.sleep(seconds)
    sign("end")
    if SIDE in ("polled", "countdown"):
        client.delete("lock")


@app.task(name="locked.again", **{**options, **({"guard": {"key": "{item}"}} if OURS else {})})
def again(self, item):
    now = time.time()
    if self.request.retries:
        client.rpush("late", now - float(client.hget("due", item)))
        return
    seconds = random.uniform(1, 2)
    client.hset("due", item, now + seconds)
    raise self.retry(countdown=seconds)


def call(runs, seconds):
    for _ in range(runs):
        work.delay(seconds)
    return runs


def pushed(messages):
    """A message that was made before: from its push to the start, in s."""
    gaps = []
    client.delete("signs")
    for number in range(messages):
        work.apply_async((0,), queue="made")
        time.sleep(random.uniform(0.2, 0.5))
        at = time.time()
        client.lmove("made", "celery")
        while client.llen("signs") < 2 * number + 2:
            time.sleep(0.01)
        [_, started, *_], _ = signs()[-2:]
        gaps.append(started - at)
    return gaps


def retried(runs):
    """Runs that ask for a retry: from the time that they asked for to the start, in s."""
    client.delete("late")
    for item in range(runs):
        again.delay(item)
        time.sleep(random.uniform(0.02, 0.1))
    while client.llen("late") < runs:
        time.sleep(0.01)
    return [float(late) for late in client.lrange("late", 0, -1)]


def in_pairs(pairs):
    """A run that works, and one that comes meanwhile and waits: from the end to the start, in s."""
    gaps = []
    client.delete("signs")
    for number in range(pairs):
        work.delay(random.uniform(0.2, 0.5))
        while client.llen("signs") < 4 * number + 1:
            time.sleep(0.01)
        work.delay(0)
        while client.llen("signs") < 4 * number + 4:
            time.sleep(0.01)
        _, [_, ended, *_], [_, started, *_], _ = signs()[-4:]
        gaps.append(started - ended)
    return gaps


def call_until_it_starts(seconds):
    """As a scheduler does, each half second, until one of the calls is let through."""
    before = client.llen("signs")
    while client.llen("signs") == before:
        work.delay(seconds)
        time.sleep(0.5)
    return True
