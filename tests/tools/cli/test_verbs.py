"""The command line on a real ledger: what it prints, as text and as JSON, and how it exits."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from click.testing import Result

from supervisor.errors import NOT_FOUND
from supervisor.job.reports import Reported, ReportedLine, ReportedProgress
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import ATTEMPTS_KEPT
from supervisor.ledger.page_reads import PAGE
from supervisor.ledger.run_request import RunRequest
from supervisor.schedule.ticks import Tick
from supervisor.times import ms_of
from tests.commands import Supervisor, Terminal, as_json
from tests.jobs import admitted, begin, begun, job, pause, run_id, ticks, try_often
from tests.presence import beat_says
from tests.waiting import clear_of, scaled, status_of, wait_until


def test_jobs_lists_state_and_counts(ledger: Ledger, supervisor: Supervisor) -> None:
    spec = admitted(ledger, 0, 1)
    begin(ledger, run_id(spec, 0))
    header, row = supervisor("jobs").stdout.splitlines()
    assert header.split()[:3] == ["job", "schedule", "state"]
    assert row.split()[:4] == ["nightly", "every", "1s", "running"]
    [shape] = as_json(supervisor("jobs", "--json"))
    assert (shape["job"], shape["state"], shape["running"]) == ("nightly", "running", 1)
    assert shape["counters"]["skipped:overlap"] == 1


@pytest.mark.parametrize(("words", "loaded", "code"), [((), 0, 1), (("--json",), 0, 1), ((), 1, 0)])
def test_jobs_says_what_is_wrong_with_files_that_beat_did_not_load(
    ledger: Ledger, supervisor: Supervisor, words: tuple[str, ...], loaded: int, code: int
) -> None:
    problem = "jobs.yaml:3: job 'a': no 'cron'"
    beat_says(ledger, problems=json.dumps([problem]))
    if loaded:
        job(ledger)
    result = supervisor("jobs", *words)
    assert (result.exit_code, problem in result.stderr) == (code, True)


def test_runs_has_a_line_for_each_attempt(ledger: Ledger, supervisor: Supervisor) -> None:
    spec = admitted(ledger, 0, 1)
    begin(ledger, run_id(spec, 0))
    ledger.finish(run_id(spec, 0), "token", RunState.LOST, "worker process 7 died")
    begin(ledger, run_id(spec, 0), "second")
    ledger.finish(run_id(spec, 0), "second", RunState.SUCCEEDED)
    _, skipped, second, first = supervisor("runs", "nightly").stdout.splitlines()
    assert f"blocked by {run_id(spec, 0)}" in skipped
    assert second.split()[1:3] == ["2", "succeeded"]
    assert first.split()[1:3] == ["1", "lost"]
    assert first.endswith("worker process 7 died")
    newest, oldest = as_json(supervisor("runs", "--json"))
    assert (newest["state"], newest["reason"]) == ("skipped", "overlap")
    assert [attempt["outcome"] for attempt in oldest["attempts"]] == ["lost", "succeeded"]
    assert len(as_json(supervisor("runs", "--outcome", "skipped", "--json"))) == 1


@pytest.mark.parametrize("words", [("jobs",), ("runs", "nightly"), ("show", "RUN"), ("why", "RUN")])
def test_only_json_says_timed_out_with_an_underscore(
    ledger: Ledger, supervisor: Supervisor, words: tuple[str, ...]
) -> None:
    run = run_id(begun(ledger), 0)
    ledger.finish(run, "token", RunState.TIMED_OUT)
    text = supervisor(*(run if word == "RUN" else word for word in words)).stdout
    assert ("timed out" in text, "timed_out" in text) == (True, False)
    assert as_json(supervisor("show", run, "--json"))["state"] == "timed_out"


def test_attempts_that_are_not_kept_are_told_by_their_number(
    ledger: Ledger, supervisor: Supervisor
) -> None:
    spec = admitted(ledger, 0)
    try_often(ledger, run_id(spec, 0), ATTEMPTS_KEPT + 3)
    begin(ledger, run_id(spec, 0), "the last")
    ledger.finish(run_id(spec, 0), "the last", RunState.FAILED, "never")
    words = "4 earlier attempts, of which nothing else is kept"
    assert supervisor("runs", "nightly").stdout.splitlines()[-1].endswith(words)
    assert words in supervisor("show", run_id(spec, 0)).stdout
    assert as_json(supervisor("show", run_id(spec, 0), "--json"))["attempts_dropped"] == 4
    output = supervisor("why", run_id(spec, 0)).stdout
    assert "it was tried 104 times" in output
    assert "late" not in output


def test_show_says_how_a_run_failed_and_where_its_lines_are(
    supervisor: Supervisor, ledger: Ledger
) -> None:
    spec = begun(ledger, log_url="https://logs.example/?q={run}")
    run = run_id(spec, 0)
    told = "Traceback:\n  in \x1b[31mload\nValueError: not so"
    ledger.finish(run, "token", RunState.FAILED, "not so", traceback=told)
    shown, followed = supervisor("show", run), supervisor("show", run, "--follow")
    for result, code in ((shown, 0), (followed, 1)):
        assert result.exit_code == code
        assert (
            "  attempt 1: failed\n  Traceback:\n    in load\n  ValueError: not so\n"
            in result.stdout
        )
    assert "https://logs.example/?q=nightly%40" in shown.stdout
    as_shape = as_json(supervisor("show", run, "--json"))
    assert as_shape["log_url"].startswith("https://logs.example/?q=nightly%40")
    assert [(found["attempt"], found["traceback"]) for found in as_shape["failures"]] == [(1, told)]


def test_a_trigger_is_a_run_and_a_second_one_is_skipped(
    ledger: Ledger, supervisor: Supervisor
) -> None:
    job(ledger)
    first = supervisor("trigger", "nightly", "--kwargs", '{"day": 3}')
    assert first.exit_code == 0
    run = first.stdout.split()[0]
    assert ledger.run(run).kwargs == {"day": 3}
    second = supervisor("trigger", "nightly")
    assert second.exit_code == 1
    assert f"skipped: overlap, blocked by {run}" in second.stdout
    assert as_json(supervisor("show", run, "--json"))["state"] == "queued"
    assert "queued" in supervisor("show", run).stdout


def test_pause_and_resume_change_the_job_and_nothing_when_a_name_is_wrong(
    ledger: Ledger, supervisor: Supervisor
) -> None:
    job(ledger)
    assert supervisor("pause", "nightly").stdout == "nightly paused\n"
    assert ledger.job("nightly").paused
    assert supervisor("resume", "nightly").stdout == "nightly resumed\n"
    assert supervisor("resume", "nightly").stdout == "nightly was not paused\n"
    refused = supervisor("pause", "nightly", "nigthly")
    assert refused.exit_code == NOT_FOUND
    assert "did you mean 'nightly'?" in refused.stderr
    assert not ledger.job("nightly").paused


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("runs", "nigthly"), 3, "did you mean 'nightly'?"),
        (("show", "nightly@nothing"), 3, "unknown run 'nightly@nothing'"),
        (("show", "nightly@nothing", "--follow"), 3, "unknown run 'nightly@nothing'"),
        (("show", "nightly@nothing", "--follow", "--json"), 2, "--follow"),
        (("trigger", "nightly", "--args", "{"), 2, "not JSON"),
        (("trigger", "nightly", "--args", "{}"), 2, "must be a list"),
        (("runs", "--outcome", "fine"), 2, "fine"),
        (("runs", "--since", "lately"), 2, "is not a moment such as 2h"),
        (("up",), 2, "name the Celery app"),
        (("-A", "no_such_module", "up"), 2, "no Celery app 'no_such_module'"),
        (("-A", "json", "check"), 2, "no Celery app 'json': json has none"),
        (("-A", "json:dumps", "queues"), 2, "no Celery app 'json:dumps'"),
        (("-A", "json:app", "check"), 2, "module 'json' has no attribute 'app'"),
        (("-A", "", "check"), 2, "no Celery app '': that names no module"),
    ],
)
def test_mistakes_are_told_and_exit_as_documented(
    ledger: Ledger, supervisor: Supervisor, words: tuple[str, ...], status: int, said: str
) -> None:
    job(ledger)
    result = supervisor(*words)
    assert result.exit_code == status
    assert said in result.output


def test_reasons_cannot_move_the_cursor(ledger: Ledger, supervisor: Supervisor) -> None:
    spec = begun(ledger)
    ledger.finish(run_id(spec, 0), "token", RunState.FAILED, "boom\x1b[2J\nfake line")
    lines = supervisor("runs").stdout.splitlines()
    assert len(lines) == 2
    assert "\x1b" not in lines[1]


def test_a_run_can_be_cancelled_once(ledger: Ledger, supervisor: Supervisor) -> None:
    spec = admitted(ledger, 0, 1, overlap="queue_one")
    begin(ledger, run_id(spec, 0))
    assert supervisor("cancel", run_id(spec, 0)).stdout == f"{run_id(spec, 0)} stopping\n"
    assert supervisor("cancel", run_id(spec, 1)).stdout == f"{run_id(spec, 1)} cancelled\n"
    again = supervisor("cancel", run_id(spec, 1))
    assert (again.exit_code, "has ended: cancelled" in again.output) == (4, True)


def test_a_job_where_a_run_is_wanted_is_answered_with_its_runs(
    ledger: Ledger, supervisor: Supervisor
) -> None:
    spec = admitted(ledger, 0, 1, overlap="queue_one")
    begin(ledger, run_id(spec, 0))
    for verb in ("show", "cancel"):
        result = supervisor(verb, "nightly")
        assert (result.exit_code, "`supervisor runs nightly`" in result.stderr) == (NOT_FOUND, True)
        assert f"supervisor {verb} {run_id(spec, 1)}" in result.stderr
    ledger.cancel(run_id(spec, 1), "seen")
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    assert "no open run" in supervisor("cancel", "nightly").stderr
    assert "`supervisor runs` lists them" in supervisor("show", "nigthly").stderr


def test_a_run_that_code_gave_an_id_is_found_by_it(ledger: Ledger, supervisor: Supervisor) -> None:
    """As the parts of a chain have one of Celery's, and a call with a `task_id`."""
    spec = job(ledger)
    ledger.trigger(spec, RunRequest(run_id="order-17"))
    assert "state             queued" in supervisor("show", "order-17").stdout
    for words in (("order-17",), (spec.name, "order-17")):
        assert "order-17 has been queued" in supervisor("why", *words).stdout
    assert supervisor("why", "b", "order-17").exit_code == 2
    assert supervisor("cancel", "order-17").stdout == "order-17 cancelled\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--kwargs", '{"dya": 3}'), "got an unexpected keyword argument 'dya'"),
        (("--args", "[1, 2]"), "too many positional arguments"),
        (("--args", "[]"), "missing a required argument: 'day'"),
        (("--kwargs", '{"day": 3}'), None),
    ],
)
def test_with_the_app_a_trigger_has_arguments_that_its_task_takes(
    ledger: Ledger, supervisor: Supervisor, words: tuple[str, ...], said: str | None
) -> None:
    job(ledger, task="planned.report", paused=True)
    result = supervisor("trigger", "nightly", *words, app="tests.tools.cli.planned_app:app")
    assert (result.exit_code, (said or "queued") in result.output) == (2 if said else 0, True)
    assert bool(ledger.open_runs_of(["nightly"])) is (said is None)


