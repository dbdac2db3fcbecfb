"""The verbs of jobs at run time: put, remove, export, and what `jobs` lists."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from supervisor.cli import main
from supervisor.ledger.ledger import Ledger
from tests.commands import Supervisor, as_json
from tests.jobs import job

APP = "tests.tools.cli.planned_app:app"

FILE = """
defaults: {timezone: Europe/Berlin, max_retries: 2}
jobs:
  one:
    task: planned.poll
    cron: "30 2 * * 1-5"
    args: ["${TOKEN}", "12", "true", 1.5]
    kwargs: {password: secret, text: "a: b\\nc"}
    mask: [password]
    labels: {tenant: acme}
    exclude: [SAT, 2026-12-24..2027-01-02]
    ping_url: https://hc-ping.com/0b1c
    notify: ["${SLACK_URL}", {url: "https://hooks.test/0b1c", events: [late, lost], secret: x}]
    serial: true
    start_at: 2026-01-01T00:00:00
    dst: {fold: both}
  two:
    steps:
      - {task: planned.poll, priority: 2, name: first, kwargs: {a: [1, null]}}
      - {task: planned.poll, priority: 1, foreach: files, max_parallel: 3}
    params: {files: [a, b]}
    every: 90s
    phase: 1.5s
    labels: {tenant: other}
  three: {task: planned.poll, cron: ["0 6 * * *", "0 7 * * SUN"], paused: true, time_limit: 10m}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "jobs.yaml"
    path.write_text(FILE)
    return path


def test_put_loads_the_jobs_of_a_file_beside_all_others(
    file: Path, supervisor: Supervisor, ledger: Ledger
) -> None:
    job(ledger, "other")
    dry = supervisor("put", str(file), "--dry-run", app=APP)
    assert dry.stdout.splitlines()[-1] == "3 added, 0 changed, 0 removed, 0 unchanged"
    assert set(ledger.scheduled()) == {"other"}
    done = supervisor("put", str(file), app=APP)
    assert done.stdout.splitlines()[-1] == "put: 3 added, 0 changed, 0 removed, 0 unchanged"
    assert set(ledger.scheduled()) == {"other", "one", "two", "three"}
    assert "@" in ledger.loaded(["one"]).origins["one"].place
    again = supervisor("put", str(file), app=APP)
    assert again.stdout.splitlines()[-1] == "put: 0 added, 0 changed, 0 removed, 3 unchanged"


def test_what_is_exported_is_accepted_and_is_the_same_jobs(
    file: Path, supervisor: Supervisor, ledger: Ledger
) -> None:
    assert supervisor("put", str(file), app=APP).exit_code == 0
    before = ledger.scheduled()
    exported = Path("exported.yaml")
    assert supervisor("export", "-o", str(exported)).stdout == "exported.yaml: 3 jobs\n"
    assert supervisor("check", str(exported), app=APP).exit_code == 0
    again = supervisor("put", str(exported), app=APP)
    assert again.stdout.splitlines()[-1] == "put: 0 added, 0 changed, 0 removed, 3 unchanged"
    assert ledger.scheduled() == before
    assert supervisor("export", "-o", str(exported)).exit_code == 4


def test_a_file_is_read_from_standard_input(file: Path, redis_url: str, ledger: Ledger) -> None:
    words = ["-A", APP, "--redis-url", redis_url, "put", "-"]
    done = CliRunner().invoke(main, words, input=FILE)
    assert done.exit_code == 0, done.output
    assert len(ledger.scheduled()) == 3
    wrong = CliRunner().invoke(main, words, input=io.BytesIO(b"jobs: {\xff: 1}"))
    assert (wrong.exit_code, wrong.stdout) == (1, "-:1: is not UTF-8 text\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("jobs: {a: {task: planned.pol, every: 1h}, b: {task: planned.poll, evry: 1h}}", "evry"),
        ("jobs: {one: {task: planned.poll, every: 1h}, bad name: {task: x, every: 1h}}", "a name"),
    ],
)
def test_with_a_problem_nothing_of_the_file_is_put(
    file: Path, supervisor: Supervisor, ledger: Ledger, text: str, said: str
) -> None:
    file.write_text(text)
    done = supervisor("put", str(file), app=APP)
    assert (done.exit_code, said in done.stdout) == (1, True)
    assert ledger.scheduled() == {}


def test_a_job_of_files_is_neither_put_nor_removed(
    file: Path, supervisor: Supervisor, ledger: Ledger
) -> None:
    job(ledger, "one", place="schedules/a.yaml:12")
    for words in (("put", str(file)), ("put", str(file), "--dry-run"), ("remove", "one")):
        refused = supervisor(*words, app=APP)
        assert (refused.exit_code, "schedules/a.yaml:12" in refused.stderr) == (4, True)
    assert "this one" not in refused.stderr  # nothing is to be loaded in its place
    assert set(ledger.scheduled()) == {"one"}


def test_the_jobs_of_a_file_may_follow_jobs_that_are_loaded(
    file: Path, supervisor: Supervisor, ledger: Ledger
) -> None:
    file.write_text("jobs: {load: {task: planned.poll, after: [extract]}}")
    for words in (("--dry-run",), ()):
        lost = supervisor("put", str(file), *words, app=APP)
        assert (lost.exit_code, "extract" in lost.stderr) == (2, True)
    job(ledger, "extract")
    assert supervisor("put", str(file), app=APP).exit_code == 0
    assert supervisor("put", "-", app=APP, answer=file.read_text()).exit_code == 0


def test_remove_takes_all_of_the_named_jobs_or_none(
    file: Path, supervisor: Supervisor, ledger: Ledger
) -> None:
    supervisor("put", str(file), app=APP)
    unknown = supervisor("remove", "one", "thre", app=APP)
    assert (unknown.exit_code, "did you mean 'three'" in unknown.stderr) == (3, True)
    version = ledger.loaded(["one"]).origins["one"].version
    old = supervisor("remove", "one", "--if-version", str(version - 1), app=APP)
    assert (old.exit_code, len(ledger.scheduled())) == (4, 3)
    assert supervisor("remove", "one", "--if-version", str(version), app=APP).exit_code == 0
    done = supervisor("remove", "three", "two", app=APP)
    assert (done.exit_code, done.stdout) == (0, "three removed\ntwo removed\n")
    assert ledger.scheduled() == {}


def test_jobs_are_listed_and_exported_by_label_source_and_prefix(
    file: Path, supervisor: Supervisor, ledger: Ledger
) -> None:
    supervisor("put", str(file), app=APP)
    job(ledger, "of-a-file", labels={"tenant": "acme"})

    def names(*words: str) -> list[str]:
        result: list[dict[str, Any]] = as_json(supervisor("jobs", "--json", *words))
        exported = supervisor("export", *words).stdout
        listed = [each["job"] for each in result]
        assert all(f"\n  {name}:\n" in exported for name in listed)
        assert exported.count("\n  ") >= len(listed)
        return listed

    assert names("--source", "files") == ["of-a-file"]
    assert names("--label", "tenant=acme") == ["of-a-file", "one"]
    assert names("--label", "tenant", "--source", "runtime") == ["one", "two"]


def test_putting_and_removing_take_the_app(file: Path, supervisor: Supervisor) -> None:
    for words in (("put", str(file)), ("remove", "one")):
        refused = supervisor(*words)
        assert (refused.exit_code, "supervisor -A proj" in refused.stderr) == (2, True)
