"""Jobs that follow others, with real beats and workers."""

from __future__ import annotations

from datetime import UTC, datetime

from supervisor.job.run import RunState, tick_id
from supervisor.ledger.requests import RunRequest
from tests.acceptance.project import Project
from tests.waiting import wait_until

SOURCES = [f"source-{number:02}" for number in range(50)]

MIDDLE = SOURCES[25]

MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)


def test_a_fan_in_of_50_with_a_failure_in_the_middle_and_a_kill_of_beat(project: Project) -> None:
    tasks = dict.fromkeys(SOURCES, "team.work") | {MIDDLE: "team.fail"}
    after = f"after: [{', '.join(SOURCES)}]"
    project.schedule(
        "jobs:\n"
        + "".join(f"  {name}: {{task: {task}}}\n" for name, task in tasks.items())
        + f"  strict: {{task: team.work, {after}}}\n"
        + f"  lenient: {{task: team.work, {after}, after_policy: done}}\n"
        + "  last: {task: team.work, after: [lenient]}\n"
    )
    first = project.beat()
    project.worker(processes=4)
    project.wait_for_jobs()
    ledger = project.ledger
    for name in SOURCES:
        ledger.trigger(ledger.spec(name), RunRequest(nominal_at=MIDNIGHT))
    wait_until(lambda: len(project.witness()) > 20, 60)
    first.kill()
    project.beat()
    wait_until(lambda: project.starts("last"), 90)

    [skipped] = ledger.history("strict")
    assert (skipped.state, skipped.reason) == (RunState.SKIPPED, "upstream")
    assert (skipped.blocked_by or "").startswith(f"{MIDDLE}@")
    assert [run.id for run in ledger.history("last")] == [tick_id("last", MIDNIGHT)]
    assert len(project.starts("lenient")) == len(project.starts("last")) == 1
    assert not project.starts("strict")
    wait_until(lambda: all(job.unaccounted_ticks == 0 for job in ledger.jobs()))
