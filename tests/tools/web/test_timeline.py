"""The timelines of all jobs and of one, on real records."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import Trace
from supervisor.operate.control import backfill
from supervisor.schedule.crowds import crowds_of, starting_at, starts_of
from supervisor.times import ms_of
from supervisor.web.axis import Window
from supervisor.web.jobs_query import JobsQuery
from supervisor.web.timeline import (
    JobTimeline,
    TimelineQuery,
    coming_of,
    coming_ticks,
    fitting_reach,
    marks_of,
    timeline_of_all,
    timeline_of_job,
)
from tests.jobs import admitted, at_work, begin, job, pause, run_id, ticks
from tests.waiting import wait_until

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
WINDOW = Window(NOON - timedelta(hours=1), NOON + timedelta(hours=1))


def run(name: str, ago: float, state: RunState = RunState.SUCCEEDED, seconds: float = 30) -> Trace:
    at = NOON - timedelta(seconds=ago)
    is_open = state is RunState.RUNNING
    has_begun = state not in (RunState.SKIPPED, RunState.WAITING)
    ended = None if is_open else at + timedelta(seconds=seconds)
    return Trace(name, state, at, at if has_begun else None, ended, None, None)


def spec(name: str = "nightly", **keys: object) -> JobSpec:
    return JobSpec(**{"name": name, "task": "proj.nightly", **keys})  # type: ignore[arg-type]


def test_runs_that_are_too_near_to_each_other_are_one_mark_of_the_worst() -> None:
    runs = [run("a", 603), run("b", 602, RunState.FAILED), run("c", 601), run("d", 300)]
    first, second = marks_of(runs, WINDOW, NOON)
    assert (first.run, first.state) == ("b", "failed")
    assert first.title.endswith("2 succeeded, 1 failed")
    assert second.run == "d"


def test_what_did_not_start_is_drawn_apart_from_what_ran() -> None:
    runs = [run("ran", 600), run("skipped", 600, RunState.SKIPPED)]
    assert [(mark.run, mark.is_hold) for mark in marks_of(runs, WINDOW, NOON)] == [
        ("ran", False),
        ("skipped", True),
    ]


def test_a_running_run_reaches_until_now() -> None:
    [mark] = marks_of([run("a", 1800, RunState.RUNNING)], WINDOW, NOON)
    assert mark.x + mark.width == pytest.approx(50)


def test_a_run_that_waited_for_another_has_a_mark_from_its_time_until_it_started() -> None:
    waited = replace(run("b", 600), nominal_at=NOON - timedelta(seconds=1500), blocked_by="a")
    wait, bar = marks_of([waited], WINDOW, NOON)
    assert (wait.run, wait.state, wait.is_hold) == ("b", "waiting", True)
    assert wait.width == pytest.approx(100 * 900 / 7200, abs=0.01)
    assert wait.title == "2026-03-01 11:35:00Z waiting, 15m, blocked by a"
    assert (bar.state, bar.is_hold) == ("succeeded", False)


def test_a_run_that_was_retried_has_not_waited_until_its_last_attempt(ledger: Ledger) -> None:
    spec = job(ledger, every="1h", overlap="queue_one")
    at_work(ledger, spec, 0)
    ledger.admit(ticks(spec, 3600))
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    blocked = run_id(spec, 3600)
    begin(ledger, blocked)
    assert holds(timeline_of_job(ledger, spec, "7d", ledger.now())) == ["waiting"]
    ledger.retry(blocked, "token", timedelta(), "it broke")
    wait_until(lambda: ledger.rescue() and ledger.run(blocked).state is RunState.QUEUED)
    begin(ledger, blocked, "another")
    assert holds(timeline_of_job(ledger, spec, "7d", ledger.now())) == []


def holds(timeline: JobTimeline) -> list[str]:
    return [mark.state for mark in timeline.row.marks if mark.is_hold]


def test_runs_of_a_backlog_are_drawn_where_they_ran(ledger: Ledger) -> None:
    spec = job(ledger, every="1h")
    for second in range(4):
        at_work(ledger, spec, second)
        ledger.finish(run_id(spec, second), "token", RunState.SUCCEEDED)
    days_ago = ms_of(ledger.now() - timedelta(days=3))
    for run in ledger.history(spec.name, 4):
        ledger.client.zadd(ledger.keys.history(spec.name), {run.id: days_ago})
    drawn = timeline_of_job(ledger, spec, "10m", ledger.now())
    assert drawn.row.words.startswith("4 succeeded")


def test_the_axis_of_one_job_reaches_as_far_as_its_last_runs() -> None:
    nightly = [run(str(day), 86_400 * day) for day in (3, 2, 1)]
    assert fitting_reach(nightly, NOON) == "7d"
    assert fitting_reach([run("a", 3000), run("b", 60)], NOON) == "1h"
    assert fitting_reach([], NOON) == "24h"


def test_times_to_come_last_as_long_as_usual() -> None:
    hourly = spec(cron="30 * * * *")
    [coming] = coming_of(coming_ticks(hourly, WINDOW, NOON), hourly.schedule, WINDOW, usual=600)
    assert (coming.x, coming.width) == (75, pytest.approx(100 / 12, abs=0.01))
    assert coming.title == "due 2026-03-01 12:30:00Z, takes 10m as a rule"


def test_more_times_than_can_be_told_apart_are_a_band() -> None:
    often = spec(every="10s")
    [band] = coming_of(coming_ticks(often, WINDOW, NOON), often.schedule, WINDOW, usual=1)
    assert band.is_band
    assert band.title.startswith("every 10s, from ")


def test_a_time_that_several_jobs_share_is_a_crowd_with_its_remedy() -> None:
    specs = {name: spec(name, cron="0 0 * * *") for name in "abcd"}
    specs |= {"e": spec("e", every="1d"), "late": spec("late", cron="5 0 * * *")}
    specs["spread"] = spec("spread", cron="0 0 * * *", jitter="10m")
    starts, are_all = starts_of(specs.values(), NOON, NOON + timedelta(days=3))
    assert are_all
    [crowd] = crowds_of(starts, specs, NOON)
    assert (crowd.at, crowd.times) == (NOON + timedelta(hours=12), 3)
    assert [*crowd.jobs] == ["a", "b", "c", "d", "e"]
    assert crowd.remedy == "`jitter`"
    grids = {name: spec(name, every="5m") for name in "abcde"}
    [crowd] = crowds_of(starts_of(grids.values(), NOON, NOON)[0], grids, NOON)
    assert crowd.remedy == "`phase` or `jitter`"
    assert starting_at(crowd.at, [*grids.values(), specs["late"]]) == set("abcde")


def test_the_address_keeps_what_it_asks_for() -> None:
    asked = {"reach": "6h", "at": "2026-03-01T00:00:00Z", "search": "in", "page": "2", "label": "a"}
    query = TimelineQuery.of(asked, NOON)
    assert query.url(page=2) == (
        "timeline?search=in&label=a&reach=6h&at=2026-03-01T00%3A00%3A00Z&page=2"
    )
    assert query.zoomed(1) == "timeline?search=in&label=a&at=2026-03-01T00%3A00%3A00Z"
    odd = {"reach": "1y", "at": "9999-99", "starts": "+10000", "page": "x"}
    assert TimelineQuery.of(odd, NOON) == TimelineQuery(JobsQuery())
    assert TimelineQuery.of({"at": "0001-01-01"}, NOON).at is None


def test_failing_jobs_come_first_and_paused_ones_have_no_times_to_come(ledger: Ledger) -> None:
    failing = job(ledger, "z-failing", every="1h")
    at_work(ledger, failing, 0)
    ledger.finish(run_id(failing, 0), "token", RunState.FAILED, "it broke")
    pause(ledger, job(ledger, "paused", every="1h"))
    admitted(ledger, 0, name="fine", every="1h")
    drawn = timeline_of_all(ledger, TimelineQuery(JobsQuery()), ledger.now())
    assert [row.name for row in drawn.rows] == ["z-failing", "fine", "paused"]
    first, _, paused = drawn.rows
    assert first.is_bad
    [mark] = first.marks
    assert "it broke" in mark.title
    assert len(first.coming) == 24
    assert (paused.coming, paused.words) == ([], "no runs; paused")


def test_nothing_is_drawn_before_the_job_was_loaded(ledger: Ledger) -> None:
    began_at = ledger.now()
    spec = job(ledger, every="1h", overlap="queue_all")
    midnight = began_at.replace(hour=0, minute=0, second=0, microsecond=0)
    past = [midnight - timedelta(hours=hours) for hours in (50, 49, 48)]
    [first, *_] = backfill(ledger, spec, past)
    begin(ledger, first.run_id)
    [running, waiting, _] = ledger.history(spec.name, 3)[::-1]
    assert (running.state, waiting.state) == (RunState.RUNNING, RunState.WAITING)
    query, now = TimelineQuery.of({"reach": "7d"}, began_at), ledger.now()
    [row] = timeline_of_all(ledger, query, now).rows
    window = query.window(now)
    drawn = [mark.x for mark in row.marks] + [tick.x for tick in row.coming]
    assert len(row.marks) >= 1
    assert min(drawn) >= window.x(began_at - timedelta(seconds=1))


def test_a_label_has_a_row_for_each_of_its_values(ledger: Ledger) -> None:
    failing = job(ledger, "a", every="1h", labels={"team": "mail", "tenant": "eu"})
    at_work(ledger, failing, 0)
    ledger.finish(run_id(failing, 0), "token", RunState.FAILED, "it broke")
    admitted(ledger, 0, name="b", every="1h", labels={"team": "mail"})
    job(ledger, "c", every="1h", labels={"team": "billing"})
    job(ledger, "d", every="1h")
    query = TimelineQuery.of({"by": "team"}, ledger.now())
    drawn = timeline_of_all(ledger, query, ledger.now())
    assert [(row.name, row.about) for row in drawn.rows] == [
        ("team=mail", "2 jobs, 1 failing"),
        ("team=billing", "1 job"),
        ("without team", "1 job"),
    ]
    assert len(drawn.rows[0].coming) == 48
    assert drawn.label_names == ["team", "tenant"]
    assert query.row_url("team=mail") == "timeline?label=team%3Dmail"


def test_the_page_names_crowds_and_lists_their_jobs(reader: httpx.Client, ledger: Ledger) -> None:
    for name in ("a", "b", "c", "d", "e"):
        job(ledger, name, every=None, cron="0 0 * * *")
    job(ledger, "other", every=None, cron="1 0 * * *")
    text = reader.get("/timeline").text
    assert "5 jobs start at" in text
    midnight = (ledger.now() + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    only = reader.get("/timeline", params={"starts": midnight.isoformat()}).text
    assert 'href="jobs/a"' in only
    assert 'href="jobs/other"' not in only