def test_a_trigger_may_bring_policy_key_and_time_to_wait(
    ledger: Ledger, supervisor: Supervisor
) -> None:
    spec = job(ledger)
    supervisor("trigger", spec.name)
    assert supervisor("trigger", spec.name).exit_code == 1
    waits = ("trigger", spec.name, "--overlap", "queue_all", "--max-wait", "5m", "--json")
    assert as_json(supervisor(*waits))["results"][0]["state"] == "waiting"
    [told] = as_json(supervisor("trigger", spec.name, "--key", "b", "--json"))["results"]
    assert told["state"] == "queued"
    assert supervisor("trigger", spec.name, "--max-wait", "soon").exit_code == 2


def test_a_pause_is_told_with_its_note_and_its_end(ledger: Ledger, supervisor: Supervisor) -> None:
    spec = job(ledger, timezone="Europe/Berlin")
    paused = supervisor("pause", spec.name, "--note", "stocktaking", "--until", "2099-01-01T06:00")
    assert paused.stdout == f"{spec.name} paused until 2099-01-01T06:00:00+01:00\n"
    assert "paused (until 2099-01-01 05:00:00Z, stocktaking)" in supervisor("jobs").stdout
    [shape] = as_json(supervisor("jobs", "--json"))
    assert (shape["paused_note"], shape["paused_until"]) == (
        *("stocktaking", "2099-01-01T05:00:00.000Z"),
    )
    assert supervisor("resume", spec.name).stdout == f"{spec.name} resumed\n"
    assert "stocktaking" not in supervisor("jobs").stdout


