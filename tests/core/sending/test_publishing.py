"""Messages: those that cannot be sent, that nobody takes, and that are lost."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from datetime import timedelta
from threading import Thread
from typing import Any

import pytest
from celery import Celery, Task
from celery.app.trace import build_tracer
from celery.worker import state
from celery.worker.request import Request
from kombu import Exchange, Queue

from supervisor.app import supervise
from supervisor.beat import sweeper as sweeping
from supervisor.beat import vanished_messages
from supervisor.beat.scheduler import SupervisedScheduler
from supervisor.beat.sweeper import Sweeper
from supervisor.beat.vanished_messages import GRACE_WITH_QUEUE, LIKELIEST, VanishedMessages
from supervisor.guard.delivery import HEADER, RETRIES
from supervisor.job.run import RunState
from supervisor.ledger.attempt import LeaseState, Refusal, Refused
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.presence import Broker, Registration, WorkerProcess
from supervisor.ledger.run_request import RunRequest
from supervisor.process import process_name
from supervisor.sending.publisher import Publisher
from supervisor.sending.queues import AppQueues
from supervisor.settings import Settings
from supervisor.testing import lease_runs_out
from supervisor.times import ms_of
from supervisor.worker.request import guarded_request
from supervisor.worker.task import put_under_guard
from tests.damage import lose, lose_field, stray, tear
from tests.jobs import admitted, begin, job, renew, run_id, ticks
from tests.proxy import Proxy
from tests.queues import take_all, taken
from tests.waiting import scaled, wait_until

#: The time-outs of a call, of connecting and of what a new connection says first.
TIMEOUT = 15


def app_at(broker_url: str, redis_url: str, **conf: Any) -> Celery:
    app = Celery("proj", broker=broker_url, set_as_current=False)
    supervise(app, redis_url=redis_url)
    app.conf.update(conf)
    return app


def queued(ledger: Ledger, second: int) -> str:
    spec = job(ledger, overlap="allow")
    ledger.admit(ticks(spec, second))
    return run_id(spec, second)


@pytest.mark.parametrize("was_connected", [True, False])
def test_a_broker_that_hangs_holds_nobody_up_for_ever(
    ledger: Ledger, redis_url: str, way: Proxy, was_connected: bool
) -> None:
    publisher = Publisher(app_at(way.url, redis_url), ledger)
    if was_connected:
        assert publisher.publish([queued(ledger, 0)]) == 1
    way.freeze()
    run, requested_at = queued(ledger, 1), time.monotonic()
    assert publisher.publish([run]) == 0
    assert time.monotonic() - requested_at < scaled(TIMEOUT)
    assert ledger.run(run).state is RunState.QUEUED
    assert run in ledger.outbox()
    way.thaw()
    assert publisher.publish([run]) == 1


def test_a_broker_that_refuses_us_is_not_a_fault_of_beat(ledger: Ledger, redis_url: str) -> None:
    """Where its address is the ledger's, its connection is asked for the queues beside that."""
    refused = redis_url.replace("redis://", "redis://:no-password-of-ours@")
    run, publisher = queued(ledger, 0), Publisher(app_at(refused, redis_url), ledger)
    assert (publisher.send_queued([]), publisher.send_queued([run])) == (0, 0)
    assert run in ledger.outbox()


def test_an_unreadable_run_does_not_stand_in_the_way(ledger: Ledger, redis_url: str) -> None:
    unreadable, other = queued(ledger, 0), queued(ledger, 1)
    tear(ledger, unreadable, attempts="no JSON")
    publisher = Publisher(app_at(redis_url, redis_url), ledger)
    assert publisher.publish([unreadable, other]) == 1
    assert ledger.outbox() == []  # it is tried again in a minute
    lose_field(ledger, ledger.keys.run(unreadable), "attempts")
    assert publisher.publish([unreadable]) == 1


def test_a_broker_that_is_gone_holds_nobody_up_for_ever(ledger: Ledger, redis_url: str) -> None:
    publisher = Publisher(app_at("redis://127.0.0.1:1/0", redis_url), ledger)
    run, requested_at = queued(ledger, 0), time.monotonic()
    assert publisher.publish([run]) == 0
    assert time.monotonic() - requested_at < scaled(TIMEOUT)
    assert run in ledger.outbox()
    assert publisher.publish([run]) == 0
    obstacle = ledger.run(run).obstacle
    assert obstacle and (obstacle.by, obstacle.times) == (process_name(), 2)
    assert "its message was not sent: " in obstacle.text
    assert "onnection refused" in obstacle.text


