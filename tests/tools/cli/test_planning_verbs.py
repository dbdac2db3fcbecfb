"""plan and apply on a real ledger: what they print, what they change, how they exit."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from supervisor.catalog.entries import Entries
from supervisor.catalog.load import put_jobs
from supervisor.cli.files import MOST_SHOWN
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.times import ms_of
from tests.commands import Supervisor, as_json
from tests.jobs import job, lasted, remove
from tests.presence import beat_says

APP, PLAIN = (f"tests.tools.cli.planned_app:{name}" for name in ("app", "plain"))

FILE = """
jobs:
  kept: {task: planned.poll, every: 5m}
  edited: {task: planned.poll, every: 7m, queue: slow}
  nightly: {task: planned.poll, cron: "30 2 * * *", timezone: Europe/Berlin}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project as the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schedules").mkdir()
    (tmp_path / "schedules" / "jobs.yaml").write_text(FILE)
    return tmp_path


@pytest.fixture
def loaded(ledger: Ledger) -> Ledger:
    job(ledger, "kept", task="planned.poll", every="5m")
    job(ledger, "edited", task="planned.poll", every="5m")
    job(ledger, "gone", task="planned.poll", every="5m")
    return ledger


def lead(ledger: Ledger, follows: str) -> None:
    """What a beat that leads has written into the ledger."""
    signs = {"leader": "host:1", "last_tick": ms_of(ledger.now()), "follows": follows}
    beat_says(ledger, **signs)


def test_a_plan_has_a_block_for_each_job_and_the_counts(
    loaded: Ledger, supervisor: Supervisor
) -> None:
    before_it = loaded.scheduled()
    lines = supervisor("plan").stdout.splitlines()
    assert loaded.scheduled() == before_it
    assert [line for line in lines if not line.startswith(" ")] == [
        "~ edited  every 7m",
        "- gone",
        "+ nightly  30 2 * * * Europe/Berlin",
        "1 added, 1 changed, 1 removed, 1 unchanged",
    ]
    assert "    every   5m -> 7m" in lines
    assert "    queue   none -> slow" in lines
    before, after = (line for line in lines if line.startswith(("    before", "    after")))
    assert before != after
    assert (
        sum("02:30 does not exist in Europe/Berlin, runs at 03:00" in line for line in lines) == 2
    )


def test_a_plan_says_that_many_jobs_start_in_the_same_second(
    ledger: Ledger, supervisor: Supervisor, here: Path
) -> None:
    file = here / "schedules" / "jobs.yaml"
    one = "{task: planned.poll, every: 5m%s}"
    for more, noted in (("", True), (", jitter: 30s", False)):
        jobs = ", ".join(f"job-{n}: {one % more}" for n in range(10))
        file.write_text(f"jobs: {{{jobs}}}")
        output = supervisor("plan").stderr
        assert (
            "note: 10 jobs with the schedule every 5m start in the same second" in output
        ) == noted


def test_a_plan_as_json_names_keys_ticks_and_clock_changes(
    loaded: Ledger, supervisor: Supervisor
) -> None:
    plan = as_json(supervisor("plan", "--json"))
    assert (plan["added"], plan["changed"], plan["removed"]) == (["nightly"], ["edited"], ["gone"])
    assert plan["unchanged"] == 1
    edited, nightly = plan["jobs"]
    assert edited["keys"]["every"] == {"old": "5m", "new": "7m"}
    assert [len(edited[key]) for key in ("ticks_before", "ticks_after")] == [5, 5]
    assert [len(nightly[key]) for key in ("ticks_before", "ticks_after")] == [0, 5]
    assert [change["kind"] for change in nightly["clock_changes"]].count("gap") == 2
    assert nightly["overlaps"] is None


def test_a_plan_foresees_overlaps_from_the_durations_that_the_ledger_has(
    loaded: Ledger, supervisor: Supervisor
) -> None:
    lasted(loaded, loaded.spec("edited"), *[180] * 18, 300, 780)
    output = supervisor("plan").stdout
    assert "    durations  median 3m, p95 5m, longest 13m, of 20 runs\n" in output
    assert "    overlaps   runs take up to 13m, every 7m: about " in output
    assert "; a safe interval is 13m\n" in output
    [edited, _] = as_json(supervisor("plan", "--json"))["jobs"]
    assert edited["overlaps"]["safe_interval_seconds"] == 780


@pytest.mark.parametrize(
    ("words", "status"), [((), 0), (("--exit-code",), 1), (("--exit-code", "--nonsense"), 2)]
)
def test_changes_are_an_exit_code_where_that_is_asked_for(
    loaded: Ledger, supervisor: Supervisor, words: tuple[str, ...], status: int
) -> None:
    assert supervisor("plan", *words).exit_code == status


def test_without_changes_the_exit_code_is_0(supervisor: Supervisor) -> None:
    assert supervisor("apply", "--yes", app=APP).exit_code == 0
    result = supervisor("plan", "--exit-code")
    assert (result.exit_code, result.stdout) == (0, "0 added, 0 changed, 0 removed, 3 unchanged\n")


def test_files_with_problems_are_told_as_check_does(here: Path, supervisor: Supervisor) -> None:
    (here / "schedules" / "jobs.yaml").write_text("jobs: {a: {task: t, evry: 5m}}")
    for words in ((), ("--json",)):
        result, checked = supervisor("plan", *words), supervisor("check", *words)
        assert (
            (result.exit_code, result.stdout)
            == (checked.exit_code, checked.stdout)
            == (1, result.stdout)
        )
        assert "evry" in result.stdout


