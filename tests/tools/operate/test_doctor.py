"""`supervisor doctor` and `supervisor health` on a real server: what they say, how they exit."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import Result
from kombu import Queue

from supervisor.app import supervise
from supervisor.catalog.entries import Entries
from supervisor.catalog.load import load
from supervisor.cli.common import Context
from supervisor.cli.diagnosis import deployment_of
from supervisor.deploy.embedded import EmbeddedServer, free_port
from supervisor.errors import UNAVAILABLE
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.presence import BeatProcess, Broker, Registration, WorkerProcess
from supervisor.operate.deployment import setup_of
from supervisor.operate.doctor import examine, examine_app
from supervisor.settings import Settings
from tests.commands import supervisor_at
from tests.jobs import job, job_has
from tests.presence import beat_is_there, beat_says, worker_is_there
from tests.waiting import wait_until


def doctor(url: str, *words: str) -> Result:
    return supervisor_at(url)("doctor", *words)


def said(url: str) -> list[dict[str, Any]]:
    findings: list[dict[str, Any]] = json.loads(doctor(url, "--json").stdout)
    return findings


@pytest.fixture
def healthy(ledger: Ledger) -> Ledger:
    job(ledger)
    worker_is_there(ledger, "w@host")
    for name in ("a", "b"):
        beat_is_there(ledger, name, leads=name == "a")
    now = round(datetime.now(UTC).timestamp() * 1000)
    beat_says(ledger, leader="a", last_tick=now)
    return ledger


def test_why_celery_makes_each_message_is_a_note(healthy: Ledger, redis_url: str) -> None:
    [spec, *_] = healthy.scheduled().values()
    job_has(healthy, spec.name, apart="a router of task_routes is code")
    [finding] = said(redis_url)
    assert (finding["check"], finding["wrong"]) == ("messages", False)
    assert f"each run of {spec.name}: a router of task_routes is code" in finding["what"]


def test_a_message_that_cannot_be_made_is_wrong(healthy: Ledger, redis_url: str) -> None:
    [spec, *_] = healthy.scheduled().values()
    job_has(healthy, spec.name, apart="it cannot be made: f() takes 1 argument but 2 were given")
    [finding] = said(redis_url)
    assert (finding["check"], finding["wrong"]) == ("messages", True)
    assert f"of {spec.name}: f() takes 1 argument but 2 were given" in finding["what"]


def test_doctor_finds_nothing_wrong_in_a_healthy_deployment(
    healthy: Ledger, redis_url: str
) -> None:
    result = doctor(redis_url)
    assert (result.exit_code, result.output) == (0, "12 checks: 0 wrong, 0 to note\n")
    assert said(redis_url) == []


def test_a_task_that_no_worker_of_its_queue_knows(healthy: Ledger, redis_url: str) -> None:
    worker_is_there(healthy, "old@host", ("old",), ("proj.renamed",))
    job(healthy, name="unknown", task="proj.renamed", every="1m")
    [finding] = said(redis_url)
    assert (finding["check"], finding["wrong"]) == ("tasks", True)
    assert "the queue celery knows a task of job unknown: proj.renamed" in finding["what"]
    worker_is_there(healthy, "new@host", ("celery",), ("proj.nightly", "proj.renamed"))
    assert said(redis_url) == []


def test_an_absent_beat_and_worker_are_findings(ledger: Ledger, redis_url: str) -> None:
    job(ledger)
    result = doctor(redis_url)
    assert result.exit_code == 1
    assert "WRONG  no beat is running" in result.output
    assert "WRONG  no worker consumes the queue celery" in result.output
    assert "do   start one: `celery -A proj beat`" in result.output


def test_notes_are_nothing_wrong(ledger: Ledger, redis_url: str) -> None:
    beat_is_there(ledger, "a", leads=True)
    now = round(datetime.now(UTC).timestamp() * 1000)
    beat_says(ledger, leader="a", last_tick=now)
    result = doctor(redis_url)
    assert (result.exit_code, "only one beat" in result.output) == (0, True)


def test_a_server_that_forgets_is_told_of(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        ledger = Ledger.open(Settings(redis_url=server.url))
        for name, value in (("appendonly", "no"), ("maxmemory-policy", "allkeys-lru")):
            ledger.client.config_set(name, value)
        found = {finding["check"]: finding for finding in said(server.url)}
        assert found["persistence"]["wrong"]
        assert found["eviction"]["wrong"]
        assert "allkeys-lru" in found["eviction"]["what"]
        ledger.client.config_set("save", "3600 1")
        found = {finding["check"]: finding for finding in said(server.url)}
        assert not found["persistence"]["wrong"]
        ledger.client.close()


@pytest.mark.parametrize("appendonly", ["yes", "no"])
def test_a_server_that_cannot_write_to_its_disk_is_told_of(tmp_path: Path, appendonly: str) -> None:
    with EmbeddedServer(tmp_path) as server:
        ledger = Ledger.open(Settings(redis_url=server.url))
        for name, value in (("appendonly", appendonly), ("save", "3600 1")):
            ledger.client.config_set(name, value)
        (tmp_path / "dump.rdb").mkdir()
        ledger.client.execute_command("BGSAVE")
        wait_until(lambda: any("MISCONF" in finding["what"] for finding in said(server.url)))
        with pytest.raises(redis.ResponseError, match="MISCONF"):
            ledger.client.set("key", "value", px=1_000)
        code, text = health(server.url, "beat")  # a restart would not help
        assert (code, "Redis refuses writes: MISCONF" in text) == (0, True)
        ledger.client.close()


def test_a_snapshot_that_failed_is_nothing_to_a_server_that_makes_none(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        ledger = Ledger.open(Settings(redis_url=server.url))
        for name, value in (("appendonly", "no"), ("save", "")):
            ledger.client.config_set(name, value)
        (tmp_path / "dump.rdb").mkdir()
        ledger.client.execute_command("BGSAVE")
        wait_until(lambda: ledger.client.info("persistence")["rdb_last_bgsave_status"] == "err")
        assert ledger.client.set("key", "value", px=1_000)
        assert not any("MISCONF" in finding["what"] for finding in said(server.url))
        ledger.client.close()


def test_a_primary_that_has_become_a_replica_is_told_of(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        ledger = Ledger.open(Settings(redis_url=server.url))
        ledger.client.execute_command("REPLICAOF", "127.0.0.1", "1")
        [found] = [finding for finding in said(server.url) if finding["check"] == "refusal"]
        assert (found["wrong"], "read only replica" in found["what"]) == (True, True)
        ledger.client.close()


def test_a_queue_that_is_drained_is_a_note(healthy: Ledger, redis_url: str) -> None:
    healthy.drains.drain("celery")
    [finding] = said(redis_url)
    assert (finding["check"], finding["wrong"]) == ("queues", False)
    assert "the queue celery has been drained for " in finding["what"]
    healthy.drains.undrain("celery")
    assert said(redis_url) == []


def test_findings_come_from_what_the_ledger_has(healthy: Ledger, redis_url: str) -> None:
    job(healthy, name="slow", serial=True)
    rejected = {"last_reload_successful": 0, "problems": '["jobs.yaml:1: no"]'}
    beat_says(healthy, **rejected)
    checks = sorted(finding["check"] for finding in said(redis_url) if finding["wrong"])
    assert checks == ["queues", "schedule files"]


@pytest.mark.parametrize("has_jobs", [True, False])
def test_after_a_first_broken_file_nothing_stays_in_force(
    ledger: Ledger, redis_url: str, has_jobs: bool
) -> None:
    if has_jobs:
        job(ledger)
    rejected = {"last_reload_successful": 0, "problems": '["jobs.yaml:1: no"]'}
    beat_says(ledger, **rejected)
    [found] = [finding for finding in said(redis_url) if finding["check"] == "schedule files"]
    assert ("stay in force" in found["why"]) is has_jobs
    assert ("nothing is loaded yet" in found["why"]) is not has_jobs


def says_of_its_clock(ledger: Ledger, name: str, seconds: float) -> None:
    """What the process called `name` says of itself, on a machine whose clock is so far off."""
    for key in ledger.client.scan_iter(ledger.keys.presence("*")):
        said = json.loads(ledger.client.get(key))
        if said["process"]["name"] == name:
            ledger.client.set(key, json.dumps({**said, "clock_offset": seconds}), keepttl=True)


def test_a_worker_and_a_beat_whose_clocks_are_off_are_told_of(
    healthy: Ledger, redis_url: str
) -> None:
    says_of_its_clock(healthy, "w@host", 30)
    says_of_its_clock(healthy, "b", -2.5)
    assert [finding["what"] for finding in said(redis_url)] == [
        "the clock of b is 2.5s behind that of Redis",
        "the clock of w@host is 30.0s ahead of that of Redis",
    ]


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    made = supervise(Celery("proj", broker=redis_url))
    yield made
    made.close()


def test_the_app_shows_what_it_overrides_and_leaves_unguarded(ledger: Ledger, app: Celery) -> None:
    spec = JobSpec(name="nightly", task="proj.late", every=timedelta(hours=1))
    specs = {"nightly": spec, "at-start": JobSpec(name="at-start", task="t")}
    load(ledger, Entries(app, ledger), specs, "digest", ledger.now())
    setup = setup_of(app, ledger)
    assert (setup.overridden, setup.unguarded) == ((), ())


def test_without_the_ledger_the_app_and_its_broker_are_checked(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = f"redis://127.0.0.1:{free_port()}/0"
    app = supervise(Celery("proj", broker=redis_url), redis_url=away)
    app.conf.worker_prefetch_multiplier = 8
    monkeypatch.setattr("tests.tools.operate.test_doctor.known", app, raising=False)
    named = "tests.tools.operate.test_doctor:known"
    result = supervisor_at(away)("doctor", "--json", app=named)
    assert result.exit_code == UNAVAILABLE
    assert result.stderr.startswith("Error: the ledger is unavailable")
    checks = {finding["check"] for finding in json.loads(result.stdout) if finding["wrong"]}
    assert checks == {"settings"}
    app.conf.broker_url = away
    result = supervisor_at(away)("doctor", app=named)
    assert "WRONG  the broker cannot be reached: " in result.stdout
    assert "6 checks: 2 wrong, 0 to note" in result.stdout
    app.close()


def test_of_an_app_without_supervise_only_that_is_said(healthy: Ledger, redis_url: str) -> None:
    with Celery("plain", broker="amqp://127.0.0.1:1//", set_as_current=False) as plain:
        plain.conf.worker_prefetch_multiplier = 8
        deployment = deployment_of(Context(redis_url, "plain", plain))
    assert [finding.what for finding in examine(deployment)] == [
        "this app was not given to supervise()"
    ]


def test_settings_that_the_app_overrides(ledger: Ledger, app: Celery) -> None:
    app.conf.worker_prefetch_multiplier = 8
    [found] = setup_of(app, ledger).overridden
    assert (found.setting, found.value, found.needed) == ("worker_prefetch_multiplier", 8, 1)


def test_a_queue_that_the_app_refuses_is_named(ledger: Ledger, app: Celery) -> None:
    app.conf.update(task_create_missing_queues=False, task_queues=[Queue("celery")])
    job(ledger, "mistyped", queue="celary")
    job(ledger, "in-turn", serial=True)
    setup = setup_of(app, ledger)
    assert len(setup.unfit) == 2
    [finding] = [each for each in examine_app(setup) if each.check == "unfit"]
    assert "job mistyped: no queue for its messages: the app has no queue 'celary'" in finding.what
    assert "the app has no queue 'serial.in-turn'" in finding.what


def test_the_beat_that_leads_is_judged_and_not_the_setting(ledger: Ledger, app: Celery) -> None:
    """It may be started with `-S supervisor`, whatever `beat_scheduler` says."""
    app.conf.beat_scheduler = "django_celery_beat.schedulers:DatabaseScheduler"
    [found] = setup_of(app, ledger).overridden
    assert found.setting == "beat_scheduler"
    leader = ledger.leader("leader", "schedule")
    assert leader.poll().leads
    leader.poll(last_turn_at=ledger.now())
    assert setup_of(app, ledger).overridden == ()


# `supervisor health`, as probes ask


HOST = socket.gethostname()


@pytest.fixture
def registration(ledger: Ledger) -> Registration:
    return Registration(ledger, Broker("celery", is_ledger=True))


def health(url: str, *words: str) -> tuple[int, str]:
    result = supervisor_at(url)("health", *words)
    return result.exit_code, result.output


def test_a_beat_that_stands_by_is_fine(registration: Registration, redis_url: str) -> None:
    assert health(redis_url, "beat") == (1, f"no beat on {HOST} has reported\n")
    registration.say(BeatProcess(f"{HOST}:1", leads=False))
    assert health(redis_url, "beat") == (0, "fine\n")
    registration.leave()
    assert health(redis_url, "beat")[0] == 1


def test_a_worker_that_consumes_nothing_is_not_fine(
    registration: Registration, redis_url: str
) -> None:
    name = f"default@{HOST}"
    assert health(redis_url, "worker", "--name", "default@%h")[0] == 1
    registration.say(WorkerProcess(name, ("celery",), 2, "digest"), ["a"])
    assert health(redis_url, "worker", "--name", "default@%h") == (0, "fine\n")
    assert health(redis_url, "worker", "--name", "default") == (0, "fine\n")
    assert health(redis_url, "worker", "--name", "other@%h")[0] == 1
    registration.say(WorkerProcess(name, (), 2, "digest"), ["a"])
    expected = (1, f"worker {name} consumes no queue\n")
    assert health(redis_url, "worker", "--name", "default@%h") == expected


def test_a_worker_that_waits_for_its_broker_is_fine(
    registration: Registration, redis_url: str
) -> None:
    process = WorkerProcess(f"default@{HOST}", (), 2, "digest")
    registration.say(process, ["a"], is_waiting=True)
    assert health(redis_url, "worker", "--name", "default") == (0, "fine\n")
    registration.say(process, ["a"], fault="its main loop has not turned for 65s")
    code, said = health(redis_url, "worker", "--name", "default")
    assert (code, "does no work: its main loop has not turned" in said) == (1, True)


def test_no_process_is_blamed_when_the_ledger_is_away() -> None:
    code, said = health("redis://127.0.0.1:1/0", "beat")
    assert (code, said.startswith("unknown: the ledger is unavailable")) == (0, True)


@pytest.mark.parametrize(("status", "code"), [(200, 0), (500, 1)])
def test_a_server_answers_for_itself(redis_url: str, status: int, code: int) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.handle_request, daemon=True).start()
        assert health(redis_url, "serve", "--port", str(server.server_port))[0] == code
    assert health(redis_url, "serve", "--port", str(server.server_port))[0] == 1


def test_a_worker_needs_its_name(redis_url: str) -> None:
    assert health(redis_url, "worker")[0] == 2
    assert health(redis_url, "beat", "--name", "x")[0] == 2
