"""Progress and log lines in the ledger: whose word counts, what is kept, for how long."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.guard.progress import TIMEOUT, Reporter, clock
from supervisor.job.reports import LINES_KEPT, Reported, ReportedLine, ReportedProgress
from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import HISTORY_TTL, MOST_TRACEBACKS
from supervisor.ledger.runs import Reports
from supervisor.settings import Settings
from supervisor.store.connection import connect_for_heartbeat
from supervisor.store.keys import Keys
from supervisor.testing import lease_runs_out
from supervisor.times import ms_of
from tests.jobs import admitted, begin, begun, job, run_id, ticks
from tests.logged import capture_logs
from tests.ports import free_port
from tests.waiting import scaled, wait_until

TTL_MS = HISTORY_TTL // timedelta(milliseconds=1)


@pytest.fixture
def run(ledger: Ledger) -> str:
    """At work, under the token ``token``."""
    spec = begun(ledger, max_retries=1)
    return run_id(spec, 0)


def said(
    *texts: str, batch: int = 1, done: int | None = None, total: int | None = None
) -> Reported:
    progress = None if done is None else ReportedProgress(done, total, "so far", 90.0)
    lines = tuple(ReportedLine(number, text, 90.0) for number, text in enumerate(texts, 1))
    return Reported(batch, progress, lines)


def write(ledger: Ledger, run: str, what: Reported, token: str = "token") -> bool:
    """Ten seconds after it was said."""
    return ledger.reports.write(run, token, what, 100.0)


def texts(ledger: Ledger, run: str) -> list[str]:
    return [line.text for line in ledger.reports.lines(run)]


def test_what_a_run_says_is_readable_with_the_instant_it_was_said(ledger: Ledger, run: str) -> None:
    assert ledger.run(run).progress is None
    assert write(ledger, run, said("one", "two", done=2, total=8))
    progress = ledger.run(run).progress
    assert progress is not None
    assert (progress.done, progress.total, progress.text, progress.share) == (2, 8, "so far", 0.25)
    first, second = ledger.reports.lines(run)
    assert (first.text, first.number, first.attempt, first.step) == ("one", 1, 1, None)
    assert (second.text, second.number) == ("two", 2)
    for at in (progress.at, first.at):
        ago = (ledger.now() - at).total_seconds()
        assert 10 <= ago < 10 + scaled(2)


def test_a_progress_without_a_total_has_none(ledger: Ledger, run: str) -> None:
    write(ledger, run, said(done=2, total=8))
    write(ledger, run, said(done=3, batch=2))
    progress = ledger.run(run).progress
    assert progress is not None
    assert (progress.done, progress.total, progress.share) == (3, None, None)


def test_a_report_that_arrives_twice_is_written_once(ledger: Ledger, run: str) -> None:
    assert write(ledger, run, said("one"))
    assert write(ledger, run, said("one"))
    assert write(ledger, run, said("two", batch=2))
    assert texts(ledger, run) == ["one", "two"]


def test_a_stale_attempt_can_say_nothing(ledger: Ledger, run: str) -> None:
    lease_runs_out(ledger, run)
    ledger.rescue()
    assert not write(ledger, run, said("queued again", done=1))
    begin(ledger, run, "second")
    assert not write(ledger, run, said("stale", done=1))
    assert write(ledger, run, said("mine"), "second")
    assert texts(ledger, run) == ["mine"]
    assert ledger.run(run).progress is None


def test_a_run_that_has_ended_or_is_unknown_can_say_nothing(ledger: Ledger, run: str) -> None:
    ledger.finish(run, "token", RunState.SUCCEEDED)
    assert not write(ledger, run, said("late", done=1))
    assert not write(ledger, "nobody@1", said("who", done=1))
    assert texts(ledger, run) == texts(ledger, "nobody@1") == []


def test_a_retry_begins_its_progress_anew_and_goes_on_with_the_log(
    ledger: Ledger, run: str
) -> None:
    write(ledger, run, said("first", done=7))
    ledger.retry(run, "token", timedelta())
    kept = ledger.run(run).progress
    assert kept is not None
    assert kept.done == 7
    ledger.rescue()
    begin(ledger, run, "second")
    assert ledger.run(run).progress is None
    assert write(ledger, run, said("second", done=1), "second")
    lines = ledger.reports.lines(run)
    assert [(line.attempt, line.text) for line in lines] == [(1, "first"), (2, "second")]


def test_the_newest_lines_of_a_run_are_kept(ledger: Ledger, run: str) -> None:
    write(ledger, run, said(*map(str, range(LINES_KEPT))))
    write(ledger, run, said("the last", batch=2))
    kept = texts(ledger, run)
    assert len(kept) == LINES_KEPT
    assert (kept[0], kept[-1]) == ("1", "the last")


def test_a_log_goes_on_after_a_line_that_is_known(ledger: Ledger, run: str) -> None:
    write(ledger, run, said("one", "two"))
    first, second = ledger.reports.lines(run)
    assert ledger.reports.lines(run, first.id) == [second]
    assert ledger.reports.lines(run, second.id) == []


def test_a_log_lives_as_long_as_its_run_is_readable(ledger: Ledger, run: str) -> None:
    write(ledger, run, said("one"))
    log = ledger.keys.log(run)
    assert TTL_MS - 10_000 < ledger.client.pttl(log) <= TTL_MS
    until = ledger.client.pexpiretime(log)
    wait_until(lambda: ms_of(ledger.now()) + TTL_MS > until)
    ledger.finish(run, "token", RunState.SUCCEEDED)
    assert ledger.client.pexpiretime(log) > until


def test_a_run_that_leaves_the_history_takes_its_log_along(ledger: Ledger) -> None:
    spec = job(ledger, history=1)
    first, second = run_id(spec, 0), run_id(spec, 1)
    ledger.admit(ticks(spec, 0))
    begin(ledger, first)
    write(ledger, first, said("one"))
    ledger.finish(first, "token", RunState.SUCCEEDED)
    ledger.admit(ticks(spec, 1))
    assert [record.id for record in ledger.history(spec.name)] == [second]
    assert not ledger.client.exists(ledger.keys.log(first))


def test_a_step_logs_to_the_whole_run_under_its_label(ledger: Ledger) -> None:
    steps = [{"task": "proj.load", "priority": 1, "foreach": "files"}]
    spec = admitted(ledger, 0, task=None, steps=steps, params={"files": [*range(4)]})
    run = run_id(spec, 0)
    step = f"{run}~load#3"
    ledger.steps.expand(f"{run}~load", [*range(4)])
    begin(ledger, step)
    assert write(ledger, step, said("of the step", done=1))
    labels = [(line.step, line.text) for line in ledger.reports.lines(run)]
    assert labels == [("load#3", "of the step")]
    assert texts(ledger, step) == ["of the step"]
    assert ledger.run(run).progress is None
    assert ledger.run(step).progress is not None


# How attempts failed.


def failures(ledger: Ledger, run: str) -> list[tuple[str | None, int, str]]:
    return [(found.step, found.attempt, found.traceback) for found in ledger.reports.failures(run)]


def test_the_last_failed_attempt_keeps_its_traceback(ledger: Ledger, run: str) -> None:
    ledger.retry(run, "token", timedelta(), "not so", traceback="the first")
    assert failures(ledger, run) == [(None, 1, "the first")]
    ledger.rescue()
    begin(ledger, run, "second")
    ledger.finish(run, "second", RunState.FAILED, "not so", traceback="the second")
    assert failures(ledger, run) == [(None, 2, "the second")]
    assert TTL_MS - 10_000 < ledger.client.pttl(ledger.keys.tracebacks(run)) <= TTL_MS


def test_a_run_that_succeeds_leaves_no_more_than_before(ledger: Ledger, run: str) -> None:
    ledger.finish(run, "token", RunState.SUCCEEDED)
    assert not ledger.client.exists(ledger.keys.tracebacks(run))


def test_a_run_that_is_forgotten_takes_its_traceback_along(ledger: Ledger) -> None:
    spec = begun(ledger, history=1)
    first = run_id(spec, 0)
    ledger.finish(first, "token", RunState.FAILED, traceback="why")
    assert failures(ledger, first)
    ledger.admit(ticks(spec, 1))
    assert not ledger.client.exists(ledger.keys.tracebacks(first))


def test_of_many_items_that_fail_the_first_keep_their_tracebacks(ledger: Ledger) -> None:
    step = {"task": "a", "priority": 1, "foreach": "items", "on_item_failure": "ignore"}
    items = list(range(MOST_TRACEBACKS + 2))
    spec = admitted(ledger, 0, task=None, steps=[step], params={"items": items})
    whole = run_id(spec, 0)
    ledger.steps.expand(f"{whole}~a", items)
    for item in items:
        begin(ledger, f"{whole}~a#{item}", f"token-{item}")
        ledger.finish(f"{whole}~a#{item}", f"token-{item}", RunState.FAILED, traceback="why")
    kept = {f"a#{item}" for item in items[:MOST_TRACEBACKS]}
    assert {step for step, _, _ in failures(ledger, whole)} == kept
    assert failures(ledger, f"{whole}~a#1") == [("a#1", 1, "why")]


# The thread that writes.


Connect = Callable[[], Reports]


@pytest.fixture
def connect(settings: Settings) -> Connect:
    return lambda: Ledger(connect_for_heartbeat(settings), Keys(settings.prefix)).reports


@pytest.fixture
def reporter(connect: Connect) -> Reporter:
    return Reporter(connect)


def test_news_are_written_while_the_job_goes_on(
    ledger: Ledger, run: str, reporter: Reporter
) -> None:
    report = reporter.open(run, "token")
    report.log("one")
    wait_until(lambda: texts(ledger, run) == ["one"])
    report.log("two")
    wait_until(lambda: texts(ledger, run) == ["one", "two"])


def test_a_busy_job_is_written_down_a_few_times_a_second(
    ledger: Ledger, run: str, reporter: Reporter
) -> None:
    report = reporter.open(run, "token")

    def batches() -> int:
        said = ledger.client.hget(ledger.keys.run(run), "reported") or "::0"
        return int(said.rpartition(":")[2])

    def went_on() -> bool:
        report.progress(clock(), None, "")
        return clock() > started + 1 and batches() >= 2

    started = clock()
    wait_until(went_on, every=0)
    reporter.close(report)
    assert batches() <= 6 * (clock() - started)


def test_what_is_left_is_written_when_the_report_is_closed(
    ledger: Ledger, run: str, reporter: Reporter
) -> None:
    report = reporter.open(run, "token")
    for number in range(5):
        report.log(str(number))
        report.progress(number, 5, "")
    reporter.close(report)
    progress = ledger.run(run).progress
    assert progress is not None
    assert progress.done == 4
    assert texts(ledger, run) == list("01234")


def test_a_run_that_says_nothing_starts_no_thread(reporter: Reporter, run: str) -> None:
    before = threading.active_count()
    reporter.close(reporter.open(run, "token"))
    assert threading.active_count() == before


def test_what_a_forked_process_reports_is_dropped(
    ledger: Ledger, run: str, reporter: Reporter
) -> None:
    """Its reports would have the numbers of its parent's, which would then change nothing."""
    report = reporter.open(run, "token")
    child = os.fork()
    if not child:
        report.log("of a forked process")
        os._exit(threading.active_count())
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1, "a thread was to write it"
    report.log("own")
    reporter.close(report)
    assert texts(ledger, run) == ["own"]


