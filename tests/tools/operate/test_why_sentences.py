"""Question in, sentences out: one row of the table for each outcome of a tick."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from supervisor.cli.diagnosis import answer_shape
from supervisor.job.policies import OnCrash
from supervisor.job.run import Obstacle, Run, RunAttempt, RunState, StepRecord
from supervisor.job.run_ids import tick_id
from supervisor.job.spec import JobSpec
from supervisor.ledger.beat_record import BeatRecord
from supervisor.ledger.job_record import JobRecord, OpenRuns, job_from
from supervisor.operate.question import (
    Question,
    RunView,
    Workers,
    nominal_time,
)
from supervisor.operate.why import answer

JOB = JobSpec(name="orders", task="shop.orders", every="5m", max_retries=2)
USUAL = 240.0
RULES = JOB.rules()
#: By the clock of Berlin, an hour ahead: of the tick of 10:05, by 10:50.
NAMED = JobSpec(
    name="orders", task="shop.orders", every="5m", timezone="Europe/Berlin", due_by="45m"
)
BOUNDED = JobSpec(
    name="orders", task="shop.orders", every="5m", max_duration="30m", min_duration="1m"
).rules()
LED = BeatRecord("host:1", datetime(2026, 11, 20, 10, 0, tzinfo=UTC), True, None, ())
SILENT = replace(LED, last_tick_at=datetime(2026, 11, 20, 9, 0, tzinfo=UTC))


def at(hour: int, minute: int, second: float = 0) -> datetime:
    return datetime(2026, 11, 20, hour, minute, tzinfo=UTC) + timedelta(seconds=second)


DAY = timedelta(days=1)
NINE, FIVE_PAST, NOW = at(9, 0), at(9, 5), at(10, 0, 1)


def record(spec: JobSpec = JOB, **fields: str) -> JobRecord:
    return job_from(spec, fields, OpenRuns())


def run(state: str, nominal_at: datetime = FIVE_PAST, **fields: Any) -> Run:
    defaults: dict[str, Any] = {"queued_at": nominal_at, "rules": RULES}
    return Run(
        id=tick_id("orders", nominal_at),
        job="orders",
        state=RunState(state),
        nominal_at=nominal_at,
        **{**defaults, **fields},
    )


def attempt(
    number: int, start: datetime, end: datetime | None, outcome: str = "", reason: str = ""
) -> RunAttempt:
    return RunAttempt(number, start, "w3", end, outcome or None, reason or None)


def tried(state: str, start: datetime, end: datetime, **fields: Any) -> Run:
    """Once, and so it ended."""
    attempts = (attempt(1, start, end, state, fields.get("reason", "")),)
    return run(state, attempts=attempts, finished_at=end, **fields)


def question(found: Run | RunView | None, **more: Any) -> Question:
    if isinstance(found, Run):
        found = RunView(found, found.queued_at)
    if found and "no_beat" in more:
        found = replace(found, no_beat=more.pop("no_beat"))
    defaults: dict[str, Any] = {"job": record(), "beat": LED, "at": FIVE_PAST, "now": NOW}
    return Question(run=found, **{**defaults, **more})


def sentences(found: Run | RunView | None, **more: Any) -> list[str]:
    return answer(question(found, **more))


def blocked(state: str, blocker: Run | None, **more: Any) -> RunView:
    name = tick_id("orders", NINE)
    blocked_run = run(state, blocked_by=name, finished_at=FIVE_PAST, **more)
    other = RunView(blocker, NINE, usual=USUAL) if blocker else None
    return RunView(blocked_run, FIVE_PAST, blocker=other)


SLOW = tried("succeeded", at(8, 57, 48), at(9, 12, 40), nominal_at=NINE)


def test_a_skipped_tick_names_the_run_that_was_still_running() -> None:
    assert sentences(blocked("skipped", SLOW, reason="overlap")) == [
        "09:05 was skipped: the run of 09:00 was still running on worker w3, 7m12s, usually "
        "finishes within 4m",
        "the run of 09:00 succeeded at 09:12:40",
    ]


RESCUED = run(
    "running",
    NINE,
    attempts=(
        attempt(1, at(9, 0, 1), at(9, 3), "lost", "worker process 7 died"),
        attempt(2, at(9, 3, 2), None),
    ),
    started_at=at(9, 3, 2),
    worker="w3",
)
QUEUED = run("queued", NINE)
FAILED_ONCE = run(
    "retrying", NINE, attempts=(attempt(1, at(9, 0), at(9, 4), "failed", "ValueError: boom"),)
)
STEPS = tuple(
    StepRecord(name, name, priority, run)
    for name, priority, run in (
        ("load", 3, run("succeeded")),
        ("sum", 2, run("failed", reason="ValueError: boom", finished_at=at(9, 7))),
        ("mail", 1, None),
    )
)


def told(
    found: Run | RunView | None, *parts: str, **more: Any
) -> tuple[Run | RunView | None, tuple[str, ...], dict[str, Any]]:
    """A run or its view, and further fields; of each sentence that is said of it a part."""
    return found, parts, more


TABLE = {
    "skipped, the blocker was rescued": told(
        blocked("skipped", RESCUED, reason="overlap"),
        "09:05 was skipped: the run of 09:00 was still running on worker w3, 1m58s",
        "the run of 09:00 is running now",
    ),
    "skipped, the blocker had not begun": told(
        blocked("skipped", QUEUED, reason="overlap"),
        "the run of 09:00 came first",
        "queued now",
    ),
    "skipped, the blocker was between attempts": told(
        blocked("skipped", FAILED_ONCE, reason="overlap"),
        "the run of 09:00 was between attempts",
        "retrying now",
    ),
    "skipped, the blocker is forgotten": told(
        blocked("skipped", None, reason="overlap"),
        "orders@2026-11-20T09:00:00Z blocked it, and its record is gone",
    ),
    "skipped, too many waited": told(
        blocked("skipped", SLOW, reason="buffer_full"),
        "skipped: 100 others waited already (`max_waiting`), and the run of 09:00",
        "succeeded",
    ),
    "skipped, re-queued too often": told(
        blocked("skipped", SLOW, reason="requeues_exhausted", requeues=10),
        "re-queued 10 times (`max_requeues`), and the run of 09:00",
        "succeeded",
    ),
    "missed while no beat led": told(
        run("missed", reason="window", ticks=7, first_nominal_at=at(8, 35), queued_at=at(9, 30)),
        "09:05 is one of 7 ticks from 08:35 to 09:05 that were missed: when beat looked "
        "again, more than `catchup_window` had passed, 1h",
        "no beat led from 08:33:01 to 09:30, 56m59s",
        no_beat=(at(8, 33, 1), at(9, 30)),
    ),
    "missed, and the silence is forgotten": told(
        run("missed", reason="catchup", queued_at=at(9, 30)),
        "09:05 was missed: left out by `catchup: latest`",
        "no beat looked at the job until 09:30",
    ),
    "excluded by a pause that is over": told(
        run("excluded", reason="paused", note="stocktaking"),
        "09:05 was excluded: the job was paused (stocktaking)",
    ),
    "excluded by a pause that goes on": told(
        run("excluded", reason="paused"),
        "09:05 was excluded: the job was paused",
        "has been paused since 09:00: stocktaking",
        job=record(paused="1", paused_note="stocktaking"),
        paused_at=NINE,
    ),
    "expired": told(
        RunView(run("expired", finished_at=at(10, 0), sent_at=at(9, 30), sends=3), NINE, "reports"),
        "09:05 expired at 10:00: no worker started it within 1h (`start_deadline`); it was queued "
        "in reports at 09:05",
    ),
    "expired as its call said": told(
        RunView(
            run("expired", finished_at=at(9, 10), sent_at=at(9, 6), sends=1, expires_at=at(9, 10)),
            NINE,
            "mail",
        ),
        "09:05 expired at 09:10: no worker started it until 09:10 (`expires` of its call); it was "
        "queued in mail at 09:05",
    ),
    "succeeded on time": told(
        tried("succeeded", at(9, 5, 1), at(9, 6)),
        "09:05 succeeded at 09:06, after 59s on worker w3",
    ),
    "succeeded late, for want of a worker": told(
        RunView(tried("succeeded", at(9, 8), at(9, 9)), FIVE_PAST, "reports"),
        "09:05 succeeded at 09:09",
        "it started 3m late, at 09:08",
        "it was queued in reports for 3m until a worker started it",
    ),
    "succeeded late, caught up after an outage": told(
        RunView(tried("succeeded", at(9, 30), at(9, 31), queued_at=at(9, 30)), at(9, 30)),
        "09:05 succeeded",
        "it started 25m late",
        "no beat led from 09:03 to 09:30",
        no_beat=(at(9, 3), at(9, 30)),
    ),
    "succeeded late, after a wait for the lock": told(
        RunView(
            tried(
                "succeeded", at(9, 12, 41), at(9, 13), queued_at=at(9, 12, 40), blocked_by=SLOW.id
            ),
            FIVE_PAST,
            blocker=RunView(SLOW),
        ),
        "succeeded",
        "7m41s late",
        "it waited 7m40s for the run of 09:00",
    ),
    "failed": told(
        run(
            "failed",
            attempts=(
                attempt(1, FIVE_PAST, at(9, 5, 20), "failed", "ValueError: a"),
                attempt(2, at(9, 5, 30), at(9, 5, 50), "failed", "ValueError: b"),
            ),
            finished_at=at(9, 5, 50),
            reason="ValueError: b",
        ),
        "09:05 failed at 09:05:50, after 20s on worker w3: ValueError: b",
        "it was tried 2 times; `max_retries` is 2",
        "attempt 1 failed on worker w3: ValueError: a",
    ),
    "failed in a step": told(
        RunView(
            run("failed", finished_at=at(9, 7), has_steps=True, reason="step sum failed"),
            FIVE_PAST,
            steps=STEPS,
        ),
        "09:05 failed at 09:07",
        "step sum failed: ValueError: boom",
    ),
    "lost": told(
        tried("lost", FIVE_PAST, at(9, 6), crashes=1, reason="worker process 7 died"),
        "09:05 was lost at 09:06, after 1m on worker w3: worker process 7 died",
        "its workers died once, and it is not run again: `on_crash: fail`",
        job=record(JOB.model_copy(update={"on_crash": OnCrash.FAIL})),
    ),
    "cancelled before it began": told(
        run("cancelled", finished_at=at(9, 6), reason="cancelled by hand"),
        "09:05 was cancelled at 09:06, before it started: cancelled by hand",
    ),
    "replaced": told(
        tried("replaced", FIVE_PAST, at(9, 10), reason="replaced by orders@2026-11-20T09:10:00Z"),
        "09:05 was replaced at 09:10, after 5m on worker w3: replaced by orders@2026-11-20T09:10",
    ),
    "waiting": told(
        blocked("waiting", RESCUED),
        "09:05 has been waiting since 09:05, 55m1s, for the lock 'orders': the run of 09:00 "
        "has been running on worker w3 since 09:03:02, 56m59s, usually finishes within 4m",
    ),
    "re-queued": told(
        blocked("waiting", RESCUED, requeues=2, due_at=at(10, 1)),
        "09:05 was re-queued 2 times until 10:01: the run of 09:00 has been running",
    ),
    "queued": told(
        RunView(run("queued", sent_at=FIVE_PAST, sends=1), FIVE_PAST, "reports"),
        "09:05 has been queued in reports since 09:05, 55m1s",
        "the server is new: nothing starts before 10:00:20",
        "its message was sent at 09:05",
        grace_until=at(10, 0, 20),
    ),
    "queued, and refused": told(
        RunView(
            run(
                "queued",
                sent_at=FIVE_PAST,
                sends=3,
                obstacle=Obstacle(at(9, 30), "vm:12", 2, "its pool, threads, lacks time_limit"),
            ),
            FIVE_PAST,
        ),
        "queued since 09:05",
        "its message was sent 3 times, last at 09:05",
        "it was kept from starting 2 times, last at 09:30 by vm:12: its pool, threads, lacks",
    ),
    "queued, sent, and no beat would send it again": told(
        RunView(run("queued", sent_at=FIVE_PAST, sends=1), FIVE_PAST, "reports"),
        "09:05 has been queued in reports",
        "its message was sent at 09:05",
        "no beat leads: one would send a message that is missing",
        beat=SILENT,
    ),
    "queued, of steps": told(
        RunView(
            run("queued", has_steps=True),
            FIVE_PAST,
            steps=[
                StepRecord("load", "proj.load", 2, run("queued", sent_at=FIVE_PAST, queue="bulk")),
                StepRecord("sum", "proj.sum", 2, run("queued")),
                StepRecord("tell", "proj.tell", 1, None),
            ],
            queued_steps={
                "load": RunView(
                    run("queued", sent_at=FIVE_PAST),
                    queue="bulk",
                    workers=Workers(0, 0),
                ),
                "sum": RunView(
                    run("queued", at(9, 6), obstacle=Obstacle(at(9, 30), "vm:12", 1, "no task"))
                ),
            },
        ),
        "09:05 has been queued since 09:05",
        "step load has been queued in bulk since 09:05, 55m1s",
        "no worker consumes bulk",
        "its message was sent at 09:05",
        "step sum has been queued since 09:06, 54m1s",
        "its message has not been sent yet",
        "it was kept from starting at 09:30 by vm:12: no task",
        "step tell waits for the end of load, sum",
    ),
    "queued, of steps that wait for the same": told(
        RunView(
            run("queued", has_steps=True),
            FIVE_PAST,
            queued_steps={
                **{f"s{n}": RunView(run("queued"), workers=Workers(0, 0)) for n in range(60)},
                "mail": RunView(run("queued"), queue="q", workers=Workers(0, 0)),
            },
        ),
        "09:05 has been queued since 09:05",
        "steps s0, s1, s2, s3, s4 and 55 more have been queued since 09:05, 55m1s",
        "no worker is running",
        "its message has not been sent yet",
        "step mail has been queued in q since 09:05, 55m1s; its message has not been sent yet",
        "no worker consumes q",
    ),
    "running, and a step is queued": told(
        RunView(
            run("running", started_at=at(9, 5), has_steps=True),
            FIVE_PAST,
            steps=[
                StepRecord("load", "proj.load", 3, run("succeeded")),
                StepRecord("sum", "proj.sum", 2, run("running", worker="w3")),
                StepRecord("mail", "proj.mail", 2, run("queued", sent_at=at(9, 6))),
                StepRecord("tell", "proj.tell", 1, None),
                StepRecord("end", "proj.end", 0, None),
            ],
            queued_steps={"mail": RunView(run("queued", at(9, 6), sent_at=at(9, 6)), queue="q")},
        ),
        "09:05 has been running since 09:05",
        "step sum is running on worker w3",
        "step mail has been queued in q since 09:06, 54m1s",
        "its message was sent at 09:06",
        "step tell, end wait for the end of sum, mail",
    ),
    "queued where nobody works": told(
        RunView(run("queued", sent_at=FIVE_PAST), FIVE_PAST, "reports", workers=Workers(0, 0)),
        "09:05 has been queued in reports",
        "no worker consumes reports",
        "was sent",
    ),
    "queued where nobody knows its task": told(
        RunView(run("queued", sent_at=FIVE_PAST), FIVE_PAST, workers=Workers(2, 8, "proj.new")),
        "has been queued",
        "2 workers with 8 processes",
        "knows the task proj.new",
        "was sent",
    ),
    "queued where no pool has its limit": told(
        RunView(run("queued"), FIVE_PAST, "q", workers=Workers(1, 4, unmet="time_limit")),
        "has been queued",
        "1 worker",
        "their pool lacks what its job needs: time_limit",
        "message",
    ),
    "queued where all are busy": told(
        RunView(run("queued", sent_at=FIVE_PAST), FIVE_PAST, "reports", workers=Workers(1, 4)),
        "queued in reports",
        "1 worker with 4 processes in all for reports",
        "was sent",
    ),
    "running": told(
        RunView(
            run("running", started_at=at(9, 5, 1), attempts=(attempt(1, at(9, 5, 1), None),)),
            FIVE_PAST,
            usual=USUAL,
        ),
        "09:05 has been running since 09:05:01, 55m, usually finishes within 4m",
    ),
    "retrying": told(
        run("retrying", attempt=1, due_at=at(10, 0, 5), reason="ValueError: boom"),
        "09:05 is to be retried at 10:00:05: attempt 1 of 3 failed: ValueError: boom",
    ),
    "no tick": told(
        None,
        "09:03 is not a tick of orders: its schedule is every 5m",
        "the next tick after it is 09:05",
        at=at(9, 3),
    ),
    "to come": told(
        None,
        "10:05 is still to come, in 4m59s",
        at=at(10, 5),
        watermark=at(10, 0),
    ),
    "overdue, for Redis refuses writes": told(
        None,
        "09:05 was due 55m1s ago and has not been emitted yet",
        "nothing starts, since Redis refuses writes: MISCONF",
        watermark=NINE,
        beat=SILENT,
        refusal="Redis refuses writes: MISCONF",
    ),
    "overdue, for no beat leads": told(
        None,
        "09:05 was due 55m1s ago and has not been emitted yet",
        "no beat has led since 09:00",
        watermark=NINE,
        beat=SILENT,
    ),
    "succeeded after its deadline": told(
        tried("succeeded", at(9, 5, 1), at(9, 54)),
        "10:05 succeeded at 10:54",
        "10:05 had to succeed by 10:50 Europe/Berlin",
        job=record(NAMED),
    ),
    "succeeded in time": told(
        run("succeeded", finished_at=at(9, 10)),
        "10:05 succeeded at 10:10, before it started",
        job=record(NAMED),
    ),
    "running, and to succeed soon": told(
        run("running", started_at=at(9, 5), worker="w3"),
        "10:05 has been running",
        "10:05 has to succeed by 10:50 Europe/Berlin, in 10m",
        job=record(NAMED),
        now=at(9, 40),
    ),
    "queued for too long to succeed in time": told(
        run("queued"),
        "10:05 has been queued since 10:05",
        "its message has not been sent yet",
        "10:05 had to succeed by 10:50 Europe/Berlin, 4m ago",
        job=record(NAMED),
        now=at(9, 54),
    ),
    "running for longer than allowed": told(
        run("running", started_at=at(9, 5), worker="w3", rules=BOUNDED),
        "09:05 has been running",
        "an attempt took longer than `max_duration`, 30m",
        now=at(9, 40),
    ),
    "took longer than allowed": told(
        tried("failed", at(9, 5, 1), at(9, 54), rules=BOUNDED),
        "09:05 failed",
        "it was tried once",
        "an attempt took longer than `max_duration`, 30m",
    ),
    "took less than allowed": told(
        tried("succeeded", at(9, 5, 1), at(9, 5, 3), rules=BOUNDED),
        "09:05 succeeded",
        "it took less than `min_duration`, 1m: it may have found nothing",
    ),
    "older than the history": told(
        None,
        "there is no record of 09:05: the last 200 runs are kept, for up to seven days",
        watermark=at(10, 0),
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_outcome_is_told_with_its_cause(case: str) -> None:
    found, parts, more = TABLE[case]
    lines = sentences(found, **more)
    assert len(lines) == len(parts), lines
    for sentence, part in zip(lines, parts, strict=True):
        assert part in sentence


@pytest.mark.parametrize("state", RunState)
def test_every_state_has_an_answer(state: RunState) -> None:
    assert sentences(run(state.value))


def test_a_job_that_is_not_at_work_says_what_keeps_it() -> None:
    paused = record(paused="1", paused_note="stocktaking")
    assert sentences(None, at=None, job=paused, paused_at=at(9, 30), beat=SILENT) == [
        "orders has no runs yet",
        "the job has been paused since 09:30: stocktaking",
        "no beat has led since 09:00",
        "the next tick is at 10:05, in 4m59s; the pause excludes it",
    ]


NIGHTLY = JobSpec(
    name="orders", task="t", cron="0 2 * * *", timezone="Europe/Berlin", due_by="06:00"
)
#: 02:00 of Berlin.
TWO = at(1, 0)

#: when it is asked, and what is said of the deadline
DUE: dict[str, tuple[datetime, str | None]] = {
    "before the tick": (TWO - timedelta(seconds=1), None),
    "before the deadline": (at(4, 48), "02:00 has to succeed by 06:00 Europe/Berlin, in 12m"),
    "after it": (at(5, 4, 12), "02:00 had to succeed by 06:00 Europe/Berlin, 4m12s ago"),
}


@pytest.mark.parametrize("case", DUE)
def test_a_deadline_is_said(case: str) -> None:
    now, expected = DUE[case]
    job = record(NIGHTLY, last_success_start=str(round((TWO - DAY).timestamp() * 1000)))
    told = sentences(None, at=None, job=job, now=now)
    assert [sentence for sentence in told if "Europe/Berlin" in sentence] == (
        [expected] if expected else []
    )


def test_a_paused_job_has_no_deadline() -> None:
    job = record(NIGHTLY, last_success_start="1", paused="1")
    told = sentences(run("failed", TWO), at=None, job=job)
    assert not [sentence for sentence in told if "succeed" in sentence]


def test_a_pause_that_excluded_the_newest_run_is_named_once() -> None:
    paused = record(paused="1", paused_note="stocktaking")
    newest = run("excluded", reason="paused")
    found = sentences(newest, at=None, job=paused, paused_at=at(9, 0))
    assert len([sentence for sentence in found if "paused since" in sentence]) == 1


def test_what_several_open_runs_wait_for_is_named_of_each() -> None:
    no_workers = Workers(count=0, processes=0)
    views = [
        RunView(run("queued", when), when, queue="mail", workers=no_workers)
        for when in (NINE, FIVE_PAST)
    ]
    first, second = (f"{time} has been queued in mail" for time in ("09:00", "09:05"))
    told = sentences(None, at=None, open_runs=views, open_count=2, job=record())
    assert told[0].startswith(first)
    assert told[1] == "no worker consumes mail"
    [of_second] = [sentence for sentence in told if sentence.startswith(second)]
    assert "; no worker consumes mail" in of_second


def test_of_many_open_runs_some_are_told_and_the_others_counted() -> None:
    told = RunView(run("queued"), FIVE_PAST)
    told_of = sentences(None, at=None, open_runs=[told], open_count=9, job=record())
    assert told_of[0].startswith("09:05 has been queued")
    assert "and 8 more runs, waiting, queued or running" in told_of


def test_excluded_and_skipped_times_are_named_as_next_names_them() -> None:
    spec = JobSpec(
        name="orders",
        task="t",
        cron="30 2 * * *",
        timezone="Europe/Berlin",
        exclude=("2026-11-19",),
    )
    left_out = nominal_time("2026-11-19T02:30", spec, NOW)
    told = sentences(None, job=record(spec), at=left_out)
    assert "`exclude` removes it" in told[0]
    gap = nominal_time("2027-03-28T02:30", spec, NOW)
    told = sentences(None, job=record(spec), at=gap)
    assert "02:30 does not exist in Europe/Berlin, runs at 03:00" in told[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("09:05", at(9, 5)),
        ("9:05", at(9, 5)),
        ("23:55", at(23, 55) - timedelta(days=1)),
        ("2026-11-20T09:05", at(9, 5)),
        ("2026-11-20T10:05+01:00", at(9, 5)),
    ],
)
def test_a_time_of_the_clock_is_todays_or_the_last_such(text: str, expected: datetime) -> None:
    assert nominal_time(text, JOB, NOW) == expected


def test_a_minute_stands_for_the_one_tick_in_it() -> None:
    shifted = JobSpec(name="orders", task="t", every="5m", phase="20s")
    assert nominal_time("09:05", shifted, NOW) == at(9, 5, 20)
    often = JobSpec(name="orders", task="t", every="10s")
    assert nominal_time("09:05", often, NOW) == at(9, 5)


@pytest.mark.parametrize(
    "text", ["soon", "25:00", "2026-13-01", "0001-01-01", "9999-12-31T23:59", "9999-12-31"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        nominal_time(text, JOB, NOW)


def test_the_json_has_the_run_beside_the_sentences() -> None:
    asked = question(blocked("skipped", SLOW, reason="overlap"))
    shape = answer_shape(asked, answer(asked))
    assert (shape["run"]["run"], shape["run"]["blocked_by"]) == (
        tick_id("orders", FIVE_PAST),
        SLOW.id,
    )
    assert shape["sentences"] == answer(asked)
