"""Jobs and ticks for the ledger's tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from celery import Celery

from supervisor.beat.job_messages import JobMessages
from supervisor.guard.delivery import Delivery
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.attempt import Grant, GrantedAttempt, LeaseState
from supervisor.ledger.job_record import FILES
from supervisor.ledger.leader import Poll
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.loading import EntryKeys, JobChange, LoadVerdict
from supervisor.ledger.specs import read_job
from supervisor.schedule.ticks import Tick
from supervisor.sending.publisher import Publisher
from supervisor.testing import comes_due, has_run_for
from supervisor.times import ms_of

MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)

ENTRIES = EntryKeys("redbeat:", "redbeat::schedule")


def job(
    ledger: Ledger,
    name: str = "nightly",
    *,
    since: datetime | None = MIDNIGHT - timedelta(days=1),
    place: str = "jobs.yaml:1",
    source: str = FILES,
    **keys: Any,
) -> JobSpec:
    """A job that the ledger has loaded, by default from a file and before the tests' ticks.

    since: None for one of whose ticks it does not know which have been dealt with.
    """
    spec = JobSpec(**{"name": name, "task": "proj.nightly", "every": "1s", **keys})
    has_times = since is not None
    change = JobChange(name, spec, place=place, definition="{}", has_new_times=has_times)
    load(ledger, since, change, source)
    return spec


def load(ledger: Ledger, since: datetime | None, change: JobChange, source: str = FILES) -> None:
    reply = ledger.load([change], ENTRIES, source, at=since)
    assert reply.verdict is LoadVerdict.LOADED, reply


def pause(
    ledger: Ledger,
    spec: JobSpec,
    note: str = "",
    *,
    since: datetime = MIDNIGHT - timedelta(days=1),
    until: datetime | None = None,
) -> None:
    """A pause that began, by default, before the ticks of the tests."""
    load(ledger, since, JobChange(spec.name, spec, definition="{}", is_paused=True))
    ledger.pause(spec.name, note, until)


def reload(ledger: Ledger, spec: JobSpec, since: datetime) -> None:
    """The job has its times since then; runs of ticks before that stay."""
    load(ledger, since, JobChange(spec.name, spec, definition="{}", has_new_times=True))


def job_has(ledger: Ledger, name: str, **fields: Any) -> None:
    """As if this had been counted or noted of the job, for what shows it."""
    ledger.client.hset(ledger.keys.job(name), mapping=fields)


def remove(ledger: Ledger, spec: JobSpec) -> None:
    load(ledger, None, JobChange(spec.name, None))


def ticks(spec: JobSpec, *seconds: int) -> list[Tick]:
    return [Tick(spec, MIDNIGHT + timedelta(seconds=second)) for second in seconds]


def with_messages(ledger: Ledger, app: Celery) -> Publisher:
    """Celery has made the messages of all loaded jobs, as it does for the beat that leads."""
    publisher = Publisher(app, ledger)
    messages = JobMessages(app, ledger, publisher.sender, lambda spec: spec)
    while not messages.make_some(Poll(leads=True, at=ledger.now())):
        pass
    return publisher


def run_id(spec: JobSpec, second: int) -> str:
    return ticks(spec, second)[0].run_id


def begin(ledger: Ledger, run: str, token: str = "token") -> Grant:
    grant = ledger.begin(run, token, "worker")
    assert isinstance(grant, Grant), grant
    return grant


def delivery(run: str, token: str = "token") -> Delivery:
    """What a message of the run says, of a job without retries."""
    said: dict[str, Any] = {"run": run, "job": run.split("@")[0], "queue": "celery", "rules": {}}
    said |= {"ledger": ["supervisor", "proj"], "nominal": ms_of(MIDNIGHT)}
    said |= {"retries": 0, "max_retries": 0, "retry_backoff": 0, "retry_backoff_max": 0}
    return Delivery(said, token)


def renew(
    ledger: Ledger,
    run: str,
    token: str = "token",
    granted: GrantedAttempt | None = None,
    *,
    has_begun: bool = True,
) -> LeaseState:
    """The heartbeat of one lease."""
    [renewal] = ledger.renew([(run, token, has_begun, granted)])
    return renewal.state


def granted_of(ledger: Ledger, *, number: int = 1) -> GrantedAttempt:
    """What a worker knows of an attempt that the server would have granted just now."""
    return GrantedAttempt(1000 * ms_of(ledger.now()) + 1000, number, 1)


def states(ledger: Ledger, spec: JobSpec) -> list[str]:
    """The states of the job's runs, oldest first."""
    return [run.state.value for run in reversed(ledger.history(spec.name))]


def admitted(ledger: Ledger, *seconds: int, **keys: Any) -> JobSpec:
    """A job whose ticks of these seconds have been admitted."""
    spec = job(ledger, **keys)
    ledger.admit(ticks(spec, *seconds))
    return spec


def at_work(ledger: Ledger, spec: JobSpec, second: int, token: str = "token") -> Grant:
    """The run of the tick of that second is admitted, and a worker begins it."""
    ledger.admit(ticks(spec, second))
    return begin(ledger, run_id(spec, second), token)


def begun(ledger: Ledger, **keys: Any) -> JobSpec:
    """A job whose first run is at work."""
    spec = job(ledger, **keys)
    at_work(ledger, spec, 0)
    return spec


def failed(ledger: Ledger, spec: JobSpec, second: int) -> str:
    """The run of that second has failed."""
    ledger.admit(ticks(spec, second))
    return fails(ledger, run_id(spec, second))


def lasted(ledger: Ledger, spec: JobSpec, *seconds: float) -> None:
    """A run that succeeded for each of these durations."""
    for number, took in enumerate(seconds):
        run = run_id(spec, number)
        at_work(ledger, spec, number, f"token {number}")
        ledger.finish(run, f"token {number}", RunState.SUCCEEDED)
        has_run_for(ledger, run, timedelta(seconds=took))


def fails(ledger: Ledger, run: str) -> str:
    """A queued run begins, and fails."""
    begin(ledger, run, run)
    ledger.finish(run, run, RunState.FAILED, "ValueError: no")
    return run


def lock_is_free(ledger: Ledger, spec: JobSpec) -> bool:
    return not ledger.client.exists(ledger.keys.lock(spec.lock))


def try_often(ledger: Ledger, run: str, times: int) -> None:
    """So many attempts of a queued run that fail; each retry comes at once."""
    for attempt in range(times):
        begin(ledger, run, f"attempt-{attempt}")
        ledger.retry(run, f"attempt-{attempt}", timedelta(), "not yet")
        comes_due(ledger, run)
        ledger.rescue()


def entered(ledger: Ledger) -> dict[str, JobSpec]:
    """The jobs that RedBeat's schedule lists, each as its entry has it."""
    keys = ledger.client.zrange("redbeat::schedule", 0, -1)
    assert all(ledger.client.hexists(key, "definition") for key in keys)
    specs = [read_job(ledger.client.hget(key, "spec") or "") for key in keys]
    return {spec.name: spec for spec in specs if spec}