def test_a_run_is_not_given_up_for_results_that_cannot_be_listened_for(
    ledger: Ledger, redis_url: str
) -> None:
    app = app_at(
        redis_url,
        redis_url,
        result_backend="redis://127.0.0.1:1/0",
        result_backend_transport_options={"retry_policy": {"max_retries": 0}},
    )
    run = queued(ledger, 0)
    assert Publisher(app, ledger).publish([run]) == 0
    assert ledger.run(run).state is RunState.QUEUED
    assert run in ledger.outbox()


@pytest.mark.filterwarnings("ignore:task_always_eager has no effect")
def test_a_run_is_sent_also_where_calls_are_eager(ledger: Ledger, redis_url: str) -> None:
    app = app_at(redis_url, redis_url, task_always_eager=True)
    called: list[int] = []

    @app.task(name="reports.load", shared=False)
    def load() -> None:
        called.append(1)

    spec = job(ledger, task="reports.load")
    ledger.admit(ticks(spec, 0))
    assert Publisher(app, ledger).publish([run_id(spec, 0)]) == 1
    assert called == []
    messages = [json.loads(text) for text in ledger.client.lrange("celery", 0, -1)]
    assert [each["headers"]["id"] for each in messages] == [run_id(spec, 0)]


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_message_older_than_its_tasks_expires_ends_only_a_queued_run(
    ledger: Ledger, redis_url: str, has_begun: bool
) -> None:
    app = app_at(redis_url, redis_url)

    @app.task(name="reports.load", expires=0.001, shared=False)
    def load() -> None: ...

    spec = job(ledger, task="reports.load")
    ledger.admit(ticks(spec, 0))
    run = run_id(spec, 0)
    assert Publisher(app, ledger).publish([run]) == 1
    if has_begun:  # by another copy of the message
        begin(ledger, run)
    with app.connection_for_read() as connection, connection.SimpleQueue("celery") as queue:
        request = guarded_request(Request)(
            queue.get(timeout=scaled(5)), app=app, task=load, hostname="worker"
        )
        wait_until(request.revoked)
    rescued = ledger.run(run)
    if has_begun:
        assert (rescued.state, renew(ledger, run)) == (RunState.RUNNING, LeaseState.RENEWED)
    else:
        assert (rescued.state, rescued.reason) == (RunState.EXPIRED, "expires passed")
    assert run not in state.revoked


def count_stock(hall: str, seconds: int = 3) -> None: ...


def test_a_run_whose_message_cannot_be_made_fails(ledger: Ledger, redis_url: str) -> None:
    app = app_at(redis_url, redis_url)
    app.task(name="proj.nightly", shared=False)(count_stock)
    notify = [{"url": "https://hook", "events": ["failed"]}]
    spec = job(ledger, kwargs={"second": 3}, notify=notify, max_retries=3, overlap="queue_all")
    ledger.admit(ticks(spec, 0, 1))
    assert Publisher(app, ledger).publish([run_id(spec, 0)]) == 0
    run, counts = ledger.run(run_id(spec, 0)), ledger.client.hgetall(ledger.keys.job(spec.name))
    assert (run.state, run.attempt, run.id in ledger.outbox()) == (RunState.FAILED, 0, False)
    assert run.reason is not None
    assert run.reason.startswith("cannot be published: count_stock() got an unexpected keyword")
    assert (counts["n:finished:failed"], counts["last_outcome"]) == ("1", "failed")
    assert "last_failure" in counts
    assert ledger.client.llen(ledger.keys.events) == 1  # of which people are notified
    assert (
        ledger.run(run_id(spec, 1)).state is RunState.QUEUED
    )  # its turn, now that the lock is free


def test_a_step_whose_message_cannot_be_made_fails_its_run(ledger: Ledger, redis_url: str) -> None:
    steps = [{"task": "proj.nightly", "priority": 1, "queue": "a"}]
    app = app_at(redis_url, redis_url, task_queues=[Queue("b")], task_create_missing_queues=False)
    spec = job(ledger, task=None, steps=steps)
    ledger.admit(ticks(spec, 0))
    Publisher(app, ledger).publish(ledger.outbox())
    run = ledger.run(run_id(spec, 0))
    assert (run.state, "cannot be published" in str(run.reason)) == (RunState.FAILED, True)