#: By verb, its words before a moment.
MOMENTS = {
    "runs": ("nightly", "--since"),
    "pause": ("nightly", "--until"),
    "next": ("nightly", "--after"),
    "backfill": ("nightly", "--dry-run", "--to", "now", "--from"),
    "audit": ("nightly", "--from"),
}

#: From now; the first and the last times of the calendar have no neighbours.
TOO_FAR = ("0001-01-01", "9999-12-31T23:59:59Z")


@pytest.mark.parametrize("verb", MOMENTS)
@pytest.mark.parametrize(
    "moment", ["2h", "1h30m", "+2h", "-2h", "09:05", "2099-01-01", "soon", *TOO_FAR]
)
def test_every_verb_takes_a_moment_in_every_form(
    ledger: Ledger, supervisor: Supervisor, schedules: Path, verb: str, moment: str
) -> None:
    job(ledger, every="30m")
    (schedules / "jobs.yaml").write_text("jobs: {}")
    words = MOMENTS[verb]
    result = supervisor(verb, *words, moment)
    makes_no_sense = {
        "pause": ("-2h",),
        "backfill": ("+2h", "2099-01-01"),
        "audit": ("+2h", "2099-01-01"),
    }
    is_too_far = moment in TOO_FAR
    refused = is_too_far or moment == "soon" or moment in makes_no_sense.get(verb, ())
    assert (result.exit_code == 2, "is not a moment" in result.output) == (
        *(refused, moment == "soon"),
    ), result.output
    assert ("more than 100 years" in result.output) == is_too_far


