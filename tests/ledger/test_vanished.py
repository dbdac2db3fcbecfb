"""Lost messages are found whatever else lies in their queue, and whatever queue is stuck."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from supervisor.app import supervise
from supervisor.beat import vanished
from supervisor.beat.vanished import LIKELIEST, PATIENCE_WITH_QUEUE, VanishedMessages
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.presence import Attendance, Broker, WorkerFacts
from supervisor.ledger.replies import ms_of
from supervisor.sending.publisher import Publisher
from supervisor.sending.queues import AppQueues
from tests.ledger.jobs import begin, job, run_id, ticks

MINUTE = timedelta(minutes=1)


class Broken:
    """What was sent, and what became of it; time passes when it is told to."""

    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self.app, self.ledger = app, ledger
        self.now = ledger.now()
        self.vanished = VanishedMessages(app, ledger)
        self.publisher = Publisher(app, ledger)

    def send(self, name: str, count: int = 1, **keys: Any) -> list[str]:
        """So many runs of a job whose queue has its name."""
        keys = {"queue": name, "overlap": "allow", "start_deadline": "9h", **keys}
        spec = job(self.ledger, name, **keys)
        admitted = self.ledger.admit(ticks(spec, *range(count)))
        self.publisher.publish(self.ledger.outbox())
        return [admission.run_id for admission in admitted]

    def lose(self, queue: str) -> None:
        self.ledger.client.delete(queue)

    def fill(self, queue: str, count: int) -> None:
        """Messages of tasks that nobody supervises."""
        for _ in range(count):
            self.app.send_task("other", queue=queue)

    def hire(self, *queues: str) -> None:
        there = Attendance(self.ledger.client, self.ledger.keys, Broker("celery", True))
        there.say(WorkerFacts("worker", queues, 4, "digest"), ["t"])

    def after(self, time: timedelta) -> list[str]:
        """What is published again once that time has passed; it is sent, and as if then."""
        self.now += time
        lost = self.vanished.to_resend(self.now)
        self.publisher.publish(lost)
        for run in lost:
            self.ledger.client.zadd(self.ledger.keys.sent, {run: ms_of(self.now)})
        return lost


@pytest.fixture
def broken(ledger: Ledger, redis_url: str) -> Iterator[Broken]:
    app = supervise(Celery("broken", broker=redis_url))
    yield Broken(app, ledger)
    app.close()


def test_a_run_whose_message_is_in_its_queue_is_left_alone(broken: Broken) -> None:
    broken.send("mail", 3)
    assert broken.after(MINUTE) == []


def test_what_is_missing_from_its_queue_is_published_again(broken: Broken) -> None:
    lost = broken.send("mail", 3)
    broken.lose("mail")
    assert broken.after(timedelta(seconds=1)) == []
    assert broken.after(timedelta(seconds=2)) == lost
    assert broken.ledger.client.llen("mail") == 3
    # Lost once more: it waits for longer.
    broken.lose("mail")
    assert broken.after(timedelta(seconds=3)) == []
    assert broken.after(timedelta(seconds=2)) == lost


def test_a_worker_that_keeps_messages_for_a_rate_limit_has_lost_none(broken: Broken) -> None:
    @broken.app.task(name="proj.nightly", rate_limit="1/m", shared=False)
    def nightly() -> None: ...

    runs = broken.send("mail", 2 * LIKELIEST)
    broken.hire("mail")
    broken.lose("mail")
    assert broken.after(MINUTE) == []
    assert broken.after(PATIENCE_WITH_QUEUE) == runs[:LIKELIEST]
    broken.lose("mail")
    assert broken.after(timedelta(seconds=1)) == runs[LIKELIEST:]
    broken.lose("mail")
    assert broken.after(PATIENCE_WITH_QUEUE) == []


def test_of_several_priorities_the_one_with_a_loss_is_published_again(
    broken: Broken,
) -> None:
    broken.send("patient", 3, queue="mail", priority=9)
    broken.send("plain", 2, queue="mail")
    [urgent] = broken.send("urgent", queue="mail", priority=3)
    assert broken.after(MINUTE) == []
    assert broken.ledger.client.rpop("mail\x06\x163")  # taken by a worker that was killed
    assert broken.after(timedelta(seconds=1)) == [urgent]
    assert broken.after(MINUTE) == []


def test_what_begins_while_the_broker_is_asked_is_not_lost(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker takes the message first, and begins its run while beat counts the others."""
    [first, second] = broken.send("mail", 2)
    broken.ledger.client.rpop("mail")
    lengths = AppQueues.by_priority

    def begin_meanwhile(queues: AppQueues, names: list[str]) -> dict[str, dict[int, int]]:
        found = lengths(queues, names)
        begin(broken.ledger, first)
        return found

    monkeypatch.setattr(AppQueues, "by_priority", begin_meanwhile)
    assert broken.after(MINUTE) == []
    assert broken.ledger.run(second).sends == 1


def test_messages_of_others_in_a_queue_hide_a_lost_one_not_for_long(broken: Broken) -> None:
    [lost] = broken.send("mail")
    broken.lose("mail")
    broken.fill("mail", 5)
    broken.hire("mail")
    assert broken.after(MINUTE) == []
    assert broken.after(PATIENCE_WITH_QUEUE) == [lost]
    assert broken.ledger.client.llen("mail") == 6
    # In doubt, each time after twice as long.
    assert broken.after(PATIENCE_WITH_QUEUE + MINUTE / 2) == []
    assert broken.after(MINUTE) == [lost]
    assert broken.after(2 * PATIENCE_WITH_QUEUE) == []
    begin(broken.ledger, lost)
    assert broken.after(9 * PATIENCE_WITH_QUEUE) == []


def test_without_a_worker_a_queue_is_not_filled_on_suspicion(broken: Broken) -> None:
    broken.send("mail")
    broken.hire("elsewhere")
    assert broken.after(9 * PATIENCE_WITH_QUEUE) == []
    assert broken.ledger.client.llen("mail") == 1


def test_of_a_long_queue_a_few_at_a_time_are_suspected_the_oldest_first(broken: Broken) -> None:
    runs = broken.send("mail", LIKELIEST + 3)
    broken.hire("mail")
    assert broken.after(2 * PATIENCE_WITH_QUEUE) == sorted(runs)[:LIKELIEST]
    assert broken.after(timedelta(seconds=1)) == sorted(runs)[LIKELIEST:]
    assert broken.after(timedelta(seconds=1)) == []


def test_a_queue_that_nobody_works_does_not_hide_what_others_lose(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vanished, "RUNS_PER_CHECK", 10)
    broken.send("stuck", 25)
    lost = broken.send("mail", 2)
    broken.lose("mail")
    second = timedelta(seconds=1)
    found = [broken.after(3 * second), broken.after(second), broken.after(second)]
    assert found == [[], [], lost]
    # And again from the first on.
    broken.lose("stuck")
    assert len(broken.after(second)) == 10


def test_while_the_broker_is_away_nothing_is_taken_for_lost(ledger: Ledger) -> None:
    app = supervise(Celery("away", broker="redis://127.0.0.1:1/0"))
    broken = Broken(app, ledger)
    spec = job(ledger, "mail")
    ledger.admit(ticks(spec, 0))
    ledger.sent({run_id(spec, 0): "mail"})
    assert broken.after(MINUTE) == []
    app.close()