def test_a_run_whose_task_sends_nothing_is_not_taken_for_sent(
    ledger: Ledger, redis_url: str
) -> None:
    """As of classes for unique tasks, whose lock outlives a killed worker."""
    app, is_locked = app_at(redis_url, redis_url), [True]

    class Unique(Task):  # type: ignore[type-arg]
        def apply_async(self, *args: Any, **options: Any) -> Any:
            return None if is_locked[0] else super().apply_async(*args, **options)

    app.task(name="proj.nightly", base=Unique, shared=False)(count_nothing)
    run, publisher = queued(ledger, 0), Publisher(app, ledger)
    assert publisher.publish([run]) == 0
    found = ledger.run(run)
    assert (found.state, found.sends, ledger.outbox()) == (RunState.QUEUED, 0, [])
    assert ledger.client.zscore(ledger.keys.outbox, run) > ms_of(ledger.now())
    is_locked[0] = False
    assert publisher.publish([run]) == 1


def test_a_task_whose_own_code_finds_its_server_gone_does_not_stand_in_the_way(
    ledger: Ledger, redis_url: str
) -> None:
    """As a class of tasks that asks a tenants' service before it sends."""
    app = app_at(redis_url, redis_url)

    class Asking(Task):  # type: ignore[type-arg]
        def apply_async(self, *args: Any, **options: Any) -> Any:
            raise ConnectionRefusedError("tenants.test")

    app.task(name="proj.asking", base=Asking, shared=False)(count_nothing)
    asking = job(ledger, "asking", task="proj.asking")
    ledger.admit(ticks(asking, 0))
    wait_until(lambda: ledger.now() > ledger.run(run_id(asking, 0)).queued_at)
    run, publisher = queued(ledger, 1), Publisher(app, ledger)
    assert ledger.outbox() == [run_id(asking, 0), run]
    publisher.publish(ledger.outbox())
    assert (ledger.run(run).sends, ledger.outbox()) == (0, [run, run_id(asking, 0)])
    publisher.publish(ledger.outbox())
    assert (ledger.run(run).sends, ledger.outbox()) == (1, [run_id(asking, 0)])


def count_nothing() -> None: ...


def test_a_run_that_another_process_could_publish_is_not_given_up(ledger: Ledger) -> None:
    run = run_id(admitted(ledger, 0), 0)
    begin(ledger, run)
    ledger.give_up(run, "cannot be published")
    assert renew(ledger, run) is LeaseState.RENEWED
    assert ledger.run(run).state is RunState.RUNNING


@pytest.mark.parametrize(
    ("route", "queue"),
    [
        ({"priority": 5}, "celery"),
        ({"routing_key": "anything"}, "celery"),
        ({"queue": "mail"}, "mail"),
        ({"exchange": "news", "routing_key": "sport"}, "sport"),
    ],
)
def test_a_run_is_known_to_be_in_the_queue_that_a_route_leads_to(
    ledger: Ledger, redis_url: str, route: dict[str, Any], queue: str
) -> None:
    app = app_at(redis_url, redis_url, task_routes={"proj.nightly": route})
    news = Exchange("news")
    app.conf.task_queues = [Queue("celery"), Queue("mail")] + [
        Queue(key, news, routing_key=key) for key in ("politics", "sport")
    ]
    with app.connection_for_write() as connection:  # as a worker does
        for each in app.amqp.queues.values():
            each(connection.default_channel).declare()
    run = queued(ledger, 0)
    assert Publisher(app, ledger).publish([run]) == 1
    assert ledger.run(run).queue == queue
    assert AppQueues(app).lengths([queue]) == {queue: 1}


def test_a_message_of_before_a_retry_begins_no_attempt_after_it(
    ledger: Ledger, redis_url: str
) -> None:
    """Sent twice, say; the retry gave the run other arguments."""
    app = app_at(redis_url, redis_url)
    bodies: list[int] = []

    @app.task(name="proj.nightly", bind=True, shared=False)
    def nightly(self: Any, number: int = 1) -> None:
        bodies.append(number)
        if number == 1:
            raise self.retry(args=[2], countdown=0)

    put_under_guard(app.tasks["proj.nightly"])
    run, publisher = queued(ledger, 0), Publisher(app, ledger)

    def delivered() -> dict[str, Any]:
        publisher.publish([run])
        message: dict[str, Any] = taken(ledger.client)
        return message

    def work_off(message: dict[str, Any]) -> None:
        args, kwargs, _ = json.loads(b64decode(message["body"]))
        request = {**message["headers"], "headers": message["headers"]}
        build_tracer("proj.nightly", nightly, app=app)(run, args, kwargs, request)

    first = delivered()
    work_off(first)
    wait_until(ledger.rescue)
    second = delivered()
    work_off(first)
    work_off(second)
    assert bodies == [1, 2]
    assert ledger.run(run).duplicates == 1