def test_no_audit_begins_in_the_future(ledger: Ledger, supervisor: Supervisor) -> None:
    job(ledger, every="30m")
    result = supervisor("audit", "nightly", "--from", "+1h", "--to", "+2h")
    assert (result.exit_code, "before now" in result.output) == (2, True)


def test_a_duration_leads_ahead_or_back_as_its_verb_or_its_sign_says(
    ledger: Ledger, supervisor: Supervisor
) -> None:
    spec, now = job(ledger, every="30m"), ledger.now()
    supervisor("pause", spec.name, "--until", "1h")
    until = ledger.job(spec.name).paused_until
    assert until is not None
    assert timedelta(minutes=59) < until - now < timedelta(minutes=61)
    back = supervisor("backfill", spec.name, "--from", "2h", "--to", "now", "--dry-run").stdout
    assert len(back.splitlines()) in (3, 4)
    [first] = as_json(supervisor("next", spec.name, "-n", "1", "--after", "-2h", "--json"))["ticks"]
    assert datetime.fromisoformat(first) < now


def test_a_pause_can_be_caught_up(ledger: Ledger, supervisor: Supervisor) -> None:
    clear_of(3_600, 20)
    spec = job(ledger, every="1h", catchup="all", catchup_window="1d")
    pause(ledger, spec, since=ledger.now() - timedelta(hours=3))
    assert supervisor("resume", spec.name, "--catch-up").stdout == "nightly resumed, 3 caught up\n"
    assert ledger.job(spec.name).counters["triggered"] == 3


