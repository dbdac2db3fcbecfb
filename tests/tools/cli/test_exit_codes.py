"""What each verb exits with: docs/reference/commands.md has the table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from supervisor import errors
from supervisor.cli import VERBS
from supervisor.ledger.ledger import Ledger
from tests.commands import supervisor_at
from tests.jobs import job

NOWHERE = "redis://127.0.0.1:1/0"

APP = """
from celery import Celery
from supervisor.app import supervise
app = supervise(Celery("proj"))
"""

SPAN = ("--from", "2026-03-01", "--to", "2026-03-02")

#: A call of each verb that asks the ledger for something that is not there.
NOT_THERE: dict[str, tuple[str, ...]] = {
    "runs": ("nigthly",),
    "show": ("nightly@nothing",),
    "trigger": ("nigthly",),
    "retry": ("nightly@nothing",),
    "cancel": ("nightly@nothing",),
    "pause": ("nigthly",),
    "resume": ("nigthly",),
    "next": ("nigthly",),
    "backfill": ("nigthly", *SPAN),
    "why": ("nigthly",),
    "audit": ("nigthly",),
    "drain": ("nosuch",),
    "undrain": ("nosuch",),
    "silence": ("nigthly", "--for", "2h", "--reason", "stocktaking"),
    "unsilence": ("nosuch",),
    "remove": ("nigthly",),
    "export": ("nigthly",),
}

#: And of each other verb that needs the ledger.
OF_THE_LEDGER: dict[str, tuple[str, ...]] = {
    "jobs": (),
    "plan": (),
    "apply": ("--yes",),
    "put": ("jobs.yaml",),
    "doctor": (),
    "log": (),
    "silences": (),
}

#: They ask no ledger, go on without one, wait for it, or need an app first.
OTHERS = (
    *("check", "schema", "init", "import", "up", "queues", "serve"),
    *("render", "health", "adopt", "release", "notify", "token"),
)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "proj_of_exit_codes.py").write_text(APP)
    (tmp_path / "schedules").mkdir()
    (tmp_path / "jobs.yaml").write_text("jobs: {}\n")
    (tmp_path / "schedules" / "jobs.yaml").write_text("jobs: {}\n")
    return tmp_path


def exits(url: str, *words: str) -> tuple[int, str]:
    done = supervisor_at(url)(*words, app="proj_of_exit_codes")
    return done.exit_code, done.output


def test_every_verb_is_in_one_of_the_tables() -> None:
    assert {*NOT_THERE, *OF_THE_LEDGER, *OTHERS} == set(VERBS)


@pytest.mark.parametrize("verb", NOT_THERE)
def test_what_is_not_there_is_not_found(verb: str, ledger: Ledger, redis_url: str) -> None:
    job(ledger)
    code, text = exits(redis_url, verb, *NOT_THERE[verb])
    assert (code, "unknown" in text) == (errors.NOT_FOUND, True), text


@pytest.mark.parametrize("verb", {**NOT_THERE, **OF_THE_LEDGER})
def test_a_ledger_that_does_not_answer_is_unavailable(verb: str) -> None:
    code, text = exits(NOWHERE, verb, *{**NOT_THERE, **OF_THE_LEDGER}[verb])
    assert (code, "Traceback" in text) == (errors.UNAVAILABLE, False), text


@pytest.mark.parametrize("verb", [*NOT_THERE, *OF_THE_LEDGER, *OTHERS])
def test_an_option_that_there_is_not_is_a_mistake_of_usage(verb: str, redis_url: str) -> None:
    assert exits(redis_url, verb, "--no-such-option")[0] == errors.USAGE


#: What is refused as things are, though all of it is spelled right.
REFUSED: dict[str, tuple[str, ...]] = {
    "exists already": ("init", "schedules"),
    "--force": ("export", "-o", "jobs.yaml"),
    "--limit": ("backfill", "nightly", *SPAN, "--limit", "3"),
    "is that of the app 'another'": ("apply", "--yes"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused_as_things_are_exits_4(
    message: str, project: Path, ledger: Ledger, redis_url: str
) -> None:
    job(ledger, every="1h")
    ledger.take_over("another")
    (project / "schedules" / "example.yaml").write_text("jobs: {}")
    code, output = exits(redis_url, *REFUSED[message])
    assert (code, message in output) == (errors.REFUSED, True), output


def test_the_page_has_a_line_for_each_code() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "commands.md").read_text()
    table = page.partition("## Exit codes")[2].partition("\n## ")[0]
    codes = (0, errors.WRONG, errors.USAGE, errors.NOT_FOUND, errors.REFUSED, errors.UNAVAILABLE)
    assert [int(code) for code in re.findall(r"^\| (\d) \|", table, re.MULTILINE)] == [*codes]
