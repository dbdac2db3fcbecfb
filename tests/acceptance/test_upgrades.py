"""A ledger that the first release left is taken over; one of a newer version is left alone."""

from __future__ import annotations

import json

from supervisor.job.run import Run
from supervisor.ledger.functions import SCHEMA
from supervisor.ledger.ledger import Ledger
from supervisor.ticks.audit import audit
from tests.acceptance.first_release import DUMP, JOBS, restore
from tests.acceptance.project import Project
from tests.waiting import status_of, wait_until


def runs_of(ledger: Ledger, job: str) -> list[Run]:
    """Those admitted first first."""
    return ledger.history(job)[::-1]


def states(ledger: Ledger, job: str) -> list[str]:
    return [run.state.value for run in runs_of(ledger, job)]


def outcomes(run: Run) -> list[str | None]:
    return [attempt.outcome for attempt in run.attempts]


def counted(ledger: Ledger, job: str) -> dict[str, int]:
    return dict(ledger.job(job).counters)


def is_settled(ledger: Ledger) -> bool:
    """Nothing is open but what its queue holds back."""
    loaded = ledger.scheduled()
    return {n for n in loaded if ledger.client.scard(ledger.keys.open(n))} == {"held-back"}


def test_a_ledger_of_the_first_release_is_gone_on_with(project: Project) -> None:
    ledger = project.ledger
    ledger.client.flushdb()
    restore(ledger.client, json.loads(DUMP.read_text()))
    before = counted(ledger, "ended")
    project.schedule(JOBS)
    project.beat()
    project.worker(queues="celery,mail")
    wait_until(lambda: is_settled(ledger), 40)
    assert ledger.client.get(ledger.keys.schema) == str(SCHEMA)

    # What was history is history, and counts as it did.
    assert counted(ledger, "ended") == before
    first, second = runs_of(ledger, "ended")
    assert (outcomes(first), outcomes(second)) == (["failed", "succeeded"], ["failed"])
    # What was at work without anybody is found, and who waited for it has its turn.
    assert states(ledger, "at-work") == ["succeeded", "succeeded"]
    assert outcomes(runs_of(ledger, "at-work")[0]) == ["lost", "succeeded"]
    assert states(ledger, "given-up") == ["lost", "succeeded"]
    assert states(ledger, "retrying") == ["succeeded"]
    assert states(ledger, "queued") == ["succeeded"]
    # What was paused is, with its reason; a tick that no beat emitted is missed.
    paused = ledger.job("paused")
    assert (paused.state, paused.paused_note) == ("paused", "until the move is done")
    assert counted(ledger, "paused")["excluded:paused"] == 1
    assert counted(ledger, "passed")["missed:window"] == 1
    # A drained queue stays so, and loses nothing.
    assert states(ledger, "held-back") == ["queued"]
    ledger.drains.undrain("mail")
    wait_until(lambda: states(ledger, "held-back") == ["succeeded"], 20)

    starts = [sign.run for sign in project.witness() if sign.event == "start"]
    assert len(starts) == len(set(starts)) == 6
    assert list(audit(ledger, ledger.scheduled().values(), ledger.now())) == []


def test_beat_and_workers_stop_when_a_newer_version_takes_the_ledger(project: Project) -> None:
    project.schedule("jobs: {steady: {task: team.work, every: 1s}}")
    beat, worker, ledger = project.beat(), project.worker(), project.ledger
    project.wait_for_jobs()
    wait_until(lambda: ledger.presences.roll().workers, 20)
    ledger.client.set(ledger.keys.schema, SCHEMA + 1)
    assert status_of(beat, 40) != 0
    assert status_of(worker, 40) != 0
    ticks = counted(ledger, "steady").get("ticks")
    told = f"the ledger has schema {SCHEMA + 1} and this version"
    assert told in project.log("beat")
    [event] = project.events_of(worker, "worker stopped")
    assert told in str(event["error"])
    # Those that start refuse at once.
    assert status_of(project.beat(), 40) != 0
    refused = project.hire()
    assert status_of(refused, 40) != 0
    assert told in project.log_of(refused)
    assert counted(ledger, "steady").get("ticks") == ticks


def test_a_command_says_what_to_do_with_a_newer_ledger(project: Project) -> None:
    ledger = project.ledger
    ledger.client.set(ledger.keys.schema, SCHEMA + 1)
    done = project.supervisor("drain", "celery", "--force")
    assert done.returncode == 4
    assert "install the version that the other processes run" in done.stderr
    assert "docs/how-to/upgrading.md" in done.stderr