def test_the_next_ticks_are_listed_in_both_zones(ledger: Ledger, supervisor: Supervisor) -> None:
    job(ledger, every=None, cron="30 2 * * *", timezone="Europe/Berlin")
    listed = supervisor("next", "nightly", "-n", "2", "--after", "2026-03-28T00:00")
    assert "2026-03-28T01:30:00.000Z" in listed.stdout
    # The clock jumps over half past two.
    assert "Sun 2026-03-29 03:00:00 CEST" in listed.stdout
    assert "02:30 does not exist in Europe/Berlin, runs at 03:00" in listed.stdout


def test_what_is_excluded_stands_between_the_next_ticks(
    ledger: Ledger, supervisor: Supervisor
) -> None:
    job(ledger, every=None, cron="0 6 * * *", exclude=["SAT-SUN"], jitter="5m")
    words = ("next", "nightly", "-n", "2", "--after", "2026-03-06T00:00")
    lines = supervisor(*words).stdout.splitlines()[1:]
    assert [line.endswith("excluded") for line in lines] == [False, True, True, False]
    result = as_json(supervisor(*words, "--json"))
    assert result["excluded"] == ["2026-03-07T06:00:00.000Z", "2026-03-08T06:00:00.000Z"]
    assert len(result["ticks"]) == 2


def test_a_backfill_lists_first_and_then_runs(ledger: Ledger, supervisor: Supervisor) -> None:
    spec = job(ledger, every="1h")
    days = ("backfill", spec.name, "--from", "2026-03-01", "--to", "2026-03-01T03:00")
    assert supervisor(*days, "--dry-run").stdout.splitlines() == [
        f"2026-03-01T0{hour}:00:00.000Z" for hour in range(3)
    ]
    assert ledger.history(spec.name) == []
    assert supervisor(*days).stdout == "3 nominal times: 1 start, 2 wait\n"
    assert [run.nominal_at.hour for run in ledger.history(spec.name)] == [2, 1, 0]
    for wrong in (("--from", "2026-03-02"), ("--from", "yesterday")):
        assert supervisor(*days, *wrong).exit_code == 2
    assert supervisor(*days, "--limit", "2").exit_code == 4


def test_the_audit_exits_1_until_what_it_found_is_acknowledged(
    ledger: Ledger, supervisor: Supervisor
) -> None:
    clear_of(24 * 3_600, 20)
    spec = job(ledger, every="24h")
    today = ledger.now().replace(hour=0, minute=0, second=0, microsecond=0)
    for days_ago in (3, 1, 0):
        ledger.admit([Tick(spec, today - timedelta(days=days_ago))])
        if days_ago == 3:
            assert supervisor("audit", "--json").exit_code == 1  # two later ones are overdue
    result = supervisor("audit", spec.name)
    assert result.exit_code == 1
    gone = (today - timedelta(days=2)).isoformat()
    assert f"missing: {gone}" in result.stdout
    by_record = supervisor("audit", "--from", (today - timedelta(days=3)).isoformat())
    assert "4 ticks, record by record" in by_record.stdout
    assert f"missing: {gone[:19]}" in by_record.stdout
    for span in (("--to", "1h"), ("--from", "1h", "--to", "2h")):  # a span without a time
        assert supervisor("audit", *span).exit_code == 2
    assert supervisor("audit", "--acknowledge").exit_code == 1
    assert supervisor("audit").stdout == "1 job audited, 0 with findings\n"


# `supervisor show`: what a run says of itself, now and until it has ended


@pytest.fixture
def run(ledger: Ledger) -> str:
    spec = begun(ledger, lease_ttl="60s")
    return run_id(spec, 0)


def say(ledger: Ledger, run: str, batch: int, done: int, *texts: str) -> None:
    progress = ReportedProgress(done, 4, "loading", 0.0)
    lines = tuple(ReportedLine(number, text, 0.0) for number, text in enumerate(texts, 1))
    assert ledger.reports.write(run, "token", Reported(batch, progress, lines), 0.0)