def test_a_run_that_two_processes_publish_begins_once(
    ledger: Ledger, redis_url: str, way: Proxy
) -> None:
    """A worker waits for its broker's answer for longer than beat leaves the run to it."""
    worker = Publisher(app_at(way.url, redis_url), ledger)
    worker.publish([queued(ledger, 0)])
    spec = admitted(ledger, 0, 1, name="handed-over", overlap="queue_one")
    begin(ledger, run_id(spec, 0))
    [run] = ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED).to_publish
    take_all(ledger.client)
    way.hold_replies()
    publishing = Thread(target=worker.publish, args=[[run]])
    publishing.start()
    wait_until(lambda: run in ledger.outbox())
    assert Publisher(app_at(redis_url, redis_url), ledger).publish([run]) == 1
    publishing.join(scaled(TIMEOUT))
    headers = [json.loads(text)["headers"] for text in ledger.client.lrange("celery", 0, -1)]
    assert [header["id"] for header in headers] == [run, run]
    begin(ledger, run, "first")
    retries = headers[1][HEADER][RETRIES]
    second = ledger.begin(run, "second", "worker", "celery", retries)
    assert second == Refused(run, Refusal.DUPLICATE, "running")
    assert second.reason == "already_running"
    ledger.retry(run, "first", timedelta())
    wait_until(ledger.rescue)
    late = ledger.begin(run, "third", "worker", "celery", retries)
    assert late == Refused(run, Refusal.DUPLICATE, "queued")
    assert late.reason == "earlier_attempt"


# Messages of runs that ended before they began do not pile up in a queue without workers


