"""Messages of runs that ended before they began do not pile up in a queue without workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import takewhile

import pytest
from celery import Celery

from supervisor.app import supervise
from supervisor.beat import sweeping
from supervisor.beat.scheduler import SupervisedScheduler
from supervisor.beat.sweeping import Sweeper
from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.requests import RunRequest
from supervisor.sending.publisher import Publisher
from supervisor.settings import Settings
from tests.ledger.jobs import begin, job, ticks
from tests.waiting import wait_until


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    app = supervise(Celery("sweeping", broker=redis_url))
    yield app
    app.close()


@pytest.fixture
def sweeper(app: Celery, ledger: Ledger) -> Sweeper:
    return Sweeper(app, ledger, pause_seconds=0)


def sent(app: Celery, ledger: Ledger, count: int = 1, priority: int = 0) -> list[str]:
    """Ids of so many runs whose messages are in the queue."""
    spec = job(ledger, overlap="allow")
    requests = [RunRequest(options={"priority": priority})] * count
    runs = [admission.run_id for admission in ledger.admit_requests(spec, requests)]
    Publisher(app, ledger).publish(runs)
    return runs


def in_queue(ledger: Ledger) -> list[str]:
    keys = ("celery", "celery\x06\x163", "celery\x06\x166", "celery\x06\x169")
    texts = [text for key in keys for text in ledger.client.lrange(key, 0, -1)]
    return [json.loads(text)["headers"]["id"] for text in texts]


@pytest.mark.parametrize("priority", [0, 9])
def test_only_messages_of_ended_runs_are_removed(
    app: Celery, ledger: Ledger, sweeper: Sweeper, priority: int
) -> None:
    runs = sent(app, ledger, 200, priority)
    other = app.send_task("other", task_id="other").id
    begin(ledger, runs[1])
    ended = [run for number, run in enumerate(runs) if number % 3 == 0]
    for run in ended:
        ledger.cancel(run, "not wanted")
    assert sweeper.sweep() == len(ended)
    assert sorted(in_queue(ledger)) == sorted({*runs, other} - {*ended})
    assert ledger.leftovers() == []
    assert sweeper.sweep() == 0


def test_a_long_queue_is_gone_through_a_part_a_tick(
    app: Celery, ledger: Ledger, sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "MESSAGES_PER_TURN", 100)
    runs = sent(app, ledger, 450)
    ledger.cancel(runs[-1], "not wanted")
    for _ in range(4):
        assert sweeper.sweep() == 0
        assert sweeper.queue
    assert sweeper.sweep() == 1
    sweeper.sweep()
    assert not sweeper.queue
    assert set(in_queue(ledger)) == {*runs[:-1]}


def test_in_the_middle_of_a_long_queue_no_message_is_searched_for(
    app: Celery, ledger: Ledger, sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To remove one there, Redis compares all between it and the nearer end."""
    monkeypatch.setattr(sweeping, "DEEPEST", 100, raising=False)
    runs = sent(app, ledger, 450)
    for run in (runs[0], runs[225], runs[-1]):
        ledger.cancel(run, "not wanted")
    with ledger.client.monitor() as seen:
        assert sweeper.sweep() == 2
        ledger.client.echo("done")
        commands = list(takewhile(lambda c: "done" not in c, (c["command"] for c in seen.listen())))
    assert set(in_queue(ledger)) == {*runs} - {runs[0], runs[-1]}
    assert [c.split()[2] for c in commands if c.startswith("LREM")] == ["-1", "1"]
    assert not sweeper.queue


def test_a_run_that_is_to_be_run_again_keeps_its_message(
    app: Celery, ledger: Ledger, sweeper: Sweeper
) -> None:
    [run] = sent(app, ledger)
    ledger.client.sadd(ledger.keys.leftovers, "celery", "elsewhere")
    assert sweeper.sweep() == 0
    assert in_queue(ledger) == [run]
    assert ledger.leftovers() == []


def test_a_run_of_another_ledger_with_the_same_id_keeps_its_message(
    app: Celery, ledger: Ledger, sweeper: Sweeper, redis_url: str
) -> None:
    """Ids of ticks are made of the job and its time: two deployments on one queue have the same."""
    theirs = supervise(Celery("theirs", broker=redis_url), prefix="theirs")
    other = Ledger.open(Settings(redis_url=redis_url, prefix="theirs"))
    for own, into in ((theirs, other), (app, ledger)):
        [tick] = ticks(job(into), 0)
        into.admit([tick])
        Publisher(own, into).publish([tick.run_id])
    ledger.cancel(tick.run_id, "not wanted")
    assert sweeper.sweep() == 1
    assert in_queue(ledger) == [tick.run_id]
    other.cancel(tick.run_id, "not wanted")
    assert Sweeper(theirs, other).sweep() == 1
    other.close()
    theirs.close()


def test_runs_that_expire_without_a_worker_leave_nothing(redis_url: str, ledger: Ledger) -> None:
    app = supervise(Celery("sweeping", broker=redis_url))
    beat = SupervisedScheduler(app, lazy=True)
    spec = job(ledger, start_deadline="1s")
    run = ledger.trigger(spec).id
    wait_until(lambda: beat.tick() >= 0 and in_queue(ledger) == [run])
    wait_until(lambda: beat.tick() >= 0 and ledger.run(run).state is RunState.EXPIRED)
    wait_until(lambda: beat.tick() >= 0 and in_queue(ledger) == [], 30)
    beat.close()
    app.close()
