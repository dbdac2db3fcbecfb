"""A tick gets its place: queued, waiting, due later, or skipped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta

import pytest
from celery import Celery
from redis.exceptions import ConnectionError as RedisConnectionError

from supervisor.app import supervise
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.admission import Admission, Placement
from supervisor.ledger.attempt import Refusal, Refused
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.run_request import RunRequest
from supervisor.schedule.ticks import PassedOver, Tick
from supervisor.settings import Settings
from supervisor.store.failures import RedisError
from supervisor.times import ms_of
from tests.damage import dealt_with_until, lose, lose_functions, lose_run, spoil
from tests.jobs import (
    MIDNIGHT,
    admitted,
    at_work,
    begin,
    begun,
    job,
    lock_is_free,
    pause,
    run_id,
    ticks,
    with_messages,
)
from tests.proxy import Proxy
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
    lose_run(ledger, run_id(spec, 0))
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


def test_one_allowed_skip_is_the_first_and_the_last(ledger: Ledger) -> None:
    spec = job(ledger, max_consecutive_skips=1, then="queue_one")
    placements = [each.placement for each in ledger.admit(ticks(spec, 0, 1, 2))]
    assert placements == [Placement.START, Placement.SKIP, Placement.WAIT]


def test_a_lock_that_another_program_set_is_respected(ledger: Ledger) -> None:
    spec = job(ledger)
    ledger.client.set(ledger.keys.lock(spec.lock), "another program", ex=60)
    [skipped] = ledger.admit(ticks(spec, 0))
    assert (skipped.placement, skipped.blocked_by) == (Placement.SKIP, "another program")


def test_runs_of_one_call_wait_in_the_order_of_the_call(ledger: Ledger) -> None:
    spec = job(ledger, overlap="queue_all")
    names = [f"{spec.name}@{letter}" for letter in "dcab"]
    ledger.admit_requests(spec, [RunRequest(name) for name in names])
    assert ledger.client.zrange(ledger.keys.waiting(spec.lock), 0, -1) == names[1:]


def test_a_tick_is_counted_once_also_when_the_watermark_is_set_back(ledger: Ledger) -> None:
    spec = admitted(ledger, 5)
    last = MIDNIGHT + timedelta(seconds=9)
    ledger.pass_over([PassedOver(spec, RunState.MISSED, "window", last, last, 1)])
    dealt_with_until(ledger, spec, MIDNIGHT)
    for again in ledger.admit(ticks(spec, 5, 9)):
        assert again.placement is Placement.DUPLICATE
    counters = ledger.job(spec.name).counters
    assert (counters["ticks"], counters["duplicates"]) == (2, 2)


def test_ticks_missed_for_another_reason_have_a_row_of_their_own(ledger: Ledger) -> None:
    spec = job(ledger)
    for second, reason in enumerate(["window", "window", "catchup"]):
        at = MIDNIGHT + timedelta(seconds=second)
        ledger.pass_over([PassedOver(spec, RunState.MISSED, reason, at, at, 1)])
    rows = [(row.reason, row.ticks) for row in ledger.history(spec.name)]
    assert rows == [("catchup", 1), ("window", 2)]


def test_only_ticks_of_a_pause_have_its_note(ledger: Ledger) -> None:
    spec = job(ledger)
    pause(ledger, spec, "the disk is full")
    missed_at = MIDNIGHT + timedelta(seconds=1)
    ledger.admit(ticks(spec, 0))
    ledger.pass_over([PassedOver(spec, RunState.MISSED, "window", missed_at, missed_at, 1)])
    notes = [(row.state, row.note) for row in ledger.history(spec.name)]
    assert notes == [(RunState.MISSED, None), (RunState.EXCLUDED, "the disk is full")]


def test_a_row_of_missed_ticks_is_kept_from_its_last_one_on(ledger: Ledger) -> None:
    spec = job(ledger)
    ledger.pass_over([PassedOver(spec, RunState.MISSED, "window", MIDNIGHT, MIDNIGHT, 1)])
    [row] = ledger.history(spec.name)
    until = ledger.client.pexpiretime(ledger.keys.run(row.id))
    wait_until(lambda: ms_of(ledger.now()) > ms_of(row.finished_at or MIDNIGHT) + 1)
    next_at = MIDNIGHT + timedelta(seconds=1)
    ledger.pass_over([PassedOver(spec, RunState.MISSED, "window", next_at, next_at, 1)])
    assert ledger.client.pexpiretime(ledger.keys.run(row.id)) > until


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


def test_history_keeps_the_newest_runs_and_those_that_are_open(ledger: Ledger) -> None:
    spec = job(ledger)
    ledger.admit(ticks(spec, *range(300)))
    rows = ledger.history(spec.name, 1000)
    assert len(rows) == 201
    assert rows[-1].id == run_id(spec, 0)
    assert not ledger.client.exists(ledger.keys.run(run_id(spec, 1)))


def test_a_tick_that_the_server_refuses_keeps_no_other_from_its_place(ledger: Ledger) -> None:
    broken, sound = job(ledger, "broken"), job(ledger, "sound")
    spoil(ledger, ledger.keys.open("broken"))
    refused, placed = ledger.admit([*ticks(broken, 0), *ticks(sound, 0)])
    assert refused.placement is Placement.FAILED
    assert "WRONGTYPE" in str(refused.reason)
    assert placed.placement is Placement.START
    lose(ledger, ledger.keys.open("broken"))
    assert ledger.admit(ticks(broken, 0))[0].placement is Placement.START, "still due"


def test_a_request_that_the_server_refuses_raises(ledger: Ledger) -> None:
    spec = job(ledger)
    spoil(ledger, ledger.keys.open(spec.name))
    with pytest.raises(RedisError, match="WRONGTYPE"):
        ledger.trigger(spec)


def test_a_server_that_forgets_the_functions_is_told_again(ledger: Ledger) -> None:
    specs = [job(ledger, f"job-{number}") for number in range(500)]

    def on_the_way() -> Iterator[Tick]:
        for number, spec in enumerate(specs):
            if number % 120 == 60:
                lose_functions(ledger)
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


@pytest.fixture
def app(redis_url: str) -> Celery:
    return supervise(Celery("shop", broker=redis_url, set_as_current=False))


def test_runs_of_one_call_get_their_places_in_order(ledger: Ledger, app: Celery) -> None:
    held, free = job(ledger, "held", key="shared"), job(ledger, "free")
    unlimited = job(ledger, "unlimited", overlap="allow")
    with_messages(ledger, app)
    asked = [(free, 0), (held, 0), (unlimited, 0), (held, 1), (free, 1), (unlimited, 1)]
    all_ticks = [tick for spec, second in asked for tick in ticks(spec, second)]
    assert [each.placement for each in ledger.admit(all_ticks)] == [
        *(Placement.START, Placement.START),
        *(Placement.START, Placement.SKIP, Placement.SKIP, Placement.START),
    ]
    pushed = [json.loads(text) for text in ledger.client.lrange("celery", 0, -1)[::-1]]
    ids = [message["headers"]["id"] for message in pushed]
    assert ids == [all_ticks[n].run_id for n in (0, 1, 2, 5)]
    assert ledger.outbox() == []


def test_a_run_sees_the_lease_of_one_that_started_in_the_same_call(
    ledger: Ledger, app: Celery
) -> None:
    spec = job(ledger)
    with_messages(ledger, app)
    ledger.admit(ticks(spec, 0, 1))
    assert ledger.run(run_id(spec, 1)).blocked_by == run_id(spec, 0)


def test_a_queue_that_refuses_messages_leaves_its_runs_to_the_outbox(
    ledger: Ledger, app: Celery
) -> None:
    broken, sound = job(ledger, "broken", queue="no-list"), job(ledger, "sound")
    with_messages(ledger, app)
    spoil(ledger, "no-list")
    [refused], [taken] = ticks(broken, 0), ticks(sound, 0)
    ledger.admit([refused, taken])
    assert ledger.outbox(10) == [refused.run_id]
    assert ledger.client.zrange(ledger.keys.sent, 0, -1) == [taken.run_id]
    run = ledger.run(refused.run_id)
    assert (run.state, run.queue) == (RunState.QUEUED, None)


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


def test_a_few_old_runs_that_are_open_do_not_keep_ended_ones(ledger: Ledger) -> None:
    spec = job(ledger, history=5, overlap="allow")
    for second in range(3):
        at_work(ledger, spec, second)
    for second in range(3, 43):
        at_work(ledger, spec, second)
        ledger.finish(run_id(spec, second), "token", RunState.SUCCEEDED)
    assert len(ledger.history(spec.name, 1_000)) < 20


def test_the_ticks_of_a_job_are_placed_by_one_call(ledger: Ledger) -> None:
    """Were they parted, the later ones would move the watermark past those of a refused call."""
    specs = [job(ledger, name) for name in ("a", "b", "c")]
    ledger.rescue()  # the server has the functions
    calls = calls_of_functions(ledger)
    ledger.admit([tick for spec in specs for tick in ticks(spec, *range(70))])
    assert calls_of_functions(ledger) - calls == 3
    ledger.admit_requests(specs[0], [RunRequest()] * 120)
    assert calls_of_functions(ledger) - calls == 3 + 3


def calls_of_functions(ledger: Ledger) -> int:
    found = ledger.client.info("commandstats")
    return sum(found.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "fcall"))


# A reply that never arrives: asked again, it is one run


@pytest.fixture
def caller(way: Proxy) -> Iterator[Ledger]:
    """The ledger of who asks; its connection is there, and the server knows the functions."""
    opened = Ledger.open(Settings(redis_url=way.url))
    opened.admit_request(job(opened, "other"), RunRequest())
    yield opened
    opened.client.close()


def asked(caller: Ledger, way: Proxy, spec: JobSpec, request: RunRequest) -> Admission:
    way.replies_to_lose = 1
    admission = caller.admit_request(spec, request)
    assert way.replies_to_lose == 0
    return admission


@pytest.mark.parametrize("run", [None, "mine"])
def test_a_run_that_was_skipped_is_so_whatever_was_lost(
    caller: Ledger, way: Proxy, run: str | None
) -> None:
    spec = job(caller, overlap="skip")
    first = caller.admit_request(spec, RunRequest()).run_id
    admission = asked(caller, way, spec, RunRequest(run_id=run))
    placement = admission.placement, admission.reason, admission.blocked_by
    assert placement == (Placement.SKIP, "overlap", first)
    assert {run.id for run in caller.history(spec.name)} == {first, admission.run_id}
    assert caller.job(spec.name).counters["triggered"] == 2


def test_other_runs_of_a_lost_reply_are_duplicates(caller: Ledger, way: Proxy) -> None:
    spec = job(caller, overlap="queue_one")
    way.replies_to_lose = 1
    admissions = caller.admit_requests(spec, [RunRequest()] * 3)
    places = [admission.placement for admission in admissions]
    assert places == [Placement.DUPLICATE, Placement.DUPLICATE, Placement.SKIP]
    assert len(caller.history(spec.name)) == 3


def test_who_is_told_nothing_at_all_asks_again_under_the_same_id(
    caller: Ledger, way: Proxy
) -> None:
    spec = job(caller)
    way.replies_to_lose = 1_000
    with pytest.raises(RedisConnectionError):
        caller.admit_request(spec, RunRequest(run_id="mine"))
    way.replies_to_lose = 0
    assert caller.admit_request(spec, RunRequest(run_id="mine")).placement is Placement.DUPLICATE
    assert [run.id for run in caller.history(spec.name)] == ["mine"]


# A call that says when it expires: no worker has begun it by then, or none ever does


LATER = timedelta(minutes=10)


def test_waiting_for_the_lock_is_part_of_its_time(ledger: Ledger) -> None:
    spec = job(ledger, overlap="queue_all")
    first = ledger.trigger(spec)
    begin(ledger, first.id)
    second = ledger.admit_request(spec, RunRequest(expires=spec.start_deadline / 2))
    expires_at = ledger.run(second.run_id).expires_at
    assert expires_at is not None
    assert ledger.client.zscore(ledger.keys.leases, second.run_id) == ms(ledger, second.run_id)
    ledger.finish(first.id, "token", RunState.SUCCEEDED)
    assert ledger.run(second.run_id).state is RunState.QUEUED
    rest = ledger.client.pexpiretime(ledger.keys.lock(spec.lock)) - ms(ledger, second.run_id)
    assert rest in (0, 1)  # what is left of it is rounded up
    assert ledger.client.zscore(ledger.keys.leases, second.run_id) == ms(ledger, second.run_id)


def test_a_run_that_waits_until_it_expires_is_skipped(ledger: Ledger) -> None:
    spec = job(ledger, overlap="queue_all")
    begin(ledger, ledger.trigger(spec).id)
    waits = ledger.admit_request(spec, RunRequest(expires=timedelta(milliseconds=20)))
    assert waits.placement is Placement.WAIT
    wait_until(ledger.rescue)
    run = ledger.run(waits.run_id)
    assert (run.state, run.reason) == (RunState.SKIPPED, "wait_expired")


def test_a_full_line_is_the_reason_however_many_were_skipped(ledger: Ledger) -> None:
    spec = job(ledger, overlap="queue_all", max_waiting=1, max_consecutive_skips=1)
    admissions = ledger.admit(ticks(spec, 0, 1, 2, 3))
    assert [admission.reason for admission in admissions[2:]] == ["buffer_full", "buffer_full"]


def test_a_run_whose_delay_outlasts_its_expiry_never_begins(ledger: Ledger) -> None:
    spec = job(ledger)
    asked = RunRequest(expires=timedelta(milliseconds=10), delay=timedelta(milliseconds=30))
    late = ledger.admit_request(spec, asked)
    assert late.placement is Placement.DELAY
    wait_until(lambda: ledger.rescue() and ledger.run(late.run_id).state is not RunState.WAITING)
    wait_until(lambda: lock_is_free(ledger, spec))  # it is given a millisecond at least
    answer = ledger.begin(late.run_id, "token", "worker")
    assert answer == Refused(late.run_id, Refusal.EXPIRED)
    run = ledger.run(late.run_id)
    assert (run.state, run.reason) == (RunState.EXPIRED, "expires passed")


def test_a_run_begun_before_it_expires_is_tried_again_later(ledger: Ledger) -> None:
    spec = job(ledger)
    called = ledger.admit_request(spec, RunRequest(expires=timedelta(milliseconds=200)))
    begin(ledger, called.run_id)
    wait_until(lambda: ms_of(ledger.now()) > ms(ledger, called.run_id))
    ledger.retry(called.run_id, "token", timedelta(), "not yet")
    wait_until(ledger.rescue)
    assert ledger.client.pttl(ledger.keys.lock(spec.lock)) > spec.start_deadline / timedelta(
        milliseconds=2
    )
    assert begin(ledger, called.run_id, "second").attempt == 2


def test_a_drained_queue_does_not_hold_it_beyond_that(ledger: Ledger) -> None:
    spec = job(ledger)
    called = ledger.admit_request(spec, RunRequest(expires=timedelta(milliseconds=20)))
    ledger.sent({called.run_id: "mail"})
    ledger.drains.drain("mail")
    wait_until(ledger.rescue)
    assert ledger.run(called.run_id).state is RunState.EXPIRED


def ms(ledger: Ledger, run_id: str) -> int:
    return int(ledger.client.hget(ledger.keys.run(run_id), "expires"))
