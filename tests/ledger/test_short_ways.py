"""The short way through a script leaves behind what the long way does, to the last key."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger import scripts
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Ending, Placement
from supervisor.ledger.requests import Message, RunRequest, Tick
from tests.ledger.jobs import MIDNIGHT, begin, job, pause, run_id, ticks
from tests.ledger.test_batches import batch, end
from tests.ledger.test_model_catches import break_scripts

#: Nothing is ordinary any more.
LONG_WAYS = {
    "admit_first": ("if not leads or", "if true or"),
    "begin_first": ("local is_first = ", "local is_first = false and "),
    "finish_first": ("local is_alone = ", "local is_alone = false and "),
}

HOUR = timedelta(hours=1)

#: A fencing token that no clock gives yet.
FENCE = 9_007_199_254_740_000

Story = Callable[[Ledger, JobSpec], object]


def sent(spec: JobSpec, second: int) -> Tick:
    [tick] = ticks(spec, second)
    return tick.sent_as(Message("celery", "celery", f"message of {tick.run_id}"))


def run_through(ledger: Ledger, spec: JobSpec, *seconds: int) -> None:
    for second in seconds:
        ledger.admit([sent(spec, second)])
        begin(ledger, run_id(spec, second))
        ledger.finish(run_id(spec, second), "token", RunState.SUCCEEDED)


def resumed(ledger: Ledger, spec: JobSpec) -> None:
    pause(ledger, spec)
    ledger.resume(spec.name)
    ledger.client.hset(ledger.keys.job(spec.name), "pause_to", 1)
    ledger.admit([sent(spec, 0)])


def excluded(ledger: Ledger, spec: JobSpec) -> None:
    pause(ledger, spec)
    ledger.admit([sent(spec, 0)])


def beside_a_stranger(ledger: Ledger, spec: JobSpec) -> None:
    ledger.client.set(ledger.keys.lock(spec.lock), "a stranger's")
    ledger.admit([sent(spec, 0)])


def behind_one_that_waits(ledger: Ledger, spec: JobSpec) -> None:
    """What it waited for is gone, and nobody has looked since."""
    beside_a_stranger(ledger, spec)
    ledger.client.delete(ledger.keys.lock(spec.lock))
    ledger.admit([sent(spec, 1)])


def after_it_was_forgotten(ledger: Ledger, spec: JobSpec) -> None:
    """The same tick, when its run is no longer in the history."""
    run_through(ledger, spec, 0)
    ledger.client.delete(ledger.keys.run(run_id(spec, 0)))
    ledger.admit([sent(spec, 0)])


def behind_a_clock(ledger: Ledger, spec: JobSpec) -> None:
    """The server that was promoted has a clock that is behind that of the one before."""
    run_through(ledger, spec, 0)
    ledger.client.hset(ledger.keys.lock_state(spec.lock), "fence", FENCE)
    run_through(ledger, spec, 1)


def asked(ledger: Ledger, spec: JobSpec, *names: str, **said: Any) -> None:
    """Calls of a task that code guards, with a message each."""
    for name in names:
        message = Message("celery", "celery", f"message of {name}")
        request = RunRequest(
            f"{spec.name}@{name}", args=[1], message=message, is_of_code=True, **said
        )
        ledger.admit_request(spec, request)


STORIES: dict[str, tuple[Story, dict[str, Any]]] = {
    "sent": (lambda ledger, spec: ledger.admit([sent(spec, 0)]), {}),
    "in the outbox": (lambda ledger, spec: ledger.admit(ticks(spec, 0)), {}),
    "again": (lambda ledger, spec: [ledger.admit([sent(spec, 0)]) for _ in "ab"], {}),
    "older than the last": (lambda ledger, spec: ledger.admit(ticks(spec, 1, 0)), {}),
    "skipped": (lambda ledger, spec: ledger.admit([sent(spec, 0), sent(spec, 1)]), {}),
    "waits": (lambda ledger, spec: ledger.admit(ticks(spec, 0, 1, 2)), {"overlap": "queue_all"}),
    "of a serial queue": (lambda ledger, spec: run_through(ledger, spec, 0, 1), {"serial": "own"}),
    "several at once": (lambda ledger, spec: ledger.admit(ticks(spec, 0, 1)), {"max_running": 2}),
    "any number": (lambda ledger, spec: ledger.admit(ticks(spec, 0, 1)), {"overlap": "allow"}),
    "with patience": (lambda ledger, spec: ledger.admit(ticks(spec, 0)), {"max_wait": "1h"}),
    "to its end": (lambda ledger, spec: run_through(ledger, spec, 0), {}),
    "time and again": (lambda ledger, spec: run_through(ledger, spec, 0, 1, 2, 3), {"history": 2}),
    "after a pause": (resumed, {}),
    "in a pause": (excluded, {}),
    "beside a stranger": (beside_a_stranger, {}),
    "behind one that waits": (behind_one_that_waits, {"overlap": "queue_all"}),
    "after it was forgotten": (after_it_was_forgotten, {}),
    "behind a clock": (behind_a_clock, {}),
    "asked for": (lambda ledger, spec: asked(ledger, spec, "a"), {}),
    "asked for again": (lambda ledger, spec: asked(ledger, spec, "a", "a"), {}),
    "asked for, and skipped": (lambda ledger, spec: asked(ledger, spec, "a", "b"), {}),
    "asked for later": (lambda ledger, spec: asked(ledger, spec, "a", delay=HOUR), {}),
    "asked for in a pause": (
        lambda ledger, spec: (pause(ledger, spec), asked(ledger, spec, "a")),
        {},
    ),
    "asked for with all there is": (
        lambda ledger, spec: asked(
            *(ledger, spec, "a"),
            kwargs={"b": 2},
            options={"priority": 3},
            nominal_at=MIDNIGHT,
            expires=HOUR,
            is_awaited=True,
        ),
        {"max_wait": "2h"},
    ),
    "asked for by name": (
        lambda ledger, spec: ledger.admit_request(spec, RunRequest("nightly@a")),
        {},
    ),
}


def left_behind(ledger: Ledger) -> dict[str, object]:
    """All keys, as what they hold; times are left out, for no two calls are made at once."""
    client, found = ledger.client, {}
    for key in client.scan_iter():
        match client.type(key):
            case "hash":
                found[key] = sorted(client.hgetall(key).items())
            case "zset":
                found[key] = client.zrange(key, 0, -1)
            case "set":
                found[key] = sorted(client.smembers(key))
            case "list":
                found[key] = client.lrange(key, 0, -1)
            case _:
                found[key] = client.get(key)
        found[key] = (without_times(repr(found[key])), client.ttl(key) > 0)
    return found


def without_times(text: str) -> str:
    return re.sub(r"(?<=:sum', ')\d+|\b1\d{12}(\d{3})?\b", "some", text)


@pytest.mark.parametrize("what", STORIES)
def test_both_ways_lead_to_the_same(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    story, keys = STORIES[what]
    told = []
    for is_long in (False, True):
        ledger.client.flushdb()
        ledger.acknowledge_server()
        if is_long:
            for part, (line, broken) in LONG_WAYS.items():
                break_scripts(monkeypatch, part, line, broken)
        now = Ledger(ledger.client, ledger.keys)
        story(now, job(now, **keys))
        told.append(left_behind(now))
    assert told[0] == told[1]


ORDINARY = ("sent", "in the outbox", "with patience", "to its end", "time and again", "asked for")


def only_short(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """Though the long way leads to the same, it takes the server longer."""
    whole = scripts.source

    def source(name: str) -> str:
        return f"error('long: {name}')" if name in ("admit", "begin", "finish") else whole(name)

    monkeypatch.setattr(scripts, "source", source)
    return Ledger(ledger.client, ledger.keys)


@pytest.mark.parametrize("what", [*ORDINARY, "asked for with all there is", "asked for by name"])
def test_an_ordinary_run_goes_the_short_way(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    story, keys = STORIES[what]
    now = only_short(ledger, monkeypatch)
    story(now, job(now, **keys))
    assert now.history("nightly")


def test_an_ordinary_item_goes_the_short_way(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = batch(ledger)
    assert end(only_short(ledger, monkeypatch), place, 0).ending is Ending.ENDED


def test_runs_of_one_call_get_their_places_in_order_whatever_way_they_go(ledger: Ledger) -> None:
    held, free = job(ledger, "held", key="shared"), job(ledger, "free")
    unlimited = job(ledger, "unlimited", overlap="allow")
    calls = [
        *(sent(free, 0), sent(held, 0)),
        *(sent(unlimited, 0), sent(held, 1), sent(free, 1), sent(unlimited, 1)),
    ]
    assert [admission.placement for admission in ledger.admit(calls)] == [
        *(Placement.START, Placement.START),
        *(Placement.START, Placement.SKIP, Placement.SKIP, Placement.START),
    ]
    pushed = ledger.client.lrange("celery", 0, -1)[::-1]
    assert pushed == [f"message of {calls[n].run_id}" for n in (0, 1, 2, 5)]
