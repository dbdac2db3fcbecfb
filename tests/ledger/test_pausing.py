"""Pauses: with a note, with an end, and what becomes of their ticks."""

from __future__ import annotations

from datetime import timedelta

from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Placement, to_instant
from supervisor.ledger.requests import Tick
from supervisor.ticks.backfill import backfill, missed_in_pause
from tests.ledger.jobs import MIDNIGHT, job, pause, run_id, states, ticks
from tests.waiting import wait_until


def test_a_pause_with_an_end_excludes_the_ticks_before_it_only(ledger: Ledger) -> None:
    spec = job(ledger)
    pause(ledger, spec, until=MIDNIGHT + timedelta(seconds=2))
    ledger.admit(ticks(spec, 0, 1))
    assert states(ledger, spec) == ["excluded"]
    assert ledger.admit(ticks(spec, 2))[0].placement is Placement.START


def test_a_pause_ends_by_itself(ledger: Ledger) -> None:
    spec = job(ledger)
    ledger.pause(spec.name, "soon over", ledger.now() + timedelta(milliseconds=500))
    assert ledger.job(spec.name).paused
    wait_until(lambda: ledger.rescue() == () and not ledger.job(spec.name).paused)
    assert ledger.job(spec.name).paused_note is None
    mark = ledger.marks([spec.name])[spec.name]
    assert mark.pause and mark.pause.end == to_instant(
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
