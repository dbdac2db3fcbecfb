"""A drained queue: nothing begins, nothing is lost, nothing expires."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from celery import Celery

from supervisor.beat.entries import Entries
from supervisor.beat.load import load
from supervisor.errors import NOT_FOUND
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Refusal, Refused
from supervisor.sending.publisher import Publisher
from tests.ledger.commands import Supervisor
from tests.ledger.jobs import begin, job, lease_runs_out


def sent(ledger: Ledger, spec: JobSpec, queue: str = "mail") -> str:
    """A run whose message is in the queue."""
    run_id = ledger.trigger(spec).id
    ledger.sent({run_id: queue})
    return run_id


def refusal(ledger: Ledger, run_id: str, token: str = "token", queue: str = "mail") -> Refusal:
    answer = ledger.begin(run_id, token, "worker", queue)
    assert isinstance(answer, Refused)
    return answer.refusal


def test_what_a_drained_queue_refused_is_sent_when_it_goes_on(
    ledger: Ledger,
) -> None:
    run_id = sent(ledger, job(ledger))
    since = ledger.drains.drain("mail")
    assert refusal(ledger, run_id) is Refusal.DRAINED
    assert refusal(ledger, run_id, "another worker's") is Refusal.DRAINED
    assert ledger.run(run_id).state is RunState.QUEUED
    assert ledger.outbox() == []
    assert ledger.drains.undrain("mail") == since
    assert ledger.outbox() == [run_id]
    begin(ledger, run_id)


def test_a_queue_that_goes_on_leaves_another_drained(ledger: Ledger) -> None:
    mail = sent(ledger, job(ledger))
    reports = sent(ledger, job(ledger, "reports"), "reports")
    for queue, run_id in (("mail", mail), ("reports", reports)):
        ledger.drains.drain(queue)
        assert refusal(ledger, run_id, queue=queue) is Refusal.DRAINED
    ledger.client.zadd(ledger.keys.sent, {"nightly@forgotten": 1})
    ledger.drains.undrain("mail")
    assert ledger.outbox() == [mail]


def test_other_queues_go_on(ledger: Ledger) -> None:
    run_id = sent(ledger, job(ledger), "celery")
    ledger.drains.drain("mail")
    begin(ledger, run_id)


def test_a_run_of_a_drained_queue_expires_only_after_it_goes_on(
    ledger: Ledger,
) -> None:
    specs = refused, untaken = job(ledger, "refused"), job(ledger, "untaken")
    run_ids = [sent(ledger, refused), sent(ledger, untaken)]

    def rescued_past_the_deadline() -> set[str]:
        for spec, run in zip(specs, run_ids, strict=True):
            lease_runs_out(ledger, spec, run)
        return {rescue.kind for rescue in ledger.rescue()}

    ledger.drains.drain("mail")
    assert refusal(ledger, run_ids[0]) is Refusal.DRAINED
    for _ in range(2):  # as often as the deadline passes
        assert rescued_past_the_deadline() == {"held"}
    assert [ledger.run(run_id).state for run_id in run_ids] == [RunState.QUEUED] * 2
    ledger.drains.undrain("mail")
    assert rescued_past_the_deadline() == {"expired"}


def test_the_deadline_begins_anew_when_the_queue_goes_on(ledger: Ledger) -> None:
    run_id = sent(ledger, job(ledger, start_deadline="10s"))
    ledger.drains.drain("mail")
    lock = ledger.keys.lock("nightly")
    ledger.client.pexpire(lock, 2_000)
    ledger.drains.undrain("mail")
    assert ledger.client.pttl(lock) > 9_000
    assert ledger.client.get(lock) == f"queued:{run_id}"


def test_a_run_that_is_held_back_goes_to_the_queue_that_its_job_has_now(
    ledger: Ledger, app: Celery, entries: Entries
) -> None:
    spec = job(ledger, queue="mail")
    run_id = sent(ledger, spec)
    ledger.drains.drain("mail")
    assert refusal(ledger, run_id) is Refusal.DRAINED
    moved = spec.model_copy(update={"queue": "post"})
    load(ledger, entries, {spec.name: moved}, "digest", ledger.now())
    assert ledger.outbox() == [run_id]
    assert Publisher(app, ledger).publish([run_id]) == 1
    assert ledger.client.llen("post") == 1


def test_a_tick_meets_the_run_that_is_held_back_by_its_overlap_policy(ledger: Ledger) -> None:
    spec = job(ledger)
    run_id = sent(ledger, spec)
    ledger.drains.drain("mail")
    ledger.client.delete(ledger.keys.lock(spec.lock))
    later = ledger.trigger(spec)
    assert (later.state, later.blocked_by) == (RunState.SKIPPED, run_id)
    assert ledger.run(run_id).state is RunState.QUEUED


def test_items_of_a_batch_and_steps_are_held_back_too(ledger: Ledger) -> None:
    step = {"name": "load", "priority": 1, "task": "proj.load", "foreach": "files", "queue": "mail"}
    spec = job(ledger, task=None, steps=[step], params={"files": [1, 2]})
    run_id = ledger.trigger(spec).id
    items = ledger.steps.expand(f"{run_id}/load", [1, 2])
    ledger.sent(dict.fromkeys(items, "mail"))
    ledger.drains.drain("mail")
    assert [refusal(ledger, item) for item in items] == [Refusal.DRAINED] * 2
    ledger.drains.undrain("mail")
    assert sorted(ledger.outbox()) == sorted(items)


def test_draining_twice_is_draining_once_and_so_is_going_on(ledger: Ledger) -> None:
    since = ledger.drains.drain("mail")
    assert ledger.drains.drain("mail") == since
    assert ledger.drains.since() == {"mail": since}
    assert ledger.drains.undrain("mail") == since
    assert ledger.drains.undrain("mail") is None
    assert ledger.drains.since() == {}


Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def ask(supervisor: Supervisor) -> Ask:
    def call(*words: str) -> tuple[int, str]:
        done = supervisor(*words)
        return done.exit_code, done.output

    return call


def test_drain_says_what_is_at_work_and_waits_for_it(ledger: Ledger, ask: Ask) -> None:
    run_id = sent(ledger, job(ledger, queue="mail"))
    ledger.begin(run_id, "token", "worker", "mail")
    code, text = ask("drain", "mail")
    assert code == 0
    assert f"1 still running: {run_id}" in text
    assert ask("drain", "mail", "--wait", "0s")[0] == 1
    ledger.finish(run_id, "token", RunState.SUCCEEDED)
    code, text = ask("drain", "mail", "--wait", "5s")
    assert (code, "no run of mail is running" in text) == (0, True)
    assert "mail is drained since" in ask("jobs")[1]
    assert "runs start from mail again" in ask("undrain", "mail")[1]
    assert "drained" not in ask("jobs")[1]


def test_an_unknown_queue_is_drained_only_by_force(ledger: Ledger, ask: Ask) -> None:
    job(ledger, queue="mail")
    code, text = ask("drain", "mial")
    assert (code, "did you mean 'mail'?" in text) == (NOT_FOUND, True)
    assert ask("undrain", "mial")[0] == NOT_FOUND
    assert ledger.drains.since() == {}
    assert ask("drain", "mial", "--force")[0] == 0
    assert ask("undrain", "mial")[0] == 0
    assert ask("drain", "mail")[0] == 0


def test_why_names_the_drained_queue(ledger: Ledger, ask: Ask) -> None:
    run_id = sent(ledger, job(ledger, queue="mail"))
    ledger.drains.drain("mail")
    text = ask("why", run_id)[1]
    assert "its queue, mail, is drained since" in text
    assert "supervisor undrain mail" in text
    assert json.loads(ask("why", run_id, "--json")[1])
