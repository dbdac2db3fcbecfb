"""RabbitMQ brings the messages; the ledger, the guard and RedBeat's schedule stay on Redis.

Twice: with messages that are acknowledged early, Celery's default, and late, as our page advises.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from signal import SIGCONT, SIGSTOP

import kombu
import pytest
from celery import Celery

from supervisor.app import supervise
from supervisor.deploy.embedded import EmbeddedServer
from supervisor.features.audit.step import compare_records
from supervisor.job.run import Run
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.run_request import RunRequest
from supervisor.sending.publisher import Publisher
from supervisor.sending.sender import KEPT_LONGER_MS
from supervisor.settings import Settings
from tests import jobs
from tests.acceptance.project import Project, Sign, overlapping
from tests.conftest import database, emptied
from tests.rabbitmq.broker import RabbitMQ, rabbitmq
from tests.waiting import wait_until

SCHEDULE = """
defaults: {lease_ttl: 3s}
jobs:
  often: {task: team.work, every: 1s, overlap: queue_all}
  in-turn: {task: team.work, every: 1s, args: [0.4], serial: turns, overlap: queue_all}
  in-turn-too: {task: team.work, every: 1s, args: [0.4], serial: turns, overlap: queue_all}
  many: {task: team.work, every: 24h, args: [3], paused: true, overlap: allow}
  nobodys: {task: team.work, every: 24h, paused: true, overlap: allow, queue: nowhere}
  hangs: {task: team.hang, every: 24h, paused: true}
  long: {task: team.hold, every: 24h, paused: true, queue: long}
