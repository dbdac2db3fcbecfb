"""Jobs with `run_at_start`: one run when the service starts, and none when a beat is relieved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from supervisor.app import supervise
from supervisor.beat.scheduler import SupervisedScheduler
from supervisor.beat.starts import Starts, may_run
from supervisor.job.run import Run, start_id
from supervisor.job.spec import JobSpec
from supervisor.ledger.leader import SILENCE
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import ms_of
from supervisor.operate import why
from supervisor.operate.why_facts import facts_of_job
from tests.ledger.jobs import MIDNIGHT
from tests.waiting import wait_until

JOBS = """
jobs:
  warm: {task: t, run_at_start: true}
  nightly: {task: t, at: [2099-01-01T00:00:00], run_at_start: true}
  held: {task: t, run_at_start: true, paused: true}
  plain: {task: t, at: [2099-01-01T00:00:00]}
"""

Beats = Callable[[], SupervisedScheduler]


@pytest.fixture
def beats(redis_url: str, tmp_path: Path) -> Iterator[Beats]:
    (tmp_path / "jobs.yaml").write_text(JOBS)
    app, made = supervise(Celery("starts", broker=redis_url), schedules=tmp_path), []

    def beat() -> SupervisedScheduler:
        made.append(SupervisedScheduler(app, lazy=True))
        return made[-1]

    yield beat
    for each in made:
        each.close()
    app.close()


def until_settled(beat: SupervisedScheduler, ledger: Ledger) -> None:
    """Turns of a beat until its files are loaded and a start, if there is one, is over."""

    def turn() -> bool:
        beat.tick()
        assert beat._reloading
        return beat._reloading.is_settled and beat._starts.at is None

    wait_until(turn)
    assert ledger.client.hget(ledger.keys.beat, "starting") is None
    beat.tick()


def runs_of(ledger: Ledger) -> dict[str, list[Run]]:
    return {name: ledger.history(name) for name in ledger.scheduled() if ledger.history(name)}


def ago(ledger: Ledger, time: timedelta) -> None:
    """As if the last turn of a beat were that long ago."""
    ledger.client.hset(ledger.keys.beat, "last_tick", ms_of(ledger.now() - time))


def test_a_job_runs_once_when_the_service_starts_with_its_files(
    beats: Beats, ledger: Ledger
) -> None:
    beat = beats()
    until_settled(beat, ledger)
    found = runs_of(ledger)
    assert found.keys() == {"warm", "nightly"}
    for name, [run] in found.items():
        assert run.id == start_id(name, run.nominal_at)
        assert run.sends == 1
        assert ledger.job(name).counters["triggered"] == 1
    beat.tick()
    assert runs_of(ledger) == found


def test_it_runs_again_after_a_time_without_a_beat_and_not_at_once(
    beats: Beats, ledger: Ledger
) -> None:
    first, second, third = beats(), beats(), beats()
    until_settled(first, ledger)
    first.close()
    until_settled(second, ledger)
    assert len(ledger.history("warm")) == 1
    second.close()
    ago(ledger, SILENCE + timedelta(seconds=1))
    until_settled(third, ledger)
    assert len(ledger.history("warm")) == 2
    # The job's lock is held by the run before, which no worker took.
    assert ledger.history("warm")[0].blocked_by == ledger.history("warm")[1].id


def test_a_standby_that_takes_over_late_starts_nothing(beats: Beats, ledger: Ledger) -> None:
    first, second = beats(), beats()
    until_settled(first, ledger)
    second.tick()
    first.close()
    ago(ledger, 2 * SILENCE)
    until_settled(second, ledger)
    assert len(ledger.history("warm")) == 1


def test_a_start_that_a_beat_did_not_finish_is_finished_by_the_next(
    beats: Beats, ledger: Ledger
) -> None:
    first = beats()
    until_settled(first, ledger)
    first.close()
    ago(ledger, 2 * SILENCE)
    before, [run, *_] = Starts(ledger), ledger.history("nightly")
    ledger.cancel(run.id, "so that it is not in the way")
    before.begin(ledger.now(), is_first=True)
    for starts in (Starts(ledger), Starts(ledger)):  # one dies after it gave the jobs their runs
        starts.begin(ledger.now(), is_first=False)
        assert starts.at == before.at
        starts.finish()
        ledger.client.hset(ledger.keys.beat, "starting", ms_of(before.at or MIDNIGHT))
    assert before.at
    assert [run.id for run in ledger.history("nightly")][:-1] == [start_id("nightly", before.at)]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"every": "1h", "jitter": "5m"}, True),
        ({}, True),
        ({"every": "1h", "end_at": "2026-01-01T00:00:00"}, False),
        ({"every": "1h", "start_at": "2099-01-01T00:00:00"}, False),
        ({"cron": "0 9 * * *", "exclude": [f"{MIDNIGHT:%a}"]}, False),
        ({"cron": "0 9 * * *", "dst": {"fold": "both"}, "exclude": ["2026-01-01"]}, True),
    ],
    ids=str,
)
def test_the_bounds_of_a_job_hold_for_this_run_too(keys: dict[str, Any], expected: bool) -> None:
    spec = JobSpec.model_validate({"name": "a", "task": "t", "run_at_start": True, **keys})
    assert may_run(spec, MIDNIGHT) is expected


def test_it_is_called_the_run_at_start(beats: Beats, ledger: Ledger) -> None:
    until_settled(beats(), ledger)
    [sentence, *_, last] = why.answer(facts_of_job(ledger, "warm"))
    assert sentence.startswith("the run at start of ")
    assert last.endswith("it runs at start, and when code or a person asks for it")
    assert ledger.spec("warm").schedule == "at start"
    assert ledger.spec("nightly").schedule == "at 2099-01-01T00:00:00, at start"