def test_show_tells_progress_and_the_end_of_the_log(
    ledger: Ledger, supervisor: Supervisor, run: str
) -> None:
    say(ledger, run, 1, 1, *(f"line {number}" for number in range(30)), "\x1b[2Jcleared")
    output = supervisor("show", run).stdout.splitlines()
    assert "progress          1/4 (25%) loading" in output
    assert output[-20].endswith("Z  line 11")
    assert output[-1].endswith("Z  cleared")
    assert not output[-21].endswith("line 10")


def test_show_as_json_has_progress_and_all_lines(
    ledger: Ledger, supervisor: Supervisor, run: str
) -> None:
    say(ledger, run, 1, 1, *map(str, range(30)))
    shape = json.loads(supervisor("show", run, "--json").stdout)
    assert shape["progress"] | {"at": ""} == {"done": 1, "total": 4, "text": "loading", "at": ""}
    assert len(shape["log"]) == 30
    first = shape["log"][0]
    assert (first["text"], first["number"], first["attempt"], first["step"]) == ("0", 1, 1, None)


@pytest.mark.parametrize(
    ("outcome", "status"), [(RunState.SUCCEEDED, 0), (RunState.FAILED, 1), (RunState.LOST, 1)]
)
def test_a_run_that_has_ended_is_told_at_once_and_by_the_exit_status(
    ledger: Ledger, supervisor: Supervisor, outcome: RunState, status: int
) -> None:
    spec = begun(ledger, on_crash="fail")
    say(ledger, run_id(spec, 0), 1, 4, *(f"line {number}" for number in range(30)))
    ledger.finish(run_id(spec, 0), "token", outcome, "so it is")
    result = supervisor("show", run_id(spec, 0), "--follow")
    assert result.exit_code == status
    lines = result.stdout.splitlines()
    assert [line.partition("  ")[2] for line in lines[:30]] == [f"line {n}" for n in range(30)]
    assert lines[-1] == f"{run_id(spec, 0)} {outcome.value}: so it is"


def test_a_run_is_followed_until_it_has_ended(
    ledger: Ledger, supervisor: Supervisor, run: str
) -> None:
    results: list[Result] = []
    following = threading.Thread(target=lambda: results.append(supervisor("show", run, "--follow")))
    say(ledger, run, 1, 1, "one")
    following.start()
    # The follower's own connection reads the run again: it has seen what was said before.
    reads = hash_reads(ledger)
    wait_until(lambda: hash_reads(ledger) >= reads + 2)
    say(ledger, run, 2, 4, "two")
    ledger.finish(run, "token", RunState.SUCCEEDED)
    following.join(scaled(10))
    lines = results[0].stdout.splitlines()
    assert [line.partition("  ")[2] or line for line in lines] == [
        *("one", "running 1/4 (25%) loading", "two", "succeeded 4/4 (100%) loading"),
        f"{run} succeeded",
    ]


def hash_reads(ledger: Ledger) -> int:
    return int(ledger.client.info("commandstats").get("cmdstat_hgetall", {"calls": 0})["calls"])


def test_ctrl_c_ends_the_following_and_not_the_run(
    ledger: Ledger, redis_url: str, run: str
) -> None:
    say(ledger, run, 1, 1)
    with Terminal(redis_url, "show", run, "--follow") as terminal:
        wait_until(lambda: "1/4 (25%) loading" in terminal.shown, 20)
        terminal.process.send_signal(signal.SIGINT)
        assert status_of(terminal.process, 30) == 1
        assert "Traceback" not in terminal.shown
        assert "Aborted" not in terminal.shown
    assert ledger.run(run).state is RunState.RUNNING


# `supervisor runs` with filters, and tables on a terminal


Runs = Callable[..., list[str]]


@pytest.fixture
def runs(supervisor: Supervisor) -> Runs:
    def call(*words: str) -> list[str]:
        return [shape["run"] for shape in as_json(supervisor("runs", *words, "--json"))]

    return call


def admitted_at(ledger: Ledger, spec: JobSpec, second: int, at: datetime) -> None:
    """As if the run had been admitted at that time."""
    ledger.client.zadd(ledger.keys.history(spec.name), {run_id(spec, second): ms_of(at)})