@pytest.fixture
def sweeper(app: Celery, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Sweeper:
    """It has time, also on a busy machine."""
    monkeypatch.setattr(sweeping, "SWEEPING_SECONDS", 60.0)
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


def test_a_queue_is_looked_at_as_long_as_messages_at_its_ends_are_of_ended_runs(
    app: Celery, ledger: Ledger, sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "MESSAGES_READ", 100)
    runs = sent(app, ledger, 650)
    for run in (*runs[:250], runs[500], runs[-1]):
        ledger.cancel(run, "not wanted")
    assert sweeper.sweep() == 251
    assert set(in_queue(ledger)) == {*runs[250:-1]}
    assert ledger.leftovers() == []


def test_a_sweep_that_takes_long_goes_on_in_a_later_turn(
    app: Celery, ledger: Ledger, sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "MESSAGES_READ", 100)
    monkeypatch.setattr(sweeping, "SWEEPING_SECONDS", 0.0)
    runs = sent(app, ledger, 300)
    for run in runs:
        ledger.cancel(run, "not wanted")
    assert [sweeper.sweep(), sweeper.sweep()] == [200, 100]
    assert in_queue(ledger) == []


def test_a_run_that_is_to_be_run_again_keeps_its_message(
    app: Celery, ledger: Ledger, sweeper: Sweeper
) -> None:
    run, other = sent(app, ledger, 2)
    ledger.cancel(other, "not wanted")
    assert sweeper.sweep() == 1
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


def test_runs_that_expire_without_a_worker_leave_nothing(app: Celery, ledger: Ledger) -> None:
    beat = SupervisedScheduler(app, lazy=True)
    spec = job(ledger, start_deadline="1s")
    run = ledger.trigger(spec).id
    wait_until(lambda: beat.tick() >= 0 and in_queue(ledger) == [run])
    wait_until(lambda: beat.tick() >= 0 and ledger.run(run).state is RunState.EXPIRED)
    wait_until(lambda: beat.tick() >= 0 and in_queue(ledger) == [], 30)
    beat.close()


# Lost messages are found whatever else lies in their queue, and whatever queue is stuck


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
        take_all(self.ledger.client, queue)

    def fill(self, queue: str, count: int) -> None:
        """Messages of tasks that nobody supervises."""
        for _ in range(count):
            self.app.send_task("other", queue=queue)

    def hire(self, *queues: str) -> None:
        there = Registration(self.ledger, Broker("celery", True))
        there.say(WorkerProcess("worker", queues, 4, "digest"), ["t"])

    def after(self, time: timedelta) -> list[str]:
        """What is published again once that time has passed; it is sent, and as if then."""
        self.now += time
        lost = self.vanished.to_resend(self.now)
        self.publisher.publish(lost)
        for run in lost:
            stray(self.ledger, self.ledger.keys.sent, **{run: ms_of(self.now)})
        return lost


@pytest.fixture
def broken(ledger: Ledger, app: Celery, monkeypatch: pytest.MonkeyPatch) -> Broken:
    monkeypatch.setattr(vanished_messages, "CHECK_INTERVAL", timedelta())
    return Broken(app, ledger)


def test_a_run_whose_message_is_in_its_queue_is_left_alone(broken: Broken) -> None:
    broken.send("mail", 3)
    assert broken.after(MINUTE) == []


def test_what_is_lost_after_a_clock_was_set_back_is_published_again(broken: Broken) -> None:
    kept = broken.send("mail")
    assert broken.after(60 * MINUTE) == []
    broken.now -= 60 * MINUTE
    broken.lose("mail")
    assert broken.after(timedelta(seconds=3)) == kept


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


def test_a_run_whose_record_lost_its_queue_is_published_again(broken: Broken) -> None:
    [lost] = broken.send("mail")
    broken.send("news")
    broken.lose("mail")
    lose_field(broken.ledger, broken.ledger.keys.run(lost), "queue")
    assert broken.after(timedelta(seconds=3)) == [lost]
    assert broken.ledger.run(lost).queue == "mail"
    assert broken.after(timedelta(seconds=3)) == []


def test_a_queued_run_that_no_deadline_would_end_expires_with_its_lock(broken: Broken) -> None:
    """The ledger has lost the index of deadlines, and no worker is there to take the run."""
    ledger = broken.ledger
    [run] = broken.send("mail")
    lose(ledger, ledger.keys.leases)
    broken.after(2 * GRACE_WITH_QUEUE)
    ledger.rescue()
    assert ledger.run(run).state is RunState.QUEUED  # it has time left
    lease_runs_out(ledger, run)
    lose(ledger, ledger.keys.leases)
    ledger.rescue()
    assert ledger.run(run).state is RunState.QUEUED
    broken.after(timedelta(seconds=1))
    ledger.rescue()
    assert ledger.run(run).state is RunState.EXPIRED


def test_a_worker_that_keeps_messages_for_a_rate_limit_has_lost_none(broken: Broken) -> None:
    @broken.app.task(name="proj.nightly", rate_limit="1/m", shared=False)
    def nightly() -> None: ...

    runs = broken.send("mail", 2 * LIKELIEST)
    broken.hire("mail")
    broken.lose("mail")
    assert broken.after(MINUTE) == []
    assert broken.after(GRACE_WITH_QUEUE) == runs[:LIKELIEST]
    broken.lose("mail")
    assert broken.after(timedelta(seconds=1)) == runs[LIKELIEST:]
    broken.lose("mail")
    assert broken.after(GRACE_WITH_QUEUE) == []


def test_what_begins_while_the_broker_is_asked_is_not_lost(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker takes the message first, and begins its run while beat counts the others."""
    [first, second] = broken.send("mail", 2)
    taken(broken.ledger.client, "mail")
    lengths = AppQueues.lengths

    def begin_meanwhile(queues: AppQueues, names: list[str]) -> dict[str, int]:
        found = lengths(queues, names)
        begin(broken.ledger, first)
        return found

    monkeypatch.setattr(AppQueues, "lengths", begin_meanwhile)
    assert broken.after(MINUTE) == []
    assert broken.ledger.run(second).sends == 1


def test_messages_of_others_in_a_queue_hide_a_lost_one_not_for_long(broken: Broken) -> None:
    [lost] = broken.send("mail")
    broken.lose("mail")
    broken.fill("mail", 5)
    broken.hire("mail")
    assert broken.after(MINUTE) == []
    assert broken.after(GRACE_WITH_QUEUE) == [lost]
    assert broken.ledger.client.llen("mail") == 6
    # In doubt, each time after twice as long.
    assert broken.after(GRACE_WITH_QUEUE + MINUTE / 2) == []
    assert broken.after(MINUTE) == [lost]
    assert broken.after(2 * GRACE_WITH_QUEUE) == []
    begin(broken.ledger, lost)
    assert broken.after(9 * GRACE_WITH_QUEUE) == []


def test_without_a_worker_a_queue_is_not_filled_on_suspicion(broken: Broken) -> None:
    broken.send("mail")
    broken.hire("elsewhere")
    assert broken.after(9 * GRACE_WITH_QUEUE) == []
    assert broken.ledger.client.llen("mail") == 1


def test_of_a_long_queue_a_few_at_a_time_are_suspected_the_oldest_first(broken: Broken) -> None:
    runs = broken.send("mail", LIKELIEST + 3)
    broken.hire("mail")
    assert broken.after(2 * GRACE_WITH_QUEUE) == sorted(runs)[:LIKELIEST]
    assert broken.after(timedelta(seconds=1)) == sorted(runs)[LIKELIEST:]
    assert broken.after(timedelta(seconds=1)) == []


def test_a_queue_that_nobody_works_does_not_hide_what_others_lose(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vanished_messages, "RUNS_PER_CHECK", 10)
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
