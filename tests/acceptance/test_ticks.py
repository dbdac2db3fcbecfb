"""From schedule file to end state: ticks, overlap, edits, with real beats and workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.features.audit.step import audit
from supervisor.ledger.ledger import Ledger
from supervisor.testing import leadership_runs_out
from tests.acceptance.project import Project, outcomes, overlapping, ticks_between
from tests.waiting import status_of, wait_until

#: Waits instead of skipping: on a busy machine each tick is a run all the same.
STEADY = "jobs: {steady: {task: team.work, every: 1s, overlap: queue_all}}"


def accounted(ledger: Ledger, job: str) -> bool:
    """Every tick has exactly one outcome, or is still open."""
    return sum(outcomes(ledger, job).values()) == ledger.job(job).counters.get("ticks", 0)


def test_runs_of_every_policy_keep_their_promise(project: Project) -> None:
    project.schedule("""
jobs:
  prompt: {task: team.work, every: 1s, overlap: queue_all}
  skips: {task: team.work, every: 1s, args: [1.5]}
  waits: {task: team.work, every: 1s, args: [1.5], overlap: queue_one, serial: own}
  queues: {task: team.work, every: 2s, args: [0.5], overlap: queue_all, serial: shared}
  shares: {task: team.work, every: 2s, args: [0.5], serial: shared}
  requeues:
    {task: team.work, every: 1s, args: [1.5], overlap: requeue, requeue_delay: 1s, max_requeues: 1}
""")
    project.worker(processes=6)
    # Two processes on each serial queue: the guard, not the worker's -c 1, keeps it serial.
    project.worker(queues="serial.own,serial.shared", processes=4)
    project.beat()
    ledger = project.ledger
    wait_until(lambda: len(project.starts("prompt")) >= 10, 40)

    jobs = ("prompt", "skips", "waits", "queues", "shares", "requeues")
    for job in jobs:
        assert overlapping(project.witness(job)) == []
        assert "overlaps" not in ledger.job(job).counters
    # Read at once: an end that came between two readings would be missed.
    shared = [sign for sign in project.witness() if sign.run.startswith(("queues@", "shares@"))]
    assert overlapping(shared) == []
    assert len({sign.run.partition("@")[0] for sign in shared}) == 2
    assert set(ticks_between(project.starts("prompt"))) == {1.0}

    counters = {job: ledger.job(job).counters for job in jobs}
    assert counters["skips"]["skipped:overlap"] > 0
    assert counters["waits"]["skipped:overlap"] > 0
    assert "skipped:overlap" not in counters["queues"]
    assert counters["requeues"]["requeued"] > 0
    assert counters["requeues"]["skipped:requeues_exhausted"] > 0
    wait_until(lambda: all(accounted(ledger, job) for job in jobs))


def test_a_retry_begins_when_it_is_due_and_not_with_the_next_tick(project: Project) -> None:
    project.extend("""
@app.task(bind=True)
def again(self):
    sign("start", self)
    if self.request.retries < 1:
        raise self.retry(countdown=1 + (0.5 - time.time()) % 1)
""")
    project.deploy("jobs: {again: {task: team.again, every: 1s, overlap: allow, max_retries: 1}}")

    def seconds_after_half_past() -> list[float]:
        retries = [sign for sign in project.witness("again") if sign.retries]
        return [(sign.at - 0.5) % 1 for sign in retries]

    # On a busy machine most are late, but not all.
    wait_until(lambda: any(late < 0.2 for late in seconds_after_half_past()), 20)


def test_a_job_at_run_time_outlives_beats_and_files(project: Project) -> None:
    project.schedule(STEADY)
    beat = project.beat()
    project.worker()
    project.wait_for_jobs()
    project.code("""