def test_progress_is_published_once_written_and_never_after_the_close(
    ledger: Ledger, run: str, reporter: Reporter
) -> None:
    published: list[float] = []
    report = reporter.open(run, "token", lambda progress: published.append(progress.done))
    report.progress(1, 4, "")
    wait_until(lambda: published == [1])
    report.progress(2, 4, "")
    reporter.close(report)
    written = ledger.run(run).progress
    assert written is not None
    assert written.done == 2
    assert published == [1]


def test_closing_waits_for_a_progress_that_is_being_published(run: str, reporter: Reporter) -> None:
    is_publishing, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def publish(_: ReportedProgress) -> None:
        is_publishing.set()
        may_end.wait(scaled(20))
        ended.set()

    def close() -> None:
        reporter.close(report)
        closed.append(ended.is_set())

    closed: list[bool] = []
    report = reporter.open(run, "token", publish)
    report.progress(1, 4, "")
    assert is_publishing.wait(scaled(5))
    closing = threading.Thread(target=close)
    closing.start()
    closing.join(TIMEOUT + 0.5)
    assert closing.is_alive()
    may_end.set()
    closing.join(scaled(5))
    assert closed == [True]


def test_a_stale_attempt_publishes_nothing(run: str, reporter: Reporter) -> None:
    published: list[ReportedProgress] = []
    stale = reporter.open(run, "another's", published.append)
    mine = reporter.open(run, "token", published.append)
    stale.progress(1, 4, "")
    for done in (2, 3):  # by the second time, what was said before the first was dealt with
        mine.progress(done, 4, "")
        wait_until(lambda done=done: done in [said.done for said in published])  # type: ignore[misc]
    assert [said.done for said in published] == [2, 3]


