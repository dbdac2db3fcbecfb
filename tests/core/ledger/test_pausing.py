"""Pauses of jobs and drains of queues: what becomes of their ticks and runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

import pytest
from celery import Celery

from supervisor.catalog.entries import Entries
from supervisor.catalog.load import load
from supervisor.errors import NOT_FOUND
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.admission import Placement
from supervisor.ledger.attempt import Refusal, Refused
from supervisor.ledger.ledger import Ledger
from supervisor.operate.control import backfill, missed_in_pause
from supervisor.schedule.ticks import Tick
from supervisor.sending.publisher import Publisher
from supervisor.testing import lease_runs_out
from supervisor.times import optional_instant
from tests.commands import Supervisor
from tests.damage import lose_lock, stray
from tests.jobs import MIDNIGHT, begin, job, pause, run_id, states, ticks
from tests.waiting import wait_until


def test_a_pause_with_an_end_excludes_the_ticks_before_it_only(ledger: Ledger) -> None:
    spec = job(ledger)
    pause(ledger, spec, until=MIDNIGHT + timedelta(seconds=2))
    ledger.admit(ticks(spec, 0, 1))
    assert states(ledger, spec) == ["excluded"]
    [row] = ledger.history(spec.name)
    assert (row.ticks, row.nominal_at) == (2, MIDNIGHT + timedelta(seconds=1))
    assert ledger.admit(ticks(spec, 2))[0].placement is Placement.START


def test_a_pause_ends_by_itself(ledger: Ledger) -> None:
    spec = job(ledger)
    ledger.pause(spec.name, "soon over", ledger.now() + timedelta(hours=1))
    assert ledger.job(spec.name).paused
    ledger.pause(spec.name, "soon over", ledger.now() + timedelta(milliseconds=500))
    wait_until(lambda: ledger.rescue() == () and not ledger.job(spec.name).paused)
    assert ledger.job(spec.name).paused_note is None
    mark = ledger.marks([spec.name])[spec.name]
    assert mark.pause and mark.pause.end == optional_instant(
        ledger.client.hget(ledger.keys.job(spec.name), "pause_to")
    )
    [admission] = ledger.admit([Tick(spec, mark.pause.start)])
    assert admission.placement is Placement.EXCLUDED


def test_resuming_tells_since_when_and_forgets_the_note(ledger: Ledger) -> None:
    spec = job(ledger)
    before = ledger.now()
    ledger.pause(spec.name, "first")
    ledger.pause(spec.name, "second thoughts", ledger.now() + timedelta(days=1))
    since = ledger.resume(spec.name)
    assert since is not None
    assert before <= since <= ledger.now()
    assert ledger.resume(spec.name) is None
    assert ledger.job(spec.name).paused_note is None
    assert ledger.client.zcard(ledger.keys.pauses) == 0


def test_the_time_of_a_pause_runs_only_when_asked_and_as_catchup_says(ledger: Ledger) -> None:
    spec = job(ledger, every="1h", catchup="latest", catchup_window="1d")
    now = MIDNIGHT + timedelta(hours=5, minutes=30)
    assert missed_in_pause(spec, MIDNIGHT, now) == [MIDNIGHT + timedelta(hours=5)]
    every_one = job(ledger, "other", every="1h", catchup="all", catchup_window="1d")
    assert len(missed_in_pause(every_one, MIDNIGHT, now)) == 5
    [admission] = backfill(ledger, spec, missed_in_pause(spec, MIDNIGHT, now), overlap=None)
    assert ledger.run(admission.run_id).nominal_at == MIDNIGHT + timedelta(hours=5)
    assert ledger.job(spec.name).counters == {"triggered": 1}


def test_a_backfill_runs_one_after_the_other_however_many(ledger: Ledger) -> None:
    spec = job(ledger, max_waiting=3)
    times = [MIDNIGHT + timedelta(hours=hour) for hour in range(200)]
    backfill(ledger, spec, times)
    again = backfill(ledger, spec, times[:1])
    record = ledger.job(spec.name)
    assert record.waiting == 200
    assert record.counters == {"triggered": 201}
    assert again[0].run_id.startswith(run_id(spec, 0))


def test_a_backfill_waits_however_long_the_job_itself_would(ledger: Ledger) -> None:
    spec = job(ledger, max_wait="1ms")
    backfill(ledger, spec, [MIDNIGHT, MIDNIGHT + timedelta(hours=1)])
    until = ledger.now() + timedelta(milliseconds=5)
    wait_until(lambda: ledger.now() > until)
    ledger.rescue()
    assert ledger.job(spec.name).waiting == 1


# A drained queue: nothing begins, nothing is lost, nothing expires


def sent(ledger: Ledger, spec: JobSpec, queue: str = "mail") -> str:
    """A run whose message is in the queue."""
    run_id = ledger.trigger(spec).id
    ledger.sent({run_id: queue})
    return run_id


def refusal(ledger: Ledger, run_id: str, token: str = "token", queue: str = "mail") -> Refusal:
    answer = ledger.begin(run_id, token, "worker", queue)
    assert isinstance(answer, Refused)
    return answer.refusal


def test_what_a_drained_queue_refused_is_sent_when_it_goes_on(ledger: Ledger) -> None:
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
    for queue, run in (("mail", mail), ("reports", reports)):
        ledger.drains.drain(queue)
        assert refusal(ledger, run, queue=queue) is Refusal.DRAINED
    stray(ledger, ledger.keys.sent, "nightly@forgotten")
    ledger.drains.undrain("mail")
    assert ledger.outbox() == [mail]


def test_other_queues_than_a_drained_one_go_on(ledger: Ledger) -> None:
    run_id = sent(ledger, job(ledger), "celery")
    ledger.drains.drain("mail")
    begin(ledger, run_id)


def test_a_run_of_a_drained_queue_expires_only_after_it_goes_on(ledger: Ledger) -> None:
    refused, untaken = job(ledger, "refused"), job(ledger, "untaken")
    run_ids = [sent(ledger, refused), sent(ledger, untaken)]

    def rescued_past_the_deadline() -> set[str]:
        for run in run_ids:
            lease_runs_out(ledger, run)
        return {rescue.kind for rescue in ledger.rescue()}

    ledger.drains.drain("mail")
    assert refusal(ledger, run_ids[0]) is Refusal.DRAINED
    for _ in range(2):  # as often as the deadline passes
        assert rescued_past_the_deadline() == {"prolonged"}
    assert [ledger.run(run_id).state for run_id in run_ids] == [RunState.QUEUED] * 2
    ledger.drains.undrain("mail")
    assert rescued_past_the_deadline() == {"expired"}


def test_the_deadline_begins_anew_when_the_queue_goes_on(ledger: Ledger) -> None:
    run_id = sent(ledger, job(ledger, start_deadline="10s"))
    ledger.drains.drain("mail")
    lock = ledger.keys.lock("nightly")
    until, before = ledger.client.pexpiretime(lock), ledger.now()
    wait_until(lambda: ledger.now() - before > timedelta(milliseconds=3))
    ledger.drains.undrain("mail")
    assert ledger.client.pexpiretime(lock) > until
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
    lose_lock(ledger, spec)
    later = ledger.trigger(spec)
    assert (later.state, later.blocked_by) == (RunState.SKIPPED, run_id)
    assert ledger.run(run_id).state is RunState.QUEUED


def test_items_of_a_batch_and_steps_are_held_back_too(ledger: Ledger) -> None:
    step = {"name": "load", "priority": 1, "task": "proj.load", "foreach": "files", "queue": "mail"}
    spec = job(ledger, task=None, steps=[step], params={"files": [1, 2]})
    run_id = ledger.trigger(spec).id
    items = ledger.steps.expand(f"{run_id}~load", [1, 2])
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
    assert "mail has been drained since" in ask("jobs")[1]
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
    assert "its queue, mail, has been drained since" in text
    assert "supervisor undrain mail" in text
    assert json.loads(ask("why", run_id, "--json")[1])
