"""The audit finds what the ledger lost or counted twice."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from supervisor.features.audit import step as auditing
from supervisor.features.audit.spans import Audited, AuditSpans
from supervisor.features.audit.step import AUDIT_INTERVAL, Auditor, audit, compare_records
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.operate.control import backfill
from supervisor.schedule.ticks import PassedOver
from tests.damage import dealt_with_until, lose, miscount
from tests.jobs import MIDNIGHT, admitted, begin, job, pause, run_id, ticks


@pytest.fixture
def spec(ledger: Ledger) -> JobSpec:
    """A job that was loaded at midnight and audited then."""
    loaded = job(ledger, overlap="queue_all", since=MIDNIGHT)
    assert audit(ledger, [loaded], MIDNIGHT) == []
    return loaded


def test_ticks_that_were_dealt_with_are_accounted_for(ledger: Ledger, spec: JobSpec) -> None:
    ledger.admit(ticks(spec, *range(1, 8)))
    last = MIDNIGHT + timedelta(seconds=20)
    first = MIDNIGHT + timedelta(seconds=8)
    ledger.pass_over([PassedOver(spec, RunState.MISSED, "window", first, last, 13)])
    pause(ledger, spec)
    ledger.admit(ticks(spec, 21))
    begin(ledger, run_id(spec, 1))
    ledger.finish(run_id(spec, 1), "token", RunState.SUCCEEDED)
    assert audit(ledger, [spec], MIDNIGHT) == []
    assert ledger.job(spec.name).unaccounted_ticks == 0


def test_a_run_by_hand_for_a_time_stands_for_no_tick(ledger: Ledger, spec: JobSpec) -> None:
    ledger.admit(ticks(spec, 3, 4, 6))
    backfill(ledger, spec, [MIDNIGHT - timedelta(hours=1), MIDNIGHT + timedelta(seconds=5)])
    [finding] = audit(ledger, [spec], MIDNIGHT)
    # Those before the first record of a tick may have been there.
    assert finding.missing == (MIDNIGHT + timedelta(seconds=5),)


def test_a_tick_that_was_never_counted_is_found_and_named_once(
    ledger: Ledger, spec: JobSpec
) -> None:
    ledger.admit(ticks(spec, 1, 2, 4, 5))
    [finding] = audit(ledger, [spec], MIDNIGHT)
    assert (finding.named, finding.span.counted) == (5, 4)
    assert finding.missing == (MIDNIGHT + timedelta(seconds=3),)
    assert audit(ledger, [spec], MIDNIGHT) == []
    ledger.admit(ticks(spec, 6))
    assert audit(ledger, [spec], MIDNIGHT) == []
    assert ledger.job(spec.name).unaccounted_ticks == 1


def test_a_missing_tick_is_named_by_one_audit_alone(ledger: Ledger, spec: JobSpec) -> None:
    ledger.admit(ticks(spec, 1, 2))
    dealt_with_until(ledger, spec, MIDNIGHT + timedelta(seconds=3))
    [first] = audit(ledger, [spec], MIDNIGHT)
    ledger.admit(ticks(spec, 4, 6))
    [second] = audit(ledger, [spec], MIDNIGHT)
    assert [at.second for at in first.missing] == [3]
    assert [at.second for at in second.missing] == [5]


def test_of_a_job_in_order_no_runs_are_read(ledger: Ledger, spec: JobSpec) -> None:
    """Beat audits all jobs all the time."""
    ledger.admit(ticks(spec, 1, 2))
    ledger.client.config_resetstat()
    assert audit(ledger, [spec], MIDNIGHT) == []
    assert "cmdstat_zrevrange" not in ledger.client.info("commandstats")
    ledger.history(spec.name)
    assert "cmdstat_zrevrange" in ledger.client.info("commandstats")


def test_a_tick_that_was_counted_twice_is_found(ledger: Ledger, spec: JobSpec) -> None:
    ledger.admit(ticks(spec, 1, 2))
    miscount(ledger, spec, "n:ticks", 1)
    [finding] = audit(ledger, [spec], MIDNIGHT)
    assert (finding.difference, finding.without_outcome) == (1, 1)


def test_a_run_without_an_outcome_is_found_as_long_as_it_is_gone(
    ledger: Ledger, spec: JobSpec
) -> None:
    ledger.admit(ticks(spec, 1))
    lose(ledger, ledger.keys.open(spec.name))
    for _ in range(2):
        [finding] = audit(ledger, [spec], MIDNIGHT)
        assert (finding.difference, finding.without_outcome) == (0, 1)
    assert ledger.job(spec.name).unaccounted_ticks == 1


@pytest.mark.parametrize(
    ("counter", "by"),
    [("n:ticks", 1), ("n:triggered", 2), ("n:finished:succeeded", 3), ("n:skipped:overlap", -4)],
)
def test_what_is_acknowledged_counts_no_longer(
    ledger: Ledger, spec: JobSpec, counter: str, by: int
) -> None:
    ledger.admit(ticks(spec, 1, 2))
    audit(ledger, [spec], MIDNIGHT)
    miscount(ledger, spec, counter, by)
    assert audit(ledger, [spec], MIDNIGHT)
    AuditSpans(ledger.functions).acknowledge(spec.name)
    for _ in range(2):
        assert audit(ledger, [spec], MIDNIGHT) == []
        assert ledger.job(spec.name).unaccounted_ticks == 0
    miscount(ledger, spec, counter, by)
    [finding] = audit(ledger, [spec], MIDNIGHT)
    assert abs(finding.without_outcome) == abs(by)


def test_a_year_of_minutely_ticks_is_audited_at_once(ledger: Ledger) -> None:
    spec = job(ledger, every=None, cron="* * * * *", timezone="Europe/Berlin", since=MIDNIGHT)
    audit(ledger, [spec], MIDNIGHT)
    year = timedelta(days=365)
    minutes = 365 * 24 * 60
    passed = (MIDNIGHT + timedelta(minutes=1), MIDNIGHT + year)
    ledger.pass_over([PassedOver(spec, RunState.MISSED, "window", *passed, minutes - 1)])
    [finding] = audit(ledger, [spec], MIDNIGHT)
    assert finding.difference == 1


def test_two_auditors_at_once_do_not_count_a_finding_twice(ledger: Ledger, spec: JobSpec) -> None:
    ledger.admit(ticks(spec, 1, 3))
    [span] = AuditSpans(ledger.functions).open([spec.name])
    for _ in range(2):
        AuditSpans(ledger.functions).close([Audited(span, 1, 0, None)])
    assert ledger.job(spec.name).unaccounted_ticks == 1


def test_ticks_that_are_due_and_not_dealt_with_are_overdue(ledger: Ledger, spec: JobSpec) -> None:
    ledger.admit(ticks(spec, 1, 2))
    [finding] = audit(ledger, [spec], MIDNIGHT + timedelta(seconds=42))
    assert (finding.overdue, finding.difference) == (10, 0)
    assert ledger.job(spec.name).unaccounted_ticks == 10
    ledger.admit(ticks(spec, *range(3, 13)))
    assert audit(ledger, [spec], MIDNIGHT + timedelta(seconds=42)) == []
    assert ledger.job(spec.name).unaccounted_ticks == 0


def test_records_are_compared_one_by_one(ledger: Ledger, spec: JobSpec) -> None:
    ledger.admit(ticks(spec, 1, 2, 4))
    first, last = MIDNIGHT + timedelta(seconds=4), MIDNIGHT + timedelta(seconds=6)
    dealt_with_until(ledger, spec, MIDNIGHT)
    ledger.pass_over([PassedOver(spec, RunState.MISSED, "window", first, last, 3)])
    records = compare_records(ledger, spec, MIDNIGHT, MIDNIGHT + timedelta(seconds=9))
    assert [at.second for at in records.missing] == [3, 7, 8]
    assert [at.second for at in records.doubled] == [4]


def test_beat_audits_some_jobs_at_each_interval_until_all_had_their_turn(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditing, "JOBS_PER_AUDIT", 2)
    for name in "abc":
        spec = admitted(ledger, 0, name=name)
        audit(ledger, [spec], MIDNIGHT)
    revived: list[tuple[str, datetime]] = []
    auditor = Auditor(ledger, lambda spec, last: revived.append((spec.name, last)))
    now, shortly = ledger.now(), timedelta(microseconds=1)

    def turns(at: datetime, *, has_time: bool = True) -> int:
        before = len(revived)
        auditor.audit_some(at, lambda: has_time)
        return len(revived) - before

    assert [turns(now), turns(now + AUDIT_INTERVAL - shortly)] == [2, 0]
    assert [turns(now + AUDIT_INTERVAL), turns(now + 2 * AUDIT_INTERVAL)] == [1, 2]
    assert {name for name, _ in revived[:3]} == set("abc")
    # A beat that has ticks to emit audits a few jobs in a turn.
    monkeypatch.setattr(auditing, "JOBS_PER_AUDIT", 3)
    monkeypatch.setattr(auditing, "JOBS_AT_ONCE", 2)
    assert turns(now + 3 * AUDIT_INTERVAL) == 1
    assert [turns(now + 4 * AUDIT_INTERVAL, has_time=False) for _ in range(3)] == [2, 1, 0]
    assert turns(now) == 3, "the server's clock was set back"
    assert {last for _, last in revived} == {MIDNIGHT}


def test_beat_revives_no_job_whose_ticks_are_dealt_with(ledger: Ledger) -> None:
    spec = job(ledger, every="1d", since=ledger.now())
    audit(ledger, [spec], ledger.now())
    revived: list[str] = []
    Auditor(ledger, lambda spec, _: revived.append(spec.name)).audit_some(ledger.now())
    assert revived == []