from supervisor import jobs
print(json.dumps(jobs.put("put", task="team.work", every="1s", overlap="queue_all").version))
""")
    wait_until(lambda: project.starts("put"))
    beat.terminate()
    beat.wait()
    project.schedule("jobs: {other: {task: team.work, every: 1h}}")
    project.beat()
    before = len(project.starts("put"))
    wait_until(lambda: len(project.starts("put")) > before, 40)
    ledger = project.ledger
    wait_until(lambda: set(ledger.scheduled()) == {"put", "other"}, 20)

    project.code('from supervisor import jobs; print(json.dumps(jobs.remove("put")))')
    wait_until(lambda: not ledger.open_runs_of(["put"]), 20)
    spec = ledger.removed()["put"]
    assert audit(ledger, [spec], ledger.now(), ["put"]) == []
    [removed] = ledger.records_of([spec])
    assert sum(run.ticks for run in ledger.history("put", 200)) == removed.counters["ticks"] >= 2
    assert removed.unaccounted_ticks == 0


def test_edits_take_effect_and_leave_other_jobs_alone(project: Project) -> None:
    project.schedule(STEADY, "steady.yaml")
    project.beat()
    project.worker()
    ledger = project.ledger
    wait_until(lambda: project.starts("steady"), 20)

    project.schedule("jobs: {added: {task: team.work, every: 1s}}", "other.yaml")
    wait_until(lambda: "added" in ledger.scheduled())
    wait_until(lambda: project.starts("added"))

    project.schedule("jobs: {added: {task: team.work, every: 1h}}", "other.yaml")
    wait_until(lambda: ledger.spec("added").schedule == "every 1h")

    project.schedule("jobs: {added: {tusk: team.work}}", "other.yaml")
    wait_until(lambda: ledger.beat().last_reload_successful is False)
    assert set(ledger.scheduled()) == {"steady", "added"}
    assert any("tusk" in problem for problem in ledger.beat().problems)

    (project.schedules / "other.yaml").unlink()
    wait_until(lambda: ledger.beat().last_reload_successful is True)
    assert set(ledger.scheduled()) == {"steady"}
    assert not ledger.client.exists("redbeat:added")
    assert ledger.client.ttl(ledger.keys.job("added")) > 0

    loads = project.events("beat", "schedule files loaded")
    assert [(load["added"], load["changed"], load["removed"]) for load in loads] == [
        (["steady"], [], []),
        (["added"], [], []),
        ([], ["added"], []),
        ([], [], ["added"]),
    ]
    seen = len(project.starts("steady"))
    wait_until(lambda: len(project.starts("steady")) > seen)
    assert set(ticks_between(project.starts("steady"))) == {1.0}


def test_a_leader_that_is_stopped_hands_over_at_once(project: Project) -> None:
    project.schedule(STEADY)
    leader = project.beat()
    project.worker()
    ledger = project.ledger
    wait_until(lambda: project.starts("steady"), 20)
    project.beat()
    beats = ledger.presences
    wait_until(lambda: sorted(beat.leads for beat in beats.processes().beats) == [False, True], 20)
    [leading] = [beat.name for beat in beats.processes().beats if beat.leads]
    assert leading.endswith(f":{leader.pid}")

    held = ledger.client.get("redbeat::lock")
    leader.terminate()
    status_of(leader)
    assert ledger.client.get("redbeat::lock") != held  # which it would be for LEADER_TTL
    wait_until(
        lambda: [beat.name for beat in beats.processes().beats if beat.leads] not in ([], [leading])
    )
    seen = len(project.starts("steady"))
    wait_until(lambda: len(project.starts("steady")) > seen + 2, 10)
    assert set(ticks_between(project.starts("steady"))) == {1.0}
    wait_until(lambda: accounted(ledger, "steady"))


def test_what_was_removed_while_no_beat_ran_does_not_run_again(project: Project) -> None:
    every = "{task: team.work, every: 2s}"
    names = ("gone", "held", "slower", "stays")
    project.schedule("\n".join(["jobs:", *(f"  {name}: {every}" for name in names)]))
    ledger, beat = project.ledger, project.beat()
    project.worker()
    wait_until(lambda: all(project.starts(name) for name in names), 20)
    beat.terminate()
    beat.wait()
    wait_until(lambda: not any("open" in outcomes(ledger, name) for name in names))
    seen = {name: len(project.starts(name)) for name in names}

    edited = ["jobs:", "  held: {task: team.work, every: 2s, paused: true}"]
    edited += ["  slower: {task: team.work, every: 1h}", f"  stays: {every}"]
    project.schedule("\n".join(edited))
    since = ledger.now()
    wait_until(lambda: (ledger.now() - since).total_seconds() > 3)  # each had a tick meanwhile
    project.beat()
    wait_until(lambda: len(project.starts("stays")) > seen["stays"], 30)
    wait_until(lambda: ledger.spec("slower").schedule == "every 1h")
    # What was due before the edit is emitted as it was loaded.
    wait_until(lambda: len(project.starts("slower")) > seen["slower"])
    new = {name: len(project.starts(name)) - seen[name] for name in names}
    assert (new["gone"], new["held"]) == (0, 0)
    assert int(ledger.client.hget(ledger.keys.job("gone"), "n:missed:edited")) >= 1
    assert ledger.job("held").counters["excluded:paused"] >= 1
    wait_until(lambda: all(accounted(ledger, name) for name in ("held", "slower")))


def ticks(project: Project) -> int:
    return (
        project.ledger.job("steady").counters.get("ticks", 0)
        if "steady" in project.ledger.scheduled()
        else 0
    )


def test_a_beat_that_loses_the_lock_stands_by_and_leads_again(project: Project) -> None:
    project.schedule("jobs: {steady: {task: team.work, every: 1s}}")
    beat, other = project.beat(), project.ledger.leader("redbeat::lock", "redbeat::schedule")
    wait_until(lambda: ticks(project), 20)
    wait_until(lambda: leadership_runs_out(project.ledger) or other.poll().leads)
    wait_until(lambda: project.events("beat", "leadership held elsewhere"))
    seen = ticks(project)
    other.resign()
    wait_until(lambda: len(project.events("beat", "leadership taken")) == 2)
    assert beat.poll() is None
    wait_until(lambda: ticks(project) > seen)
    wait_until(lambda: accounted(project.ledger, "steady"))


# Redis is unavailable for a while: each tick has one outcome all the same


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[tuple[EmbeddedServer, Project]]:
    """A project on a server of its own, which the test may stop."""
    with EmbeddedServer(tmp_path / "valkey") as server:
        project = Project(tmp_path / "team", server.url)
        project.ledger.acknowledge_server()
        yield server, project
        project.stop()


@pytest.mark.parametrize("outage", ["paused", "restarted"])
def test_every_tick_of_an_outage_of_redis_has_one_outcome(
    fragile: tuple[EmbeddedServer, Project], outage: str
) -> None:
    server, project = fragile
    project.schedule("""
