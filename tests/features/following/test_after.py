"""Jobs that follow others: what becomes of them as the runs that they follow end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from supervisor import jobs as at_run_time
from supervisor.catalog.entries import Entries
from supervisor.catalog.load import load
from supervisor.catalog.refusals import clashes
from supervisor.catalog.schedule_files import ScheduleSet
from supervisor.errors import InvalidJob
from supervisor.features.following.step import Following
from supervisor.features.following.store import Followers
from supervisor.job.run import Run, RunState
from supervisor.job.run_ids import manual_id, tick_id
from supervisor.job.spec import JobSpec
from supervisor.ledger.admission import Placement
from supervisor.ledger.attempt import Work
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.run_request import RunRequest
from supervisor.schedule.ticks import PassedOver
from tests.commands import Supervisor
from tests.damage import lose, lose_run
from tests.jobs import MIDNIGHT, begin, granted_of, pause, run_id, states, ticks
from tests.logged import capture_logs

SUCCEEDED, FAILED = RunState.SUCCEEDED, RunState.FAILED


def loaded(ledger: Ledger, entries: Entries, **jobs: dict[str, Any]) -> dict[str, JobSpec]:
    """These jobs and no others, as schedule files load them; every second without other words."""
    specs = {}
    for name, keys in jobs.items():
        times = {} if "after" in keys or "every" in keys else {"every": "1s"}
        specs[name] = JobSpec(**{"name": name, "task": f"proj.{name}", **times, **keys})
    # Long ago, so that the ticks of the tests are still to come.
    load(ledger, entries, specs, "digest", MIDNIGHT - timedelta(days=1))
    return specs


def turn(ledger: Ledger) -> None:
    """What beat does of it in a turn."""
    Following(ledger).deal_with_endings()


def end(ledger: Ledger, run: str, state: RunState = SUCCEEDED) -> None:
    begin(ledger, run, f"token of {run}")
    ledger.finish(run, f"token of {run}", state)


def ran(ledger: Ledger, spec: JobSpec, second: int, state: RunState = SUCCEEDED) -> None:
    ledger.admit(ticks(spec, second))
    end(ledger, run_id(spec, second), state)


def runs(ledger: Ledger, job: str) -> list[Run]:
    return list(reversed(ledger.history(job, 5_000)))


def ids(found: Sequence[Run]) -> list[str]:
    return [run.id for run in found]


def test_a_job_runs_for_the_time_of_the_run_it_follows(ledger: Ledger, entries: Entries) -> None:
    jobs = loaded(ledger, entries, extract={}, load={"after": ["extract"]})
    ran(ledger, jobs["extract"], 5)
    turn(ledger)
    [run] = runs(ledger, "load")
    assert (run.id, run.state) == (run_id(jobs["load"], 5), RunState.QUEUED)
    assert run.nominal_at == MIDNIGHT + timedelta(seconds=5)
    assert ledger.outbox() == [run.id]


def fan_in(ledger: Ledger, entries: Entries, **keys: Any) -> dict[str, JobSpec]:
    sources = [f"source-{number}" for number in range(50)]
    return loaded(ledger, entries, **{name: {} for name in sources}, all={"after": sources, **keys})


@pytest.mark.parametrize("policy", ["success", "done"])
def test_a_fan_in_of_50_with_a_failure_in_the_middle(
    ledger: Ledger, entries: Entries, policy: str
) -> None:
    jobs = fan_in(ledger, entries, after_policy=policy)
    for number in range(50):
        ran(ledger, jobs[f"source-{number}"], 1, FAILED if number == 25 else SUCCEEDED)
        if number % 6 == 0:
            turn(ledger)
    assert policy == "success" or not runs(ledger, "all")
    turn(ledger)
    [run] = runs(ledger, "all")
    if policy == "done":
        assert run.state is RunState.QUEUED
        return
    assert (run.state, run.reason) == (RunState.SKIPPED, "upstream")
    assert run.blocked_by == run_id(jobs["source-25"], 1)
    assert ledger.job("all").counters["skipped:upstream"] == 1
    for number in range(50):  # the next time is another matter
        ran(ledger, jobs[f"source-{number}"], 2)
    turn(ledger)
    assert states(ledger, jobs["all"]) == ["skipped", "queued"]


def test_a_backfill_makes_up_for_the_failure(ledger: Ledger, entries: Entries) -> None:
    jobs = loaded(ledger, entries, a={}, b={}, both={"after": ["a", "b"]})
    ran(ledger, jobs["a"], 1, FAILED)
    ran(ledger, jobs["b"], 1)
    turn(ledger)
    again = f"{run_id(jobs['a'], 1)}+01ARZ3NDEKTSV4RRFFQ69G5FAV"
    at = MIDNIGHT + timedelta(seconds=1)
    for _ in range(2):
        ledger.admit_request(jobs["a"], RunRequest(run_id=again, nominal_at=at))
        end(ledger, again)
        turn(ledger)
        again += "2"
    skipped, made_up = runs(ledger, "both")
    assert skipped.state is RunState.SKIPPED
    assert made_up.id == f"{skipped.id}+01ARZ3NDEKTSV4RRFFQ69G5FAV"


def as_before(ledger: Ledger, endings: list[str], **memories: dict[str, str]) -> None:
    """The beat that dealt with these endings died before it committed what jobs know of them."""
    for job, memory in memories.items():
        lose(ledger, ledger.keys.following(job))
        if memory:
            ledger.client.hset(ledger.keys.following(job), mapping=memory)
    ledger.client.rpush(ledger.keys.endings, *endings)


def test_a_beat_that_died_before_it_committed_admits_no_run_twice(
    ledger: Ledger, entries: Entries
) -> None:
    jobs = loaded(
        ledger, entries, a={}, b={"after": ["a"]}, c={"after": ["a"], "after_match": "latest"}
    )
    ran(ledger, jobs["a"], 1)
    endings = Followers(ledger).endings(10)
    turn(ledger)
    as_before(ledger, endings, b={}, c={})
    end(ledger, run_id(jobs["b"], 1))
    turn(ledger)
    assert states(ledger, jobs["b"]) == ["succeeded"]
    assert states(ledger, jobs["c"]) == ["queued"]
    assert not Followers(ledger).endings(10)


def test_endings_that_another_beat_dealt_with_change_nothing(
    ledger: Ledger, entries: Entries
) -> None:
    jobs = loaded(ledger, entries, a={}, b={"after": ["a"]})
    ran(ledger, jobs["a"], 1)
    texts = Followers(ledger).endings(10)
    turn(ledger)
    ran(ledger, jobs["a"], 2)
    assert Followers(ledger).commit(texts, []) is None
    assert len(Followers(ledger).endings(10)) == 1


def test_a_commit_that_is_sent_again_takes_nothing_more_off(
    ledger: Ledger, entries: Entries
) -> None:
    for second in (1, 2):
        for most in (2, 3):  # edited once before the first end, and twice before the second
            jobs = loaded(ledger, entries, a={}, b={"after": ["a"], "max_running": most})
        ran(ledger, jobs["a"], second)
    texts = Followers(ledger).endings(2)
    assert Followers(ledger).commit(texts, []) is not None
    assert Followers(ledger).commit(texts, []) is None  # the reply was lost, and it is asked again
    assert len(Followers(ledger).endings(10)) == 3


def test_an_ending_that_cannot_be_read_stops_nothing(ledger: Ledger, entries: Entries) -> None:
    jobs = loaded(ledger, entries, a={}, b={"after": ["a"]})
    as_before(ledger, ['{"job": "a", "state": "of tomorrow"}', "half"])
    ran(ledger, jobs["a"], 1)
    turn(ledger)
    assert states(ledger, jobs["b"]) == ["queued"]
    assert not Followers(ledger).endings(10)


def test_latest_runs_once_all_have_succeeded_since_its_last_run(
    ledger: Ledger, entries: Entries
) -> None:
    keys = {"after": ["a", "b"], "after_match": "latest", "overlap": "allow"}
    jobs = loaded(ledger, entries, a={}, b={}, both=keys)
    for second in (1, 2):
        ran(ledger, jobs["a"], second)
    ran(ledger, jobs["b"], 2, FAILED)
    turn(ledger)
    assert not runs(ledger, "both")
    ran(ledger, jobs["b"], 3)
    turn(ledger)
    assert ids(runs(ledger, "both")) == [run_id(jobs["both"], 3) + "+b"]
    ran(ledger, jobs["b"], 4)
    turn(ledger)
    assert len(runs(ledger, "both")) == 1
    ran(ledger, jobs["a"], 4)
    turn(ledger)
    assert len(runs(ledger, "both")) == 2


def test_each_of_two_runs_that_are_triggered_at_once_is_followed(
    ledger: Ledger, entries: Entries
) -> None:
    all_at_once = {"overlap": "allow"}
    jobs = loaded(ledger, entries, a=all_at_once, b={"after": ["a"], **all_at_once})
    triggered = [
        ledger.admit_request(
            jobs["a"], RunRequest(run_id=manual_id("a"), nominal_at=MIDNIGHT)
        ).run_id
        for _ in range(3)
    ]
    for run, state in zip(triggered, (SUCCEEDED, FAILED, SUCCEEDED), strict=True):
        end(ledger, run, state)
    turn(ledger)
    after = [run.replace("a@", "b@") for run in triggered]
    assert sorted(ids(runs(ledger, "b"))) == sorted(after)
    assert [ledger.run(run).state.value for run in after] == ["queued", "skipped", "queued"]


def test_of_latest_the_last_to_end_may_be_of_a_time_that_had_a_run(
    ledger: Ledger, entries: Entries
) -> None:
    """The id of a run names the end that it followed: two jobs may end for one time."""
    keys = {"after": ["quick", "slow"], "after_match": "latest", "overlap": "allow"}
    jobs = loaded(ledger, entries, quick={}, slow={"overlap": "allow"}, both=keys)
    ran(ledger, jobs["slow"], 1)
    ledger.admit(ticks(jobs["slow"], 2))
    ran(ledger, jobs["quick"], 2)
    turn(ledger)
    ran(ledger, jobs["quick"], 3)
    end(ledger, run_id(jobs["slow"], 2))
    endings = Followers(ledger).endings(10)
    turn(ledger)
    first = run_id(jobs["both"], 2)
    assert ids(runs(ledger, "both")) == [f"{first}+quick", f"{first}+slow"]
    as_before(ledger, endings, both={})
    turn(ledger)
    assert len(runs(ledger, "both")) == 2


def scheduled(ledger: Ledger, entries: Entries, **keys: Any) -> dict[str, JobSpec]:
    """`report` has times of its own, and follows `extract`."""
    keys = {"every": "1s", "after": ["extract"], "after_match": "same_time", **keys}
    return loaded(ledger, entries, extract={}, report=keys)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_tick_waits_for_the_run_of_its_time(
    ledger: Ledger, entries: Entries, is_first: bool
) -> None:
    jobs = scheduled(ledger, entries)
    if is_first:
        ran(ledger, jobs["extract"], 1)
        turn(ledger)
    [admission] = ledger.admit(ticks(jobs["report"], 1))
    assert admission.placement is Placement.HOLD
    assert states(ledger, jobs["report"]) == ["waiting"]
    assert runs(ledger, "report")[0].waits_for_others
    if not is_first:
        turn(ledger)
        assert states(ledger, jobs["report"]) == ["waiting"]
        ran(ledger, jobs["extract"], 1)
    turn(ledger)
    assert states(ledger, jobs["report"]) == ["queued"]
    assert ledger.job("report").counters["ticks"] == 1
    end(ledger, run_id(jobs["report"], 1))


def test_a_tick_is_skipped_once_the_run_it_follows_fails(ledger: Ledger, entries: Entries) -> None:
    jobs = scheduled(ledger, entries)
    ledger.admit(ticks(jobs["report"], 1))
    ran(ledger, jobs["extract"], 1, FAILED)
    with capture_logs() as logs:
        turn(ledger)
    [run] = runs(ledger, "report")
    assert (run.state, run.reason) == (RunState.SKIPPED, "upstream")
    assert run.blocked_by == run_id(jobs["extract"], 1)
    assert [(entry["event"], entry["run"]) for entry in logs] == [("run skipped", run.id)]


def test_a_tick_waits_no_longer_than_max_wait(ledger: Ledger, entries: Entries) -> None:
    jobs = scheduled(ledger, entries, max_wait="0s")
    ledger.admit(ticks(jobs["report"], 1))
    turn(ledger)
    ledger.rescue()
    [run] = runs(ledger, "report")
    assert (run.state, run.reason) == (RunState.SKIPPED, "wait_expired")
    ran(ledger, jobs["extract"], 1)
    turn(ledger)
    assert states(ledger, jobs["report"]) == ["skipped"]


def test_a_range_of_missed_ticks_ends_the_ticks_that_wait_for_them(
    ledger: Ledger, entries: Entries
) -> None:
    jobs = scheduled(ledger, entries, overlap="allow")
    ledger.admit(ticks(jobs["report"], 1, 2, 9))
    turn(ledger)
    first, last = (MIDNIGHT + timedelta(seconds=second) for second in (1, 5))
    missed = PassedOver(jobs["extract"], RunState.MISSED, "window", first, last, 5)
    ledger.pass_over([missed])
    turn(ledger)
    assert states(ledger, jobs["report"]) == ["skipped", "skipped", "waiting"]


def test_a_missed_range_is_no_end_of_a_run_in_it_that_its_worker_restored(
    ledger: Ledger, entries: Entries
) -> None:
    same_time = {"after": ["extract"], "after_match": "same_time", "overlap": "allow"}
    jobs = loaded(
        ledger,
        entries,
        extract={"overlap": "allow"},
        load=same_time,
        report={"every": "1s", **same_time},
    )
    extract = jobs["extract"]
    ledger.admit(ticks(extract, 0))
    ledger.admit(ticks(jobs["report"], 1, 2, 3, 5))
    turn(ledger)
    for second in (2, 5):
        [tick] = ticks(extract, second)
        work = Work(tick.run_id, extract.name, tick.nominal_at, extract.rules(), "worker")
        ledger.restore(work, f"token {second}", granted_of(ledger))
    by_hand = ledger.trigger(jobs["load"], RunRequest(after=run_id(extract, 5)))
    first, last = (MIDNIGHT + timedelta(seconds=second) for second in (1, 5))
    ledger.pass_over([PassedOver(extract, RunState.MISSED, "window", first, last, 5)])
    turn(ledger)
    assert states(ledger, jobs["report"]) == ["skipped", "waiting", "skipped", "waiting"]
    assert states(ledger, jobs["load"]) == ["waiting"]
    for second in (2, 5):
        ledger.finish(run_id(extract, second), f"token {second}", SUCCEEDED)
    turn(ledger)
    assert states(ledger, jobs["report"]) == ["skipped", "queued", "skipped", "queued"]
    assert [run.state for run in runs(ledger, "load")] == [RunState.QUEUED] * 3
    assert by_hand.id in ids(runs(ledger, "load"))


def test_of_latest_one_tick_waits_at_a_time(ledger: Ledger, entries: Entries) -> None:
    jobs = scheduled(ledger, entries, after_match="latest")
    ledger.admit(ticks(jobs["report"], 1, 2))
    ledger.admit(ticks(jobs["report"], 3))
    turn(ledger)
    assert states(ledger, jobs["report"]) == ["skipped", "skipped", "waiting"]
    assert runs(ledger, "report")[0].blocked_by == run_id(jobs["report"], 2)
    ran(ledger, jobs["extract"], 2)
    turn(ledger)
    assert states(ledger, jobs["report"])[-1] == "queued"


@pytest.mark.parametrize(
    ("keys", "state"), [({"every": "1s"}, "queued"), (None, "cancelled")], ids=["freed", "removed"]
)
def test_an_edit_decides_the_ticks_that_wait(
    ledger: Ledger, entries: Entries, keys: dict[str, Any] | None, state: str
) -> None:
    jobs = scheduled(ledger, entries)
    ledger.admit(ticks(jobs["report"], 1))
    turn(ledger)
    loaded(ledger, entries, extract={}, **({} if keys is None else {"report": keys}))
    turn(ledger)
    assert ledger.run(run_id(jobs["report"], 1)).state == state
    assert not ledger.client.exists(ledger.keys.following("report"))
    assert not ledger.client.exists(ledger.keys.followers("extract"))


def test_a_paused_job_follows_nobody(ledger: Ledger, entries: Entries) -> None:
    jobs = loaded(ledger, entries, a={}, b={"after": ["a"]}, c={"after": ["b"]})
    pause(ledger, jobs["b"])
    ran(ledger, jobs["a"], 1)
    turn(ledger)
    turn(ledger)
    assert states(ledger, jobs["b"]) == ["excluded"]
    assert states(ledger, jobs["c"]) == ["skipped"]


def test_a_job_that_nobody_follows_leaves_nothing(ledger: Ledger, entries: Entries) -> None:
    jobs = loaded(ledger, entries, a={}, b={"after": ["a"]})
    ran(ledger, jobs["a"], 1)
    turn(ledger)
    end(ledger, run_id(jobs["b"], 1))
    assert not Followers(ledger).endings(10)


def test_many_endings_are_dealt_with_in_order(ledger: Ledger, entries: Entries) -> None:
    jobs = loaded(ledger, entries, a={}, b={"after": ["a"], "overlap": "allow", "history": 5000})
    for second in range(1200):
        ledger.admit(ticks(jobs["a"], second))
        end(ledger, run_id(jobs["a"], second))
    while Followers(ledger).endings(1):
        turn(ledger)
    first, *_, last = runs(ledger, "b")
    assert (first.id, last.id) == (
        tick_id("b", MIDNIGHT),
        tick_id("b", MIDNIGHT + timedelta(seconds=1199)),
    )
    assert len(Following(ledger)._followers.memories(["b"])["b"].times) == 100


# What people are told.


def test_why_says_what_a_tick_waits_for(
    ledger: Ledger, entries: Entries, supervisor: Supervisor
) -> None:
    report = {"after": ["extract", "prices"], "every": "1s", "max_wait": "2h"}
    keys = {"after_match": "same_time", **report}
    jobs = loaded(ledger, entries, extract={}, prices={}, report=keys)
    ran(ledger, jobs["extract"], 1)
    ledger.admit(ticks(jobs["prices"], 1))
    begin(ledger, run_id(jobs["prices"], 1))
    ledger.admit(ticks(jobs["report"], 1))
    turn(ledger)
    output = supervisor("why", run_id(jobs["report"], 1)).stdout
    assert "for extract (succeeded) and prices (not yet)" in output
    assert "(`max_wait`)" in output


def test_why_says_what_a_job_without_a_schedule_waits_for(
    ledger: Ledger, entries: Entries, supervisor: Supervisor
) -> None:
    jobs = loaded(ledger, entries, extract={}, prices={}, load={"after": ["extract", "prices"]})
    assert (
        "load has no schedule: it runs after extract (not yet)" in supervisor("why", "load").stdout
    )
    ran(ledger, jobs["extract"], 1)
    turn(ledger)
    output = supervisor("why", "load").stdout
    assert "it runs after extract (succeeded) and prices (not yet)" in output
    ran(ledger, jobs["prices"], 1, FAILED)
    turn(ledger)
    output = supervisor("why", run_id(jobs["load"], 1)).stdout
    assert "was skipped: prices's run of" in output
    assert "which it follows, failed" in output


def test_a_trigger_after_a_run_is_told_so(
    ledger: Ledger, entries: Entries, supervisor: Supervisor
) -> None:
    jobs = loaded(ledger, entries, a={}, b={})
    ledger.admit(ticks(jobs["a"], 1))
    first = run_id(jobs["a"], 1)
    assert f"waiting: waits for {first}" in supervisor("trigger", "b", "--after", first).stdout
    assert f", for {first}" in supervisor("why", "b").stdout
    assert supervisor("trigger", "b", "--after", "a@nothing").exit_code == 3
    both = supervisor("trigger", "b", "--after", first, "--at", "2h")
    assert "until a time or for another run" in both.output


def test_a_trigger_whose_run_ends_as_it_begins_to_wait_gets_one_place(
    ledger: Ledger, entries: Entries, supervisor: Supervisor
) -> None:
    jobs = loaded(ledger, entries, a={}, b={"overlap": "queue_all"})
    ledger.admit(ticks(jobs["a"], 1) + ticks(jobs["b"], 1))
    supervisor("trigger", "b", "--after", run_id(jobs["a"], 1))
    end(ledger, run_id(jobs["a"], 1))
    with capture_logs() as logs:
        turn(ledger)
    assert [entry["event"] for entry in logs] == ["run waiting"]


def test_a_trigger_does_not_wait_for_a_run_whose_record_is_gone(
    ledger: Ledger, entries: Entries, supervisor: Supervisor
) -> None:
    jobs = loaded(ledger, entries, a={}, b={})
    ledger.admit(ticks(jobs["a"], 1))
    first = run_id(jobs["a"], 1)
    supervisor("trigger", "b", "--after", first)
    lose_run(ledger, first)
    turn(ledger)
    [run] = runs(ledger, "b")
    assert (run.state, run.reason, run.blocked_by) == (RunState.SKIPPED, "upstream", first)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"after": ["nigthly"]}, "there is no job 'nigthly' (did you mean 'nightly'?)"),
        ({"after": ["third"]}, "a circle, second after third after second"),
    ],
)
def test_a_job_that_is_put_has_someone_to_follow(
    app: Celery, keys: dict[str, Any], said: str
) -> None:
    at_run_time.put("nightly", task="t", app=app)
    at_run_time.put("second", task="t", after=["nightly"], app=app)
    at_run_time.put("third", task="t", after=["second"], app=app)
    with pytest.raises(InvalidJob) as error:
        at_run_time.put("second", task="t", app=app, **keys)
    assert said in str(error.value)
    with pytest.raises(InvalidJob, match="'nightly' would be removed"):
        at_run_time.remove("nightly", app=app)
    many = {"a": {"task": "t", "after": ["b"]}, "b": {"task": "t"}}
    assert at_run_time.put_many(many, app=app).added == ("a", "b")


def test_files_keep_the_jobs_that_others_follow(
    app: Celery, ledger: Ledger, entries: Entries
) -> None:
    loaded(ledger, entries, a={})
    at_run_time.put("b", task="t", after=["a"], app=app, by="ann")
    [problem] = clashes(ledger.loaded(), ScheduleSet({}, "", {}))
    assert "job 'b' (put at" in problem.what
    assert "follows this job, which is gone" in problem.what