def test_the_limit_counts_matches_and_not_rows_looked_at(ledger: Ledger, runs: Runs) -> None:
    spec = job(ledger, history=1_000)
    ledger.admit(ticks(spec, 0))
    begin(ledger, run_id(spec, 0))
    ledger.finish(run_id(spec, 0), "token", RunState.FAILED, "boom")
    ledger.admit(ticks(spec, *range(1, PAGE + 20)))
    assert runs(spec.name, "--outcome", "failed", "--limit", "1") == [run_id(spec, 0)]
    assert runs("--outcome", "failed") == [run_id(spec, 0)]
    assert len(runs("--outcome", "skipped", "--limit", "3")) == 3
    skipped = runs("--outcome", "skipped", "--limit", "1000")
    assert len(skipped) == len({*skipped}) == PAGE + 18, "several pages, without repeats"


def test_failures_are_searched_in_jobs_that_failed_so(ledger: Ledger, runs: Runs) -> None:
    failed, late, well = (job(ledger, name) for name in ("failed", "late", "well"))
    for spec, outcome in ((failed, RunState.FAILED), (late, RunState.TIMED_OUT)):
        ledger.admit(ticks(spec, 0))
        begin(ledger, run_id(spec, 0))
        ledger.finish(run_id(spec, 0), "token", outcome)
    for spec in (late, well):
        ledger.admit(ticks(spec, *range(1, 40)))
    reads = states_read(ledger)
    assert runs("--outcome", "failed") == [run_id(failed, 0)]
    assert states_read(ledger) - reads == 1
    assert runs("--outcome", "timed_out", "--limit", "1") == [run_id(late, 0)]
    assert runs("--outcome", "lost") == []


def states_read(ledger: Ledger) -> int:
    return int(ledger.client.info("commandstats").get("cmdstat_hget", {"calls": 0})["calls"])


def test_the_newest_of_all_jobs_come_first(ledger: Ledger, runs: Runs) -> None:
    first, second = job(ledger, "first"), job(ledger, "second")
    for number in range(4):
        for spec in (first, second):
            ledger.admit(ticks(spec, number))
            admitted_at(ledger, spec, number, ledger.now() + timedelta(seconds=number))
    newest = runs("--limit", "2")
    assert set(newest) == {run_id(first, 3), run_id(second, 3)}


def test_runs_are_found_by_when_they_were_admitted(ledger: Ledger, runs: Runs) -> None:
    spec, now = job(ledger), ledger.now()
    ledger.admit(ticks(spec, 0, 1, 2))
    for second, hours in enumerate((30, 3, 1)):
        admitted_at(ledger, spec, second, now - timedelta(hours=hours))
    assert runs("--since", "2h") == [run_id(spec, 2)]
    assert runs("--since", "1d", "--until", "2h") == [run_id(spec, 1)]
    assert len(runs(spec.name, "--since", (now - timedelta(days=3)).date().isoformat())) == 3
    assert runs("--since", (now + timedelta(hours=1)).isoformat()) == []


def test_a_day_is_one_of_the_jobs_zone(ledger: Ledger, runs: Runs) -> None:
    spec = job(ledger, timezone="Asia/Tokyo")
    ledger.admit(ticks(spec, 0))
    admitted_at(ledger, spec, 0, datetime.fromisoformat("2026-03-01T16:00:00Z"))
    assert runs(spec.name, "--since", "2026-03-02") == [run_id(spec, 0)]
    assert runs("--since", "2026-03-02") == []


def on_terminal(redis_url: str, verb: str) -> list[str]:
    with Terminal(redis_url, verb, columns=80) as terminal:
        return terminal.whole().split()


def test_a_run_that_is_listed_on_a_terminal_can_be_shown(
    ledger: Ledger, redis_url: str, supervisor: Supervisor
) -> None:
    spec = job(ledger, "report-of-all-the-departments-of-the-night")
    ledger.admit(ticks(spec, 0))
    assert spec.name in on_terminal(redis_url, "jobs")
    [listed] = [word for word in on_terminal(redis_url, "runs") if "@" in word]
    assert listed in supervisor("show", listed).output