defaults: {lease_ttl: 3s}  # for so long nothing starts on a server that was restarted
jobs:
  all: {task: team.work, every: 1s, overlap: queue_all, catchup: all}
  skips: {task: team.work, every: 1s, args: [1.5]}
""")
    beat = project.beat()
    worker = project.worker(processes=4)
    ledger = project.ledger
    wait_until(lambda: len(project.starts("all")) >= 2, 20)

    if outage == "paused":
        ledger.client.client_pause(10_000, all=True)
    else:
        server.stop()
        # Each of them is a second of waiting, and some time of trying again.
        wait_until(lambda: len(project.events("beat", "turn failed")) >= 6, 30)
        server.start()

    before, workers = len(project.starts("all")), [worker]

    def caught_up() -> bool:
        # kombu may end a worker whose connection breaks; whatever runs workers starts another.
        if workers[-1].poll() is not None:
            workers.append(project.hire(processes=4))
        return len(project.starts("all")) >= before + 12

    wait_until(caught_up, 60)
    assert beat.poll() is None
    assert set(ticks_between(project.starts("all"))) == {1.0}
    for job in ("all", "skips"):
        assert overlapping(project.witness(job)) == []
        wait_until(lambda job=job: accounted(project.ledger, job))  # type: ignore[misc]
