"""`supervisor show`: what a run says of itself, now and until it has ended."""

from __future__ import annotations

import json
import signal
import threading

import pytest
from click.testing import Result

from supervisor.job.run import Reported, ReportedLine, ReportedProgress, RunState
from supervisor.ledger.ledger import Ledger
from tests.ledger.commands import Supervisor, Terminal
from tests.ledger.jobs import begun, run_id
from tests.waiting import patience, status_of, wait_until


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
    following.join(patience(10))
    lines = results[0].stdout.splitlines()
    assert [line.partition("  ")[2] or line for line in lines] == [
        *("one", "running 1/4 (25%) loading", "two", "succeeded 4/4 (100%) loading"),
        f"{run} succeeded",
    ]


def hash_reads(ledger: Ledger) -> int:
    return int(ledger.client.info("commandstats").get("cmdstat_hgetall", {"calls": 0})["calls"])


def test_follow_is_for_people(supervisor: Supervisor, run: str) -> None:
    assert supervisor("show", run, "--follow", "--json").exit_code == 2


def test_an_unknown_run_is_not_followed(ledger: Ledger, supervisor: Supervisor) -> None:
    result = supervisor("show", "nobody@1", "--follow")
    assert result.exit_code == 3
    assert "nobody@1" in result.output


def test_on_a_terminal_there_is_a_bar_below_the_lines(
    ledger: Ledger, redis_url: str, run: str
) -> None:
    say(ledger, run, 1, 1, "\x1b[31m[red]one")
    with Terminal(redis_url, "show", run, "--follow") as terminal:
        wait_until(lambda: "1/4 (25%) loading" in terminal.shown, 20)
        assert "━" in terminal.shown
        assert "Z  [red]one" in terminal.shown
        say(ledger, run, 2, 4, "two")
        ledger.finish(run, "token", RunState.SUCCEEDED)
        assert status_of(terminal.process, 30) == 0
        wait_until(lambda: terminal.shown.rstrip().endswith(f"{run} succeeded"))
        assert "Z  two" in terminal.shown


def test_ctrl_c_ends_the_following_and_not_the_run(
    ledger: Ledger, redis_url: str, run: str
) -> None:
    say(ledger, run, 1, 1)
    with Terminal(redis_url, "show", run, "--follow") as terminal:
        wait_until(lambda: "1/4 (25%) loading" in terminal.shown, 20)
        terminal.process.send_signal(signal.SIGINT)
        assert status_of(terminal.process, 30) == 1
        wait_until(lambda: terminal.shown.endswith("\x1b[2K") or "\x1b[?25h" in terminal.shown)
        assert "Traceback" not in terminal.shown
        assert "Aborted" not in terminal.shown
    assert ledger.run(run).state is RunState.RUNNING
