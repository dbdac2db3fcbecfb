"""A tick gets its place: queued, waiting, due later, or skipped."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.connection import RedisError
from supervisor.ledger.ledger import RUNS_PER_CALL, Ledger
from supervisor.ledger.replies import Placement, instant, ms_of
from supervisor.ledger.requests import Message, PassedOver, RunRequest, Tick
from tests.ledger.jobs import (
    MIDNIGHT,
    admitted,
    at_work,
    begin,
    begun,
    job,
    lease_runs_out,
    lock_is_free,
    pause,
    run_id,
    ticks,
)
from tests.waiting import wait_until


def test_the_first_tick_is_queued_with_the_lock(ledger: Ledger) -> None:
    spec = job(ledger, start_deadline="90s")
    [admission] = ledger.admit(ticks(spec, 0))
    assert admission.placement is Placement.START
    assert ledger.outbox() == [run_id(spec, 0)]
    assert 89_000 < ledger.client.pttl(ledger.keys.lock(spec.lock)) <= 90_000


@pytest.mark.parametrize("overlap", ["skip", "allow"])
def test_a_tick_is_admitted_once_also_when_its_run_was_forgotten(
    ledger: Ledger, overlap: str
) -> None:
    spec = begun(ledger, overlap=overlap)
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    ledger.client.delete(ledger.keys.run(run_id(spec, 0)))
    [again] = ledger.admit(ticks(spec, 0))
    assert again.placement is Placement.DUPLICATE
    assert ledger.outbox() == []


def test_skips_in_a_row_are_those_under_one_key(ledger: Ledger) -> None:
    spec = job(ledger, max_consecutive_skips=2, then="queue_one")

    def trigger(key: str) -> RunState:
        return ledger.trigger(spec, RunRequest(key=key)).state

    assert trigger("slow") is RunState.QUEUED
    assert trigger("slow") is RunState.SKIPPED
    quick = ledger.trigger(spec, RunRequest(key="quick"))
    begin(ledger, quick.id)
    assert trigger("slow") is RunState.SKIPPED
    assert trigger("quick") is RunState.SKIPPED
    assert trigger("slow") is RunState.WAITING, "two were skipped, whatever others of the job did"
    assert trigger("quick") is RunState.SKIPPED


def test_runs_of_one_call_wait_in_the_order_of_the_call(ledger: Ledger) -> None:
    spec = job(ledger, overlap="queue_all")
    names = [f"{spec.name}@{letter}" for letter in "dcab"]
    ledger.admit_requests(spec, [RunRequest(name) for name in names])
    assert ledger.client.zrange(ledger.keys.waiting(spec.lock), 0, -1) == names[1:]


def test_a_run_says_how_what_blocked_it_was(ledger: Ledger) -> None:
    held, beside = job(ledger), job(ledger, "beside")
    ledger.client.set(ledger.keys.lock(beside.lock), "a stranger's")
    at_work(ledger, held, 0)
    ledger.admit([*ticks(held, 1), *ticks(beside, 1)])
    by_run, by_stranger = (ledger.run(run_id(spec, 1)).blocker for spec in (held, beside))
    assert by_run and by_stranger
    leased_until = ledger.client.zscore(ledger.keys.leases, run_id(held, 0))
    assert (by_run.state, by_run.attempt) == ("running", 1)
    assert by_run.lease_ends_at == instant(leased_until)
    assert (by_stranger.state, by_stranger.attempt) == ("unknown", 0)
    assert by_stranger.lease_ends_at is None


def test_a_requeued_run_is_tried_again_and_skipped_at_its_bound(ledger: Ledger) -> None:
    spec = admitted(ledger, 0, 1, overlap="requeue", requeue_delay="10ms", max_requeues=2)
    second = run_id(spec, 1)
    wait_until(lambda: ledger.rescue() and ledger.run(second).state is RunState.SKIPPED)
    run = ledger.run(second)
    assert (run.reason, run.requeues) == ("requeues_exhausted", 2)
    assert ledger.job(spec.name).counters["requeued"] == 2


def test_a_tick_is_counted_once_also_when_the_watermark_is_set_back(ledger: Ledger) -> None:
    spec = admitted(ledger, 5)
    last = MIDNIGHT + timedelta(seconds=9)
    ledger.pass_over([PassedOver(spec, RunState.MISSED, "window", last, last, 1)])
    ledger.client.hset(ledger.keys.job(spec.name), "watermark", ms_of(MIDNIGHT))
    for again in ledger.admit(ticks(spec, 5, 9)):
        assert again.placement is Placement.DUPLICATE
    counters = ledger.job(spec.name).counters
    assert (counters["ticks"], counters["duplicates"]) == (2, 2)


def test_ticks_of_a_paused_job_are_excluded_in_one_row(ledger: Ledger) -> None:
    spec = job(ledger)
    pause(ledger, spec)
    ledger.admit(ticks(spec, 0, 1, 2))
    [row] = ledger.history(spec.name)
    assert (row.state, row.ticks, row.reason) == (RunState.EXCLUDED, 3, "paused")
    assert row.first_nominal_at == MIDNIGHT
    assert ledger.job(spec.name).counters["excluded:paused"] == 3
    assert lock_is_free(ledger, spec)


def test_a_trigger_runs_also_when_the_job_is_paused(ledger: Ledger) -> None:
    spec = job(ledger)
    pause(ledger, spec)
    run = ledger.trigger(spec, RunRequest(kwargs={"day": "2026-03-01"}))
    assert run.state is RunState.QUEUED
    assert run.kwargs == {"day": "2026-03-01"}
    assert ledger.job(spec.name).counters == {"triggered": 1}
    assert ledger.outbox() == [run.id]


def test_missed_ticks_are_counted_and_never_admitted_later(ledger: Ledger) -> None:
    spec = job(ledger)
    last = MIDNIGHT + timedelta(seconds=99)
    missed = PassedOver(spec, RunState.MISSED, "window", MIDNIGHT, last, 100)
    assert ledger.pass_over([missed, missed]) == ["passed", "duplicate"]
    counters = ledger.job(spec.name).counters
    assert (counters["missed:window"], counters["ticks"]) == (100, 100)
    assert ledger.admit(ticks(spec, 50))[0].placement is Placement.DUPLICATE


def test_history_keeps_the_newest_runs_and_those_that_are_open(ledger: Ledger) -> None:
    spec = job(ledger)
    ledger.admit(ticks(spec, *range(300)))
    rows = ledger.history(spec.name, 1000)
    assert len(rows) == 201
    assert rows[-1].id == run_id(spec, 0)
    assert not ledger.client.exists(ledger.keys.run(run_id(spec, 1)))


def test_a_tick_that_the_server_refuses_keeps_no_other_from_its_place(ledger: Ledger) -> None:
    broken, sound = job(ledger, "broken"), job(ledger, "sound")
    ledger.client.set(ledger.keys.open("broken"), "not a set")
    refused, placed = ledger.admit([*ticks(broken, 0), *ticks(sound, 0)])
    assert refused.placement is Placement.FAILED
    assert "WRONGTYPE" in str(refused.reason)
    assert placed.placement is Placement.START
    ledger.client.delete(ledger.keys.open("broken"))
    assert ledger.admit(ticks(broken, 0))[0].placement is Placement.START, "still due"


def test_a_tick_beside_a_broken_record_stays_due(ledger: Ledger) -> None:
    spec = admitted(ledger, 0)
    before = ledger.job(spec.name)
    holder = ledger.keys.run(run_id(spec, 0))
    rules = ledger.client.hget(holder, "rules")
    lease_runs_out(ledger, spec, run_id(spec, 0))
    ledger.client.hset(holder, "rules", "{")
    for _ in range(2):
        assert ledger.admit(ticks(spec, 1))[0].placement is Placement.FAILED
    after = ledger.job(spec.name)
    assert after.counters["ticks"] == before.counters["ticks"]
    assert ledger.client.smembers(ledger.keys.open(spec.name)) == {run_id(spec, 0)}
    ledger.client.hset(holder, "rules", str(rules))
    assert ledger.admit(ticks(spec, 1))[0].placement is not Placement.FAILED


def test_a_request_that_the_server_refuses_raises(ledger: Ledger) -> None:
    spec = job(ledger)
    ledger.client.set(ledger.keys.open(spec.name), "not a set")
    with pytest.raises(RedisError, match="WRONGTYPE"):
        ledger.trigger(spec)


def test_a_server_that_forgets_the_functions_is_told_again(ledger: Ledger) -> None:
    specs = [job(ledger, f"job-{number}") for number in range(500)]

    def on_the_way() -> Iterator[Tick]:
        for number, spec in enumerate(specs):
            if number % 120 == 60:
                ledger.client.function_flush()
            yield from ticks(spec, 0)

    admissions = ledger.admit(on_the_way())
    assert [a.job for a in admissions] == [spec.name for spec in specs]
    assert {a.placement for a in admissions} == {Placement.START}


def test_admission_that_is_broken_off_leaves_no_reply_behind(ledger: Ledger) -> None:
    specs = [job(ledger, f"job-{number}") for number in range(500)]

    def ends_early() -> Iterator[Tick]:
        for spec in specs[:300]:
            yield from ticks(spec, 0)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        ledger.admit(ends_early())
    assert [a.job for a in ledger.admit(ticks(specs[-1], 0))] == [specs[-1].name]
    assert ledger.client.get("nothing") is None


def test_ticks_keep_their_order_on_a_server_that_forgot_the_functions(ledger: Ledger) -> None:
    spec = job(ledger, overlap="queue_all", max_waiting=1000)
    seconds = range(6 * RUNS_PER_CALL)
    ledger.client.function_flush()
    placed = [admission.placement for admission in ledger.admit(ticks(spec, *seconds))]
    assert placed == [Placement.START, *[Placement.WAIT] * (len(seconds) - 1)]


def test_runs_of_one_call_get_their_places_in_order(ledger: Ledger) -> None:
    held, free = job(ledger, "held", key="shared"), job(ledger, "free")
    unlimited = job(ledger, "unlimited", overlap="allow")
    asked = [(free, 0), (held, 0), (unlimited, 0), (held, 1), (free, 1), (unlimited, 1)]
    calls = [sent(spec, second) for spec, second in asked]
    assert [admission.placement for admission in ledger.admit(calls)] == [
        *(Placement.START, Placement.START),
        *(Placement.START, Placement.SKIP, Placement.SKIP, Placement.START),
    ]
    pushed = ledger.client.lrange("celery", 0, -1)[::-1]
    assert pushed == [f"message of {calls[n].run_id}" for n in (0, 1, 2, 5)]


def sent(spec: JobSpec, second: int) -> Tick:
    [tick] = ticks(spec, second)
    return tick.sent_as(Message("celery", "celery", f"message of {tick.run_id}"))


def test_jobs_of_one_task_and_of_several_are_admitted_in_one_call(ledger: Ledger) -> None:
    steps = [{"task": "proj.first", "priority": 1}]
    several = job(ledger, "several", task=None, steps=steps, params={"day": 1})
    alone = job(ledger, "alone")
    both = [*ticks(alone, 0), *ticks(several, 0), *ticks(alone, 1)]
    assert [a.placement for a in ledger.admit(both)] == [
        *(Placement.START, Placement.START, Placement.SKIP)
    ]
    assert ledger.steps.params(run_id(several, 0)) == {"day": "1"}
    assert ledger.run(run_id(alone, 1)).blocked_by == run_id(alone, 0)


def test_open_runs_at_the_head_of_a_history_do_not_keep_those_behind_them(ledger: Ledger) -> None:
    spec = job(ledger, history=10, overlap="allow")
    for _ in range(30):
        ledger.admit_request(spec, RunRequest(delay=timedelta(days=1)))
    for second in range(300):
        at_work(ledger, spec, second)
        ledger.finish(run_id(spec, second), "token", RunState.SUCCEEDED)
    assert len(ledger.history(spec.name, 1000)) < 100


def test_the_ticks_of_a_job_are_placed_by_one_call(ledger: Ledger) -> None:
    """Were they parted, the later ones would move the watermark past those of a refused call."""
    specs = [job(ledger, name) for name in ("a", "b", "c")]
    calls = calls_of_functions(ledger)
    ledger.admit([tick for spec in specs for tick in ticks(spec, *range(70))])
    assert calls_of_functions(ledger) - calls == 3
    ledger.admit_requests(specs[0], [RunRequest()] * 120)
    assert calls_of_functions(ledger) - calls == 3 + 3


def calls_of_functions(ledger: Ledger) -> int:
    found = ledger.client.info("commandstats")
    return sum(found.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "fcall"))
