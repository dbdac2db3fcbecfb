"""Log lines of a process: all JSON, or all for people, whoever writes them."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

WRITES = """
import logging, sys
from supervisor import logs
logs.configure(level="info", logfile=sys.argv[1] if len(sys.argv) > 1 else None)
logs.configure(level="info", logfile=sys.argv[1] if len(sys.argv) > 1 else None)
logs.get_logger("supervisor.test").warning("run skipped", job="nightly", reason="overlap")
logs.get_logger("supervisor.test").debug("not shown")
logging.getLogger("celery.worker").info("task %s received", "nightly")
try:
    raise ValueError("boom")
except ValueError:
    logging.getLogger("kombu").exception("failed")
"""


def written(*arguments: str, form: str | None) -> str:
    environment = {**os.environ, **({"SUPERVISOR_LOG_FORMAT": form} if form else {})}
    done = subprocess.run(
        [sys.executable, "-c", WRITES, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    return done.stderr


def test_away_from_a_terminal_every_line_is_one_json_object() -> None:
    skipped, received, failed = map(json.loads, written(form=None).splitlines())
    assert (skipped["event"], skipped["level"]) == ("run skipped", "warning")
    assert (skipped["job"], skipped["reason"]) == ("nightly", "overlap")
    assert skipped["timestamp"].endswith("Z")
    assert (received["event"], received["logger"]) == ("task nightly received", "celery.worker")
    assert "ValueError: boom" in failed["exception"]


def test_for_people_a_line_is_readable() -> None:
    first, second, third, *below = written(form="console").splitlines()
    moment = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z"
    line = f"{moment} warning  supervisor.test: run skipped nightly reason=overlap"
    assert re.fullmatch(line, first)
    assert second.endswith(" task nightly received")
    assert third.endswith(" failed")
    assert below[-1] == "  ValueError: boom"


def test_on_a_terminal_the_level_is_a_word_too_and_a_file_has_no_colours(tmp_path: Path) -> None:
    file = tmp_path / "worker.log"
    first, *_ = on_terminal().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d warning  \x1b\[33mrun skipped\x1b\[0m nightly .*", first)
    assert on_terminal(str(file)) == ""
    assert " warning  supervisor.test: run skipped nightly" in file.read_text()


def on_terminal(*arguments: str) -> str:
    """What the process writes to a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "SUPERVISOR_LOG_FORMAT": "console"}
    command = [sys.executable, "-c", WRITES, *arguments]
    subprocess.run(command, env=environment, stderr=theirs, check=True)
    os.write(theirs, b"end\n")
    with os.fdopen(ours, "rb") as terminal:
        lines = list(iter(terminal.readline, b"end\r\n"))
    os.close(theirs)
    return b"".join(lines).decode()


def test_a_log_file_gets_all_of_it(tmp_path: Path) -> None:
    assert written(str(tmp_path / "worker.log"), form="json") == ""
    assert len((tmp_path / "worker.log").read_text().splitlines()) == 3


HOSTILE = """
import logging, sys
from supervisor import logs
logs.configure()
password = "hunter2-of-the-tests"
try:
    raise ValueError("\\x1b[31mred\\nforged line")
except ValueError as error:
    logging.getLogger("celery").exception("task failed: %s", error)
    logging.getLogger("celery").error("said %s", error)
"""


@pytest.mark.parametrize("form", ["json", "console"])
def test_what_a_job_said_makes_no_line_and_a_traceback_shows_no_variables(form: str) -> None:
    environment = {**os.environ, "SUPERVISOR_LOG_FORMAT": form}
    command = [sys.executable, "-c", HOSTILE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "red" in done.stderr
    assert "hunter2" not in done.stderr
    assert all(c.isprintable() for c in done.stderr.replace("\n", ""))
    assert not any(line.startswith("forged") for line in done.stderr.splitlines())