def test_apply_loads_what_the_plan_says(loaded: Ledger, supervisor: Supervisor) -> None:
    result = supervisor("apply", "--yes", app=APP)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "applied: 1 added, 1 changed, 1 removed, 1 unchanged"
    assert set(loaded.scheduled()) == {"kept", "edited", "nightly"}
    assert loaded.client.zscore("redbeat::schedule", "redbeat:nightly")
    again = supervisor("apply", "--yes", app=APP)
    assert (again.exit_code, again.stdout) == (0, "0 added, 0 changed, 0 removed, 3 unchanged\n")


def test_apply_of_many_jobs_shows_the_first_of_them(
    loaded: Ledger, supervisor: Supervisor, here: Path
) -> None:
    jobs = "".join(f"  job-{n}: {{task: planned.poll, every: 5m, jitter: 1m}}\n" for n in range(60))
    (here / "schedules" / "jobs.yaml").write_text(f"jobs:\n{jobs}")
    shown = supervisor("apply", "--yes", app=APP).stdout.splitlines()
    blocks = [line for line in shown if not line.startswith(" ")]
    assert blocks[:2] == ["- edited", "- gone"]
    assert len(blocks) == MOST_SHOWN + 3
    assert blocks[-3] == f"and {63 - MOST_SHOWN} more jobs: `supervisor plan` shows all"
    assert blocks[-1] == "applied: 60 added, 0 changed, 3 removed, 0 unchanged"
    assert len(supervisor("plan").stdout.splitlines()) == 1


@pytest.mark.parametrize(("answer", "status", "added"), [("y\n", 0, True), ("n\n", 1, False)])
def test_apply_asks(
    loaded: Ledger, supervisor: Supervisor, answer: str, status: int, added: bool
) -> None:
    result = supervisor("apply", app=APP, answer=answer)
    assert result.exit_code == status
    assert "Apply? [y/N]" in result.stderr
    assert ("nightly" in loaded.scheduled()) is added


@pytest.mark.parametrize(
    ("app", "said"),
    [(None, "name the Celery app: supervisor -A proj apply"), (PLAIN, "supervise(")],
)
def test_apply_needs_a_supervised_app(
    loaded: Ledger, supervisor: Supervisor, app: str | None, said: str
) -> None:
    result = supervisor("apply", "--yes", app=app)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "nightly" not in loaded.scheduled()


@pytest.mark.parametrize(
    ("follows", "warned"), [("another digest", True), ("", False), ("the same", False)]
)
def test_apply_warns_where_a_beat_follows_other_files(
    loaded: Ledger, supervisor: Supervisor, follows: str, warned: bool
) -> None:
    if follows == "the same":
        supervisor("apply", "--yes", app=APP)
        follows = loaded.client.hget(loaded.keys.beat, "config")
        remove(loaded, loaded.spec("kept"))
    lead(loaded, follows)
    result = supervisor("apply", "--yes", app=APP)
    assert result.exit_code == 0
    assert ("warning: beat host:1 leads and follows schedule files" in result.stderr) is warned


def test_apply_does_not_warn_of_a_beat_that_is_gone(loaded: Ledger, supervisor: Supervisor) -> None:
    lead(loaded, "another digest")
    beat_says(loaded, last_tick=ms_of(loaded.now()) - 60_000)
    assert "warning" not in supervisor("apply", "--yes", app=APP).stderr


def test_apply_does_not_warn_of_a_beat_that_refuses_its_files(
    loaded: Ledger, supervisor: Supervisor
) -> None:
    lead(loaded, "another digest")
    beat_says(loaded, last_reload_successful=0)
    assert "warning" not in supervisor("apply", "--yes", app=APP).stderr


def test_jobs_of_other_sources_are_in_no_plan_and_stay(
    loaded: Ledger, entries: Entries, supervisor: Supervisor
) -> None:
    put = JobSpec(name="put", task="planned.poll", every=timedelta(minutes=5))
    put_jobs(loaded, entries, {"put": put}, "runtime", "put by ann")
    assert "put" not in supervisor("plan").stdout
    assert supervisor("-A", APP, "apply", "--yes").exit_code == 0
    assert set(loaded.scheduled()) == {"kept", "edited", "nightly", "put"}


def test_a_name_that_another_source_has_is_a_problem_with_both_places(
    loaded: Ledger, entries: Entries, supervisor: Supervisor
) -> None:
    nightly = JobSpec(name="nightly", task="planned.poll", every=timedelta(minutes=5))
    put_jobs(loaded, entries, {"nightly": nightly}, "runtime", "put by ann")
    before = loaded.scheduled()
    for verb in (("plan",), ("-A", APP, "apply", "--yes")):
        refused = supervisor(*verb)
        assert refused.exit_code == 1
        assert refused.stdout == (
            "schedules/jobs.yaml:5: job 'nightly': a job of this name is loaded from elsewhere:"
            " put by ann (rename one, or remove that one)\n"
        )
    [problem] = json.loads(supervisor("plan", "--json").stdout)
    assert (problem["file"], problem["line"]) == ("schedules/jobs.yaml", 5)
    assert loaded.scheduled() == before


def test_the_removal_of_most_jobs_is_warned_of(
    loaded: Ledger, supervisor: Supervisor, here: Path
) -> None:
    for number in range(5):
        job(loaded, f"more-{number}", task="planned.poll", every="5m")
    removal = "6 of the 8 jobs of schedule files would be removed"
    assert removal in supervisor("plan").stderr
    applied = supervisor("-A", APP, "apply", "--yes")
    assert removal in applied.stderr
    assert set(loaded.scheduled()) == {"kept", "edited", "nightly"}
