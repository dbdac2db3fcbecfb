"""From begin to the end of an attempt: one lease, given back by its owner alone."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.errors import RunCancelled
from supervisor.features.outbound.store import ReportKind, RunReport
from supervisor.guard.attempt import Attempt, NextAttempt, Phase
from supervisor.guard.child_table import ChildTable
from supervisor.guard.guard import Guard
from supervisor.guard.interrupts import CANCELLED
from supervisor.guard.progress import Reporter
from supervisor.job.run import RunState
from supervisor.ledger.attempt import Ending, Finished, LeaseState, Refusal, Refused
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import ATTEMPTS_KEPT
from supervisor.ledger.run_request import CallArguments
from supervisor.testing import has_run_for, lease_runs_out
from tests.damage import granted_under, lose, tear
from tests.jobs import (
    admitted,
    at_work,
    begin,
    begun,
    delivery,
    job,
    lock_is_free,
    renew,
    run_id,
    ticks,
    try_often,
)


def test_a_run_that_another_replaces_is_asked_to_end_with_its_next_heartbeat(
    ledger: Ledger,
) -> None:
    spec = admitted(ledger, 0, overlap="replace")
    begin(ledger, run_id(spec, 0))
    ledger.admit(ticks(spec, 1))
    [renewal] = ledger.renew([(run_id(spec, 0), "token", True, None)])
    assert (renewal.state, renewal.detail) == (LeaseState.STOP, "replaced")


def test_a_run_whose_lock_a_foreign_program_has_taken_does_not_take_it_back(
    ledger: Ledger,
) -> None:
    spec = job(ledger)
    granted = at_work(ledger, spec, 0).granted
    ledger.client.set(ledger.keys.lock(spec.lock), "of a foreign app")
    assert renew(ledger, run_id(spec, 0), granted=granted) is LeaseState.LOST
    assert ledger.client.get(ledger.keys.lock(spec.lock)) == "of a foreign app"


@pytest.mark.parametrize("is_rescued", [False, True])
def test_a_lease_that_comes_back_is_counted(ledger: Ledger, is_rescued: bool) -> None:
    spec = admitted(ledger, 0, on_crash="rerun")
    begin(ledger, run_id(spec, 0))
    lease_runs_out(ledger, run_id(spec, 0))
    if is_rescued:
        ledger.rescue()
    assert renew(ledger, run_id(spec, 0)) is LeaseState.REASSERTED
    assert ledger.job(spec.name).counters["reasserted"] == 1


def test_only_a_running_attempt_is_marked_for_its_end(ledger: Ledger) -> None:
    spec = job(ledger, overlap="queue_all")
    run = run_id(spec, 0)
    assert not ledger.note_ending(run, "token", RunState.TIMED_OUT)
    ledger.admit(ticks(spec, 0))
    assert not ledger.note_ending(run, f"queued:{run}", RunState.TIMED_OUT)
    begin(ledger, run)
    assert not ledger.note_ending(run, "another", RunState.TIMED_OUT)
    ledger.finish(run, "token", RunState.SUCCEEDED)
    assert not ledger.note_ending(run, "token", RunState.TIMED_OUT)
    assert not ledger.client.hexists(ledger.keys.run(run), "ending")


@pytest.mark.parametrize("keys", [{}, {"serial": "own"}])
def test_fencing_tokens_grow_under_a_clock_that_is_behind(
    ledger: Ledger, keys: dict[str, str]
) -> None:
    """As that of a server that was promoted can be."""
    spec = job(ledger, overlap="queue_all", **keys)
    granted_before = 9_007_199_254_740_000  # in microseconds: later than any clock says
    granted_under(ledger, spec, granted_before)
    fences = [granted_before]
    for second in range(3):
        ledger.admit(ticks(spec, second))
        fences.append(begin(ledger, run_id(spec, second), f"token-{second}").fencing_token)
        ledger.finish(run_id(spec, second), f"token-{second}", RunState.SUCCEEDED)
    assert fences == [granted_before + number for number in range(4)]


def test_a_parked_run_that_is_recorded_as_sent_late_waits_like_any(ledger: Ledger) -> None:
    first, second = (job(ledger, name, serial="reports") for name in ("first", "second"))
    ledger.admit(ticks(first, 0) + ticks(second, 0))
    begin(ledger, run_id(first, 0))
    ledger.begin(run_id(second, 0), "other", "worker")
    assert ledger.outbox() == []
    ledger.sent({run_id(second, 0): "celery"})
    assert not ledger.client.exists(ledger.keys.sent)
    ended = ledger.finish(run_id(first, 0), "token", RunState.SUCCEEDED)
    assert ended.to_publish == (run_id(second, 0),)


@pytest.mark.parametrize("is_silent", [False, True], ids=["in time", "late"])
@pytest.mark.parametrize("keys", [{}, {"serial": "own"}], ids=["lock", "serial"])
def test_a_begin_whose_reply_was_lost_is_granted_again(
    ledger: Ledger, keys: dict[str, str], is_silent: bool
) -> None:
    spec = admitted(ledger, 0, **keys)
    first = begin(ledger, run_id(spec, 0))
    if is_silent:
        lease_runs_out(ledger, run_id(spec, 0))
    again = begin(ledger, run_id(spec, 0))
    assert (again.fencing_token, again.attempt) == (first.fencing_token, 1)
    assert renew(ledger, run_id(spec, 0)) is LeaseState.RENEWED


def test_a_serial_queue_stays_taken_when_its_state_is_lost(ledger: Ledger) -> None:
    first, second = (job(ledger, name, serial="reports") for name in ("first", "second"))
    ledger.admit(ticks(first, 0) + ticks(second, 0))
    begin(ledger, run_id(first, 0))
    lose(ledger, ledger.keys.lock_state(first.serial_lock))
    refused = ledger.begin(run_id(second, 0), "other", "worker")
    assert isinstance(refused, Refused) and refused.refusal is Refusal.PARKED


def test_a_retry_gives_the_serial_queue_to_the_next(ledger: Ledger) -> None:
    first, second = (job(ledger, name, serial="reports") for name in ("first", "second"))
    ledger.admit(ticks(first, 0) + ticks(second, 0))
    begin(ledger, run_id(first, 0))
    assert isinstance(ledger.begin(run_id(second, 0), "other", "worker"), Refused)
    retried = ledger.retry(run_id(first, 0), "token", timedelta(hours=1))
    assert retried.to_publish == (run_id(second, 0),)
    begin(ledger, run_id(second, 0), "other")


def test_how_long_an_attempt_took_is_counted(ledger: Ledger) -> None:
    spec = begun(ledger)
    has_run_for(ledger, run_id(spec, 0), timedelta(seconds=90))
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    took = int(ledger.client.hget(ledger.keys.job(spec.name), "h:duration:sum"))
    assert 90_000 <= took < 900_000


def test_the_options_of_each_retry_add_to_those_before(ledger: Ledger) -> None:
    spec = begun(ledger)
    run = run_id(spec, 0)
    ledger.retry(
        *(run, "token", timedelta()),
        arguments=CallArguments(options={"queue": "slow", "priority": 1}),
    )
    ledger.rescue()
    begin(ledger, run, "second")
    ledger.retry(run, "second", timedelta(), arguments=CallArguments(options={"priority": 2}))
    assert ledger.run(run).options == {"queue": "slow", "priority": 2}


def test_a_retry_is_asked_for_nothing_that_its_attempt_before_was(ledger: Ledger) -> None:
    """An attempt that was to end for its time limit may be tried again."""
    spec = begun(ledger, on_crash="rerun")
    run = run_id(spec, 0)
    ledger.note_ending(run, "token", RunState.TIMED_OUT, "soft time limit")
    ledger.retry(run, "token", timedelta())
    ledger.rescue()
    begin(ledger, run, "second")
    lease_runs_out(ledger, run)
    assert [rescue.kind for rescue in ledger.rescue()] == ["rescued"]


def test_ended_runs_expire(ledger: Ledger) -> None:
    spec = admitted(ledger, 0, 1)
    begin(ledger, run_id(spec, 0))
    assert ledger.client.ttl(ledger.keys.run(run_id(spec, 0))) == -1
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    week = 7 * 24 * 3600
    for second in (0, 1):
        assert week - 5 < ledger.client.ttl(ledger.keys.run(run_id(spec, second))) <= week


def test_beginning_renewing_and_finishing_are_one_round_trip_each(ledger: Ledger) -> None:
    spec = admitted(ledger, 0, 1, 2, overlap="queue_all")

    def calls() -> int:
        # A call inside of a function is counted as well, under its own command.
        stats = ledger.client.info("commandstats")
        asked = ("cmdstat_fcall", "cmdstat_function|load", "cmdstat_evalsha", "cmdstat_eval")
        return sum(stats.get(name, {}).get("calls", 0) for name in asked)

    for step, functions in (
        (lambda: begin(ledger, run_id(spec, 0)), 1),
        (lambda: ledger.renew([(run_id(spec, 0), "token", True, None)] * 50), 1),
        (lambda: ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED), 1),
    ):
        step()  # the first call may have to bring the functions to the server
        before = calls()
        step()
        assert calls() - before == functions


def test_a_run_that_is_tried_for_ever_keeps_its_last_attempts(ledger: Ledger) -> None:
    spec = admitted(ledger, 0)
    try_often(ledger, run_id(spec, 0), ATTEMPTS_KEPT)
    assert len(ledger.run(run_id(spec, 0)).attempts) == ATTEMPTS_KEPT
    assert ledger.run(run_id(spec, 0)).attempts_dropped == 0
    length = ledger.client.hstrlen(ledger.keys.run(run_id(spec, 0)), "attempts")
    try_often(ledger, run_id(spec, 0), 5)
    run = ledger.run(run_id(spec, 0))
    assert [a.number for a in run.attempts] == list(range(6, ATTEMPTS_KEPT + 6))
    assert {(a.outcome, a.reason) for a in run.attempts} == {("failed", "not yet")}
    assert (run.attempt, run.attempts_dropped) == (ATTEMPTS_KEPT + 5, 5)
    assert ledger.client.hstrlen(ledger.keys.run(run.id), "attempts") < length + 20


def test_a_broken_record_does_not_cost_the_other_runs_their_leases(ledger: Ledger) -> None:
    spec = admitted(ledger, 0, 1, max_running=2)
    for second in (0, 1):
        begin(ledger, run_id(spec, second), f"token-{second}")
    tear(ledger, run_id(spec, 0))
    broken, whole = ledger.renew([(run_id(spec, n), f"token-{n}", True, None) for n in (0, 1)])
    assert broken.state is LeaseState.FAILED
    assert whole.state is LeaseState.RENEWED


def test_an_attempt_whose_body_never_started_is_as_if_it_had_not_begun(ledger: Ledger) -> None:
    spec = job(ledger, on_crash="fail", serial="one", ping_url="https://example.org")
    other = job(ledger, "other", serial="one")
    ledger.admit([*ticks(spec, 0), *ticks(other, 0)])
    run, parked = run_id(spec, 0), run_id(other, 0)
    begin(ledger, run)
    assert ledger.begin(parked, "other", "worker") == Refused(parked, Refusal.PARKED, run)
    assert ledger.undo_begin(run, "token") == Finished(Ending.RESCUED, (parked, run))
    undone = ledger.run(run)
    assert (undone.state, undone.attempt, undone.crashes) == (RunState.QUEUED, 0, 0)
    assert ledger.open_runs_of([spec.name])[spec.name].oldest_queued_at == undone.nominal_at
    assert not lock_is_free(ledger, spec)
    assert ledger.undo_begin(run, "token").ending is Ending.ALREADY
    assert ledger.begin(run, "token", "worker") == Refused(run, Refusal.DUPLICATE, "queued")
    assert begin(ledger, run, "second").attempt == 1
    ledger.finish(run, "second", RunState.SUCCEEDED)
    assert [attempt.outcome for attempt in ledger.run(run).attempts] == ["succeeded"]
    assert ledger.job(spec.name).counters["started"] == 1
    texts = ledger.client.lrange(ledger.keys.to_send(f"ping {spec.name}"), 0, -1)
    assert [RunReport.model_validate_json(text).kind for text in texts] == [
        ReportKind.START,
        ReportKind.SUCCESS,
    ]


def test_a_call_to_begin_that_comes_after_its_undoing_is_refused(ledger: Ledger) -> None:
    spec = admitted(ledger, 0)
    run = run_id(spec, 0)
    assert ledger.undo_begin(run, "token").ending is Ending.STALE
    assert ledger.begin(run, "token", "worker") == Refused(run, Refusal.DUPLICATE, "queued")
    assert begin(ledger, run, "second").attempt == 1


def test_only_its_own_begin_is_undone(ledger: Ledger) -> None:
    spec = admitted(ledger, 0, lease_ttl="30s")
    run = run_id(spec, 0)
    begin(ledger, run, "first")
    lease_runs_out(ledger, run)
    ledger.rescue()
    # The first may come back: what has not begun says nothing against it.
    assert ledger.undo_begin(run, "second").ending is Ending.STALE
    assert renew(ledger, run, "first") is LeaseState.REASSERTED
    assert ledger.undo_begin(run, "second").ending is Ending.STALE
    assert ledger.run(run).state is RunState.RUNNING


def test_a_second_message_of_a_run_at_work_is_refused_and_counted(ledger: Ledger) -> None:
    spec = begun(ledger)
    for _ in range(2):
        assert isinstance(ledger.begin(run_id(spec, 0), "second", "worker"), Refused)
    assert ledger.run(run_id(spec, 0)).duplicates == 2
    assert ledger.job(spec.name).counters["duplicates"] == 2


def test_a_second_message_that_its_own_process_drops_is_counted(ledger: Ledger) -> None:
    """Where runs share a process, as with threads and gevent, the ledger is not asked."""
    spec = admitted(ledger, 0)
    guard, run = Guard(ledger, lambda _: None, "worker"), run_id(spec, 0)
    guard.table.run_here()
    assert Attempt(guard, delivery(run, "first")).begin() is None
    refused = Attempt(guard, delivery(run, "second")).begin()
    assert refused is not None
    assert refused.refusal is Refusal.KEPT_OUT
    assert ledger.job(spec.name).counters["duplicates"] == 1


def test_a_run_ends_though_the_one_that_waits_for_it_is_broken(ledger: Ledger) -> None:
    spec = begun(ledger, overlap="queue_all")
    ledger.admit(ticks(spec, 1))
    tear(ledger, run_id(spec, 1))
    finished = ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    assert (finished.ending, finished.to_publish) == (Ending.ENDED, ())
    assert lock_is_free(ledger, spec)
    assert [rescue.kind for rescue in ledger.rescue()] == ["failed"]
    assert ledger.rescue() == (), "it is looked at again a minute later"


@pytest.mark.parametrize("has_children", [True, False], ids=["child", "worker itself"])
def test_an_attempt_runs_until_it_leaves_the_code_of_its_job(
    ledger: Ledger, *, has_children: bool
) -> None:
    """What only reports its end is not killed for a lease that was lost meanwhile."""
    run = run_id(admitted(ledger, 0), 0)
    guard = Guard(ledger, lambda _: None, "worker", table=ChildTable())
    if not has_children:
        guard.table.run_here()
    attempt = Attempt(guard, delivery(run))
    assert attempt.begin() is None
    with attempt.running(Reporter(lambda: ledger.reports), None):
        assert guard.table.is_running(os.getpid(), "token")
    assert not guard.table.is_running(os.getpid(), "token")
    attempt.end(RunState.SUCCEEDED)


def test_a_run_that_was_to_end_before_its_body_does_not_start_it(ledger: Ledger) -> None:
    spec = admitted(ledger, 0)
    attempt = Attempt(Guard(ledger, lambda _: None, "worker"), delivery(run_id(spec, 0)))
    assert attempt.begin() is None
    attempt.raise_in_code(CANCELLED)  # the lease is there, the body is not yet
    with pytest.raises(RunCancelled), attempt.running(Reporter(lambda: ledger.reports), None):
        pytest.fail("the body began")
    assert attempt.phase is Phase.LEFT
    attempt.end(RunState.CANCELLED)


def test_an_attempt_that_fails_is_tried_again_as_its_job_or_its_code_says(ledger: Ledger) -> None:
    attempt = Attempt(Guard(ledger, lambda _: None, "worker"), delivery("nightly@1"))
    error, by_code = ValueError("no"), CallArguments(args=[7])
    delay = attempt.retry_by_backoff(error)
    assert attempt.next == NextAttempt(delay, error)
    attempt.next = NextAttempt(timedelta(hours=1), None, by_code)
    assert attempt.retry_by_backoff(error) == delay
    assert attempt.next == NextAttempt(delay, error, by_code)


# The recipe of docs/how-to/guarded-tasks.md: a store refuses the write of a run that lost its lease


PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "guarded-tasks.md").read_text()
[TABLE] = re.findall(r"```sql\n(.*?)```", PAGE, re.S)
[RECIPE] = re.findall(r"```python\n(def claim.*?)```", PAGE, re.S)


@pytest.fixture
def store() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(TABLE + "CREATE TABLE report (text TEXT);")
        yield connection


def write(store: sqlite3.Connection, fencing_token: int, text: str) -> None:
    """What a job would do: claim the resource and write, in one transaction."""
    names: dict[str, Any] = {"current_run": lambda: SimpleNamespace(fencing_token=fencing_token)}
    exec(RECIPE, names)
    with store:
        cursor = store.cursor()
        names["claim"](cursor, "report")
        cursor.execute("INSERT INTO report VALUES (?)", (text,))


def test_the_write_of_a_run_that_lost_its_lease_is_refused(
    ledger: Ledger, store: sqlite3.Connection
) -> None:
    spec = admitted(ledger, 0, on_crash="fail")
    sleeper = begin(ledger, run_id(spec, 0))
    write(store, sleeper.fencing_token, "first page")
    lease_runs_out(ledger, run_id(spec, 0))
    ledger.rescue()
    ledger.admit(ticks(spec, 1))
    successor = begin(ledger, run_id(spec, 1), "successor")
    write(store, successor.fencing_token, "all anew")
    with pytest.raises(RuntimeError, match="written by a later run"):
        write(store, sleeper.fencing_token, "second page")
    write(store, successor.fencing_token, "and more")
    assert [text for (text,) in store.execute("SELECT text FROM report")] == [
        *("first page", "all anew", "and more")
    ]
    ledger.finish(run_id(spec, 1), "successor", RunState.SUCCEEDED)