def test_with_the_ledger_away_the_job_goes_on_and_one_line_says_so(run: str) -> None:
    nowhere = Settings(redis_url=f"redis://127.0.0.1:{free_port()}/0")
    reporter = Reporter(lambda: Ledger(connect_for_heartbeat(nowhere), Keys("s")).reports)
    report = reporter.open(run, "token")
    with capture_logs() as logs:
        report.log("lost")
        wait_until(lambda: report.unsent is not None)
        report.log("lost as well")
        started = clock()
        reporter.close(report)
        assert clock() - started < scaled(TIMEOUT + 2)
    assert [line["event"] for line in logs] == ["report not written"]


def test_what_was_reported_to_an_unavailable_ledger_is_written_once(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        settings = Settings(redis_url=server.url)
        ledger = Ledger.open(settings)
        ledger.acknowledge_server()
        spec = begun(ledger, lease_ttl="60s")
        reporter = Reporter(lambda: Ledger(connect_for_heartbeat(settings), ledger.keys).reports)
        report = reporter.open(run_id(spec, 0), "token")
        report.log("before")
        wait_until(lambda: texts(ledger, report.run_id) == ["before"])
        ledger.client.client_pause(2_500)  # longer than the reporter waits for an answer
        report.log("meanwhile")
        wait_until(lambda: report.unsent is not None)
        report.log("after")
        wait_until(lambda: texts(ledger, report.run_id)[-1] == "after", 10)
        assert texts(ledger, report.run_id) == ["before", "meanwhile", "after"]