"""
FREQUENT = ("often", "in-turn", "in-turn-too")

#: After how many ms RabbitMQ closes the channel of an unacknowledged message, how often it looks.
TIMEOUTS = """
application:set_env(rabbit, consumer_timeout, {}),
application:set_env(rabbit, channel_tick_interval, {}).
"""

LENGTHS = """
from supervisor import logs
from supervisor.sending.queues import AppQueues
logs.configure()
print(json.dumps(AppQueues(team.app).lengths(["nowhere", "missing", "serial.turns"])))
"""


@dataclass
class Deployed:
    broker: RabbitMQ
    project: Project
    acks_late: bool

    workers: list[subprocess.Popen[bytes]]
    """Of the default queue."""

    @property
    def ledger(self) -> Ledger:
        return self.project.ledger

    def trigger(self, job: str, times: int = 1) -> list[Run]:
        ledger = self.ledger
        return [ledger.trigger(ledger.spec(job), RunRequest()) for _ in range(times)]

    def starts(self, run: Run) -> list[Sign]:
        return [sign for sign in self.project.starts(run.job) if sign.run == run.id]

    def have_ended(self, runs: list[Run]) -> bool:
        ledger = self.ledger
        return all(ledger.run(run.id).state == "succeeded" for run in runs)

    def were_sent(self, runs: list[Run]) -> bool:
        ledger = self.ledger
        return all(ledger.run(run.id).sent_at for run in runs)


@pytest.fixture(scope="module", params=[False, True], ids=["acks-early", "acks-late"])
def deployed(
    request: pytest.FixtureRequest, server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployed]:
    url = database(server.url, 12)
    emptied(url)
    with rabbitmq(tmp_path_factory.mktemp("rabbitmq")) as broker:
        project = Project(tmp_path_factory.mktemp("team"), url, broker.url)
        with (project.directory / "team.py").open("a") as team:
            team.write(f"app.conf.task_acks_late = {request.param}\n")
        project.schedule(SCHEDULE)
        try:
            project.beat()
            workers = [project.hire(), project.hire()]
            turns = project.hire(queues="serial.turns", processes=1)
            wait_until(lambda: all(map(project.is_ready, [*workers, turns])), 60)
            project.wait_for_jobs()
            wait_until(lambda: project.ledger.job("in-turn").counters.get("ticks"), 20)
            yield Deployed(broker, project, request.param, workers)
        finally:
            project.stop()


def test_ticks_run_once_and_a_serial_queue_runs_one_at_a_time(deployed: Deployed) -> None:
    project, ledger = deployed.project, deployed.ledger
    since = ledger.now()
    wait_until(lambda: len(project.starts("in-turn-too")) > 3, 30)
    until = ledger.now()
    for job in FREQUENT:
        records = compare_records(ledger, ledger.spec(job), since, until)
        assert (records.missing, records.doubled) == ((), ())
    assert overlapping([*project.witness("in-turn"), *project.witness("in-turn-too")]) == []


def test_more_runs_than_processes_start_once_each(deployed: Deployed) -> None:
    runs = deployed.trigger("many", 8)
    wait_until(lambda: deployed.have_ended(runs), 30)
    assert [len(deployed.starts(run)) for run in runs] == [1] * 8
    # What a busy worker has fetched is not seen in its queue, and sent again.
    assert deployed.ledger.job("many").counters.get("duplicates", 0) == 0 or not deployed.acks_late


def test_lengths_and_findings_are_true(deployed: Deployed) -> None:
    runs = deployed.trigger("nobodys", 3)
    wait_until(lambda: deployed.were_sent(runs))
    lengths = deployed.project.code(LENGTHS)
    assert lengths.keys() == {"nowhere", "missing", "serial.turns"}
    assert (lengths["nowhere"], lengths["missing"]) == (3, 0)
    assert deployed.broker.consumers("serial.turns") == 1
    output = deployed.project.supervisor("doctor").stdout
    wrong = {line for line in output.splitlines() if line.startswith("WRONG")}
    assert wrong == {f"WRONG  no worker consumes the queue {name}" for name in ("nowhere", "long")}
    with kombu.Connection(deployed.broker.url) as connection:
        message = connection.default_channel.basic_get("nowhere")
        connection.default_channel.basic_reject(message.delivery_tag, requeue=True)
    deadline_ms = runs[0].rules.start_deadline_ms
    assert float(message.properties["expiration"]) == deadline_ms + KEPT_LONGER_MS
    why = deployed.project.supervisor("why", "nobodys").stdout
    assert "no worker consumes nowhere" in why


def test_messages_of_higher_numbers_are_taken_first(
    deployed: Deployed, server: EmbeddedServer
) -> None:
    url = database(server.url, 13)
    emptied(url)
    ledger, runs = Ledger.open(Settings(redis_url=url)), {}
    with Celery("ranked", broker=deployed.broker.url, set_as_current=False) as app:
        app.conf.task_queue_max_priority = 9
        publisher = Publisher(supervise(app, redis_url=url), ledger)
        for name, priority in {"plain": None, "patient": 1, "urgent": 9}.items():
            run = ledger.trigger(jobs.job(ledger, name, queue="ranked", priority=priority))
            runs[run.id] = name
            assert publisher.publish([run.id]) == 1
    with kombu.Connection(deployed.broker.url) as connection:
        taken = [connection.default_channel.basic_get("ranked", no_ack=True) for _ in runs]
    assert [runs[message.headers["id"]] for message in taken] == ["urgent", "patient", "plain"]
    ledger.client.close()


def test_messages_that_were_lost_are_sent_again(deployed: Deployed) -> None:
    runs = deployed.trigger("nobodys", 2)
    wait_until(lambda: deployed.were_sent(runs))
    deployed.broker.ctl("purge_queue", "nowhere")
    deployed.project.worker(queues="nowhere")
    wait_until(lambda: deployed.have_ended(runs), 20)
    assert [len(deployed.starts(run)) for run in runs] == [1, 1]


def test_the_run_of_a_killed_worker_starts_again(deployed: Deployed) -> None:
    [run] = deployed.trigger("hangs")
    wait_until(lambda: deployed.starts(run))
    [worker] = [
        worker
        for worker in deployed.workers
        for event in deployed.project.events_of(worker, "run started")
        if event["run"] == run.id
    ]
    worker.kill()
    wait_until(lambda: deployed.have_ended([run]), 20)
    assert len(deployed.starts(run)) == 2
    outcomes = [attempt.outcome for attempt in deployed.ledger.run(run.id).attempts]
    assert outcomes == ["lost", "succeeded"]
    deployed.workers.remove(worker)


def test_a_run_longer_than_the_consumer_timeout_ends_no_worker(deployed: Deployed) -> None:
    project = deployed.project
    deployed.broker.ctl("eval", TIMEOUTS.format(1000, 1000))
    worker = project.worker(queues="long")
    [run] = deployed.trigger("long")
    if deployed.acks_late:
        wait_until(lambda: project.events_of(worker, "delivery dropped"), 30)
    deployed.broker.ctl("eval", TIMEOUTS.format(1_800_000, 60_000))
    project.let_end(run.id)
    wait_until(lambda: deployed.have_ended([run]), 20)
    [next_run] = deployed.trigger("long")
    project.let_end(next_run.id)
    wait_until(lambda: deployed.have_ended([next_run]), 30)
    assert worker.poll() is None
    assert len(deployed.starts(run)) == 1


def test_while_the_broker_is_away_beat_goes_on_and_no_tick_is_lost(deployed: Deployed) -> None:
    ledger = deployed.ledger
    since = ledger.now()
    deployed.broker.ctl("stop_app")
    stopped_at = ledger.now()
    beat_goes_on(deployed)
    wait_until(lambda: (ledger.now() - stopped_at).total_seconds() > 4)
    beat_goes_on(deployed)
    deployed.broker.ctl("start_app")
    all_is_back(deployed, since)


def test_while_the_broker_hangs_beat_goes_on_and_no_tick_is_lost(deployed: Deployed) -> None:
    since = deployed.ledger.now()
    os.kill(deployed.broker.pid, SIGSTOP)
    try:
        # The first of them is overdue, and beat asks for it, after two seconds.
        for _ in range(4):
            beat_goes_on(deployed)
        assert deployed.project.code(LENGTHS) == {}
    finally:
        os.kill(deployed.broker.pid, SIGCONT)
    all_is_back(deployed, since)


def beat_goes_on(deployed: Deployed) -> None:
    ledger = deployed.ledger
    seen = ledger.beat().last_tick_at
    wait_until(lambda: ledger.beat().last_tick_at != seen, 10)


def all_is_back(deployed: Deployed, since: datetime) -> None:
    """New runs end, and what was due meanwhile has one record for each tick."""
    ledger = deployed.ledger
    until = ledger.now()
    runs = deployed.trigger("many")
    wait_until(lambda: deployed.have_ended(runs), 60)
    for job in FREQUENT:
        spec = ledger.spec(job)
        wait_until(lambda spec=spec: not compare_records(ledger, spec, since, until).missing, 20)  # type: ignore[misc]
        assert compare_records(ledger, spec, since, until).doubled == ()
