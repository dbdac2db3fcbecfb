"""`supervisor why` on a real ledger: what the functions leave behind tells the whole chain."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta

import pytest

from supervisor.job.run import RunState
from supervisor.job.spec import GuardedTaskSpec
from supervisor.ledger.attempt import Refusal, Refused
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.presence import Broker, Registration, WorkerProcess, digest_of
from supervisor.schedule.ticks import PassedOver, Tick
from supervisor.testing import lease_runs_out
from supervisor.times import ms_of
from tests.commands import Supervisor
from tests.jobs import admitted, begin, begun, job, pause, run_id, ticks
from tests.presence import beat_says, worker_is_there
from tests.queues import put
from tests.waiting import clear_of, wait_until


def lead(ledger: Ledger, at: datetime) -> None:
    """A tick of a leading beat, at that time."""
    leader = ledger.leader("leader", "schedule")
    assert leader.poll().leads
    leader.poll(last_turn_at=at)
    leader.resign()


def why(supervisor: Supervisor, *words: str) -> str:
    result = supervisor("why", *words)
    assert result.exit_code == 0, result.output
    return result.stdout


def this_minute(ledger: Ledger) -> datetime:
    return ledger.now().replace(second=0, microsecond=0)


def test_a_skip_names_the_blocker(ledger: Ledger, supervisor: Supervisor) -> None:
    spec = begun(ledger)
    ledger.admit(ticks(spec, 1))
    output = why(supervisor, spec.name, "2026-03-01T00:00:01")
    assert "was skipped: the run of 2026-03-01 00:00 was still running on worker worker, " in output
    shape = json.loads(why(supervisor, run_id(spec, 1), "--json"))
    assert shape["run"]["blocked_by"] == run_id(spec, 0)
    assert shape["sentences"][0] in output
    ledger.finish(run_id(spec, 0), "token", RunState.FAILED, "ValueError: boom")
    assert "the run of 2026-03-01 00:00 failed at" in why(supervisor, run_id(spec, 1))


def test_the_blocker_is_told_as_it_was_and_not_as_it_is(
    ledger: Ledger, supervisor: Supervisor
) -> None:
    spec = admitted(ledger, 0)
    ledger.admit(ticks(spec, 1))
    skipped_at = ledger.now()
    wait_until(lambda: ledger.now() > skipped_at + timedelta(milliseconds=1))
    begin(ledger, run_id(spec, 0))
    assert "came first" in why(supervisor, run_id(spec, 1))


def test_a_dead_worker_is_named_with_the_attempt_that_it_had(
    ledger: Ledger, supervisor: Supervisor
) -> None:
    spec = begun(ledger)
    lease_runs_out(ledger, run_id(spec, 0))
    ledger.rescue()
    output = why(supervisor, run_id(spec, 0))
    assert "has been queued" in output
    assert "it is to start again: lease expired" in output
    begin(ledger, run_id(spec, 0), "second")
    assert "attempt 1 was lost on worker" in why(supervisor, run_id(spec, 0))


def test_a_missed_tick_names_the_time_in_which_no_beat_led(
    ledger: Ledger, supervisor: Supervisor
) -> None:
    spec, now = job(ledger, every="1m"), this_minute(ledger)
    lead(ledger, now - timedelta(minutes=30))
    lead(ledger, now - timedelta(minutes=30) + timedelta(seconds=1))  # no silence
    lead(ledger, now)
    first, last = now - timedelta(minutes=20), now - timedelta(minutes=10)
    ledger.pass_over([PassedOver(spec, RunState.MISSED, "window", first, last, 11)])
    output = why(supervisor, spec.name, (now - timedelta(minutes=15)).isoformat())
    assert "is one of 11 ticks from" in output
    assert "29m59s" in output
    assert len(ledger.client.lrange(ledger.keys.away, 0, -1)) == 1


def test_a_pause_is_told_with_its_note_also_when_it_is_over(
    ledger: Ledger, supervisor: Supervisor
) -> None:
    spec = job(ledger)
    pause(ledger, spec, "stocktaking")
    ledger.admit(ticks(spec, 0, 1))
    assert "the job has been paused since 2026-02-28" in why(supervisor, spec.name)
    ledger.resume(spec.name)
    output = why(supervisor, spec.name, "2026-03-01T00:00:01")
    assert "excluded: the job was paused (stocktaking)" in output
    assert "paused since" not in output


def test_without_a_time_the_job_is_told_as_it_is(ledger: Ledger, supervisor: Supervisor) -> None:
    spec = job(ledger, every="1h", overlap="queue_one")
    output = why(supervisor, spec.name)
    assert "nightly has no runs yet" in output
    assert "no beat has led yet" in output
    assert "the next tick is at" in output
    ledger.admit([*ticks(spec, 0), *ticks(spec, 3600)])
    begin(ledger, run_id(spec, 0))
    output = why(supervisor, spec.name)
    assert "has been running on worker worker since" in output
    assert "for the lock 'nightly': the run of 2026-03-01 00:00 has been running" in output


def test_a_queued_run_knows_who_works_its_queue(ledger: Ledger, supervisor: Supervisor) -> None:
    spec = admitted(ledger, 0, queue="reports")
    assert "no worker consumes reports" in why(supervisor, spec.name)
    worker = Registration(ledger, Broker("celery", False))
    worker.say(WorkerProcess("w1", ("reports",), 4, ""))
    output = why(supervisor, spec.name)
    assert "1 worker with 4 processes in all for reports" in output
    assert f"no worker that consumes reports knows the task {spec.task}" in output
    worker.say(WorkerProcess("w1", ("reports",), 4, digest_of([str(spec.task)])), [str(spec.task)])
    assert "knows the task" not in why(supervisor, spec.name)
    default = admitted(ledger, 0, name="default")
    ledger.sent({run_id(default, 0): "celery"})
    assert "no worker consumes celery" in why(supervisor, "default")


def test_a_queued_run_knows_how_many_messages_wait(ledger: Ledger, supervisor: Supervisor) -> None:
    spec = admitted(ledger, 0, queue="reports")
    worker_is_there(ledger, "w1", ("reports",), (str(spec.task),))
    assert "messages wait" not in why(supervisor, spec.name)
    put(ledger.client, *["another"] * 1_234, queue="reports")
    assert re.search(r"for reports, where 1,23[45] messages wait", why(supervisor, spec.name))


def test_a_step_that_failed_is_named(ledger: Ledger, supervisor: Supervisor) -> None:
    steps = [{"task": "load", "priority": 2}, {"task": "sum", "priority": 1}]
    spec = admitted(ledger, 0, task=None, steps=steps)
    step = f"{run_id(spec, 0)}~load"
    begin(ledger, step)
    assert "step load is running on worker" in why(supervisor, step)
    ledger.finish(step, "token", RunState.FAILED, "ValueError: boom")
    assert "step load failed on worker worker: ValueError: boom" in why(supervisor, step)


def test_a_step_that_is_queued_says_what_it_waits_for(
    ledger: Ledger, supervisor: Supervisor
) -> None:
    steps = [
        {"task": "load", "priority": 3},
        {"task": "mail", "priority": 2, "queue": "mails"},
        {"task": "sum", "priority": 2, "foreach": "parts"},
        {"task": "tell", "priority": 1},
    ]
    spec = admitted(ledger, 0, task=None, steps=steps, params={"parts": [1, 2]})
    run = run_id(spec, 0)
    begin(ledger, f"{run}~load")
    ledger.finish(f"{run}~load", "token", RunState.SUCCEEDED)
    ledger.drains.drain("mails")
    assert ledger.begin(f"{run}~mail", "token", "worker", "mails") == Refused(
        f"{run}~mail", Refusal.DRAINED, "mails"
    )
    ledger.steps.expand(f"{run}~sum", [1, 2])
    output = why(supervisor, spec.name)
    assert "step mail has been queued in mails since" in output
    assert "its queue, mails, has been drained since" in output
    assert "no worker consumes mails" in output
    assert "step sum#0 has been queued" in output or "step sum#1 has been queued" in output
    assert "step tell waits for the end of mail, sum" in output
    worker_is_there(ledger, "w1", queues=("mails",))
    assert "no worker that consumes mails knows the task mail" in why(supervisor, spec.name)


def test_a_step_needs_no_limit_of_another(ledger: Ledger, supervisor: Supervisor) -> None:
    steps = [
        {"task": "load", "priority": 1, "queue": "q1", "time_limit": "60s"},
        {"task": "mail", "priority": 1, "queue": "q2"},
    ]
    spec = admitted(ledger, 0, task=None, steps=steps)
    worker = Registration(ledger, Broker("celery", False))
    worker.say(WorkerProcess("w1", ("q2",), 4, "", "threads"))
    assert "lacks" not in why(supervisor, spec.name)
    worker.say(WorkerProcess("w1", ("q1",), 4, "", "threads"))
    assert "their pool lacks what its job needs: time_limit" in why(supervisor, spec.name)


def test_times_without_a_record_are_told_apart(ledger: Ledger, supervisor: Supervisor) -> None:
    clear_of(3_600, 20)
    spec, now = job(ledger, every="1h", history=1), ledger.now()
    hour = now.replace(minute=0, second=0, microsecond=0)
    assert "has not been emitted yet" in why(supervisor, spec.name, hour.isoformat())
    for hours in (2, 1):
        tick = Tick(spec, hour - timedelta(hours=hours))
        ledger.admit([tick])
        ledger.cancel(tick.run_id, "enough")
    gone = (hour - timedelta(hours=2)).isoformat()
    assert "there is no record of" in why(supervisor, spec.name, gone)
    ahead = (hour + timedelta(hours=1)).isoformat()
    assert "is still to come, in" in why(supervisor, spec.name, ahead)
    odd = (hour + timedelta(seconds=1)).isoformat()
    assert "is not a tick of nightly: its schedule is every 1h" in why(supervisor, spec.name, odd)


def test_a_task_without_schedule_is_asked_by_run(ledger: Ledger, supervisor: Supervisor) -> None:
    spec = GuardedTaskSpec(name="by-hand", task="t")
    ledger.register(spec)
    run = ledger.trigger(ledger.spec(spec.name))
    output = why(supervisor, spec.name)
    assert f"{run.id} has been queued since" in output
    assert "it runs when code or a person asks for it" in output
    assert "no schedule" in why(supervisor, spec.name, "09:05")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("nigthly",), 3, "did you mean 'nightly'?"),
        (("nigthly",), 3, "problems and were not loaded:\nreports.yaml:3: no 'cron'"),
        (("nightly", "soon"), 2, "'soon' is not a time such as 09:05"),
        (("nightly@nothing",), 3, "unknown run"),
        (("other", "nightly@2026-03-01T00:00:00Z"), 2, "is a run of nightly"),
    ],
)
def test_mistakes_are_told(
    ledger: Ledger, supervisor: Supervisor, words: tuple[str, ...], status: int, said: str
) -> None:
    admitted(ledger, 0)
    problems = json.dumps(["reports.yaml:3: no 'cron'"])
    beat_says(ledger, problems=problems, last_tick=ms_of(ledger.now()))
    result = supervisor("why", *words)
    assert (result.exit_code, said in result.output) == (status, True), result.output
