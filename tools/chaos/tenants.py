"""``python -m tools.chaos.tenants --minutes 10 --tenants 10000``: jobs that come and go.

A program puts, edits and removes a job of each tenant at random while beats and workers are killed.
It remembers each life of each job: from when to when its ticks counted, and how often it ran. The
grid of `every` is computed here, and not by the product. Exits 1 when a tick of a life has no
outcome or two, when one of no life has any, or when a run that succeeded never started.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import click
from celery import Celery

from supervisor import jobs
from supervisor.app import supervise
from supervisor.deploy.embedded import EmbeddedServer
from supervisor.features.audit.step import audit, is_of_a_tick
from supervisor.job.run import Run, RunState
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import ms_of
from tests.waiting import wait_until
from tools.chaos.two_apps import KILL_SECONDS, Deployment

PREFIX = "supervisor"

SOURCE = """\
import json, os
from celery import Celery
from supervisor import current_run
from supervisor.app import supervise

app = Celery("team", broker=os.environ["BROKER"])
supervise(app, schedules="schedules")


@app.task
def work(edit):
    run = current_run()
    line = json.dumps([run.job, run.nominal_at.timestamp(), edit])
    with open("witness.jsonl", "a") as witness:
        witness.write(line + "\\n")
"""

#: Programs that edit; each job has one that edits it, so that its lives are known exactly.
EDITORS = 4

#: How long a job stays as it is, on average.
EDITED_AFTER_SECONDS = 30.0

#: What is done next with a job that is loaded.
ACTIONS = ("times", "times", "arguments", "same", "remove", "remove")

SETTLE_SECONDS = 180.0


class Service(Deployment):
    """Two beats and two workers."""

    source: ClassVar[str] = SOURCE
    schedule: ClassVar[str] = "jobs: {{steady: {{task: team.work, every: 5s, args: [steady]}}}}"

    @property
    def members(self) -> dict[str, tuple[str, ...]]:
        worker = ("worker", "-l", "warning", "-c", "3", "-n")
        return {
            "beat0": ("beat", "-l", "warning"),
            "beat1": ("beat", "-l", "warning"),
            "worker0": (*worker, "worker0@%h"),
            "worker1": (*worker, "worker1@%h"),
        }


@dataclass(frozen=True)
class Life:
    """Ticks of a job at the multiples of `every` seconds in (since, until], in ms."""

    every: int
    since: int
    until: int

    @property
    def ticks(self) -> range:
        step = 1000 * self.every
        return range((self.since // step + 1) * step, self.until + 1, step)


@dataclass
class Tenant:
    """One job, as its editor knows it. edits: when its arguments changed, in ms; they name how
    often they have.
    """

    name: str
    intervals: tuple[int, ...]
    every: int | None = None
    since: int = 0
    edits: list[int] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)

    def keys(self, every: int) -> dict[str, Any]:
        labels = {"tenant": self.name}
        keys = {"task": "team.work", "every": every, "args": [len(self.edits)], "labels": labels}
        return {**keys, "lease_ttl": "4s", "history": 10_000}

    def act(self, app: Celery, ledger: Ledger, rng: random.Random) -> str:
        """Does something at random with the job, and notes what became of its times."""
        if self.every is None:
            self.put(app, ledger, rng.choice(self.intervals))
            return "put"
        action = rng.choice(ACTIONS)
        if action == "times":
            self.put(app, ledger, rng.choice([n for n in self.intervals if n != self.every]))
        elif action == "remove":
            self.remove(app, ledger)
        elif action == "arguments":
            self.edits.append(0)
            self.put(app, ledger, self.every)
            self.edits[-1] = ms_of(ledger.now())
        else:
            self.put(app, ledger, self.every)
        return action

    def edit_at(self, at: int) -> int:
        """What its arguments named at that time, at least."""
        return sum(edited <= at for edited in self.edits)

    def put(self, app: Celery, ledger: Ledger, every: int) -> None:
        jobs.put(self.name, app=app, by="chaos", **self.keys(every))
        self.begin(every, loaded_at(ledger, self.name))

    def begin(self, every: int, at: int) -> None:
        if every != self.every:
            self.end(at)
            self.every, self.since = every, at

    def remove(self, app: Celery, ledger: Ledger) -> None:
        assert jobs.remove(self.name, app=app)
        removed_at = ledger.client.zscore(ledger.keys.removed, self.name)
        assert removed_at
        self.end(int(removed_at))
        self.every = None

    def end(self, at: int) -> None:
        if self.every is not None:
            self.lives.append(Life(self.every, self.since, at))


def loaded_at(ledger: Ledger, name: str) -> int:
    return int(ledger.client.hget(ledger.keys.job(name), "loaded") or 0)


class Editor(threading.Thread):
    """Edits its tenants at random until it is stopped; `fault` is what ended it before."""

    def __init__(self, app: Celery, ledger: Ledger, tenants: list[Tenant], seed: int) -> None:
        super().__init__(daemon=True)
        self._app, self._ledger, self._tenants = app, ledger, tenants
        self._rng = random.Random(seed)
        self._stopped = threading.Event()
        self.done = Counter[str]()
        self.fault: Exception | None = None

    def run(self) -> None:
        try:
            while not self._stopped.wait(EDITED_AFTER_SECONDS / len(self._tenants)):
                tenant = self._rng.choice(self._tenants)
                self.done[tenant.act(self._app, self._ledger, self._rng)] += 1
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            self.fault = error

    def stop(self) -> None:
        self._stopped.set()
        self.join()


@click.command()
@click.option("--minutes", type=click.FloatRange(min=0.1), default=10.0, show_default=True)
@click.option("--tenants", "number", type=click.IntRange(4, 10_000), default=300, show_default=True)
@click.option("--rate", default=40, show_default=True, help="Ticks a second, about.")
@click.option("--seed", type=int, help="Of edits and kills; a new one by default.")
def main(minutes: float, number: int, rate: int, seed: int | None) -> None:
    """Jobs of tenants come and go under fire; then say what became of every tick."""
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    directory = Path(tempfile.mkdtemp(prefix="tenants-"))
    click.echo(f"seed {seed}, logs and witness in {directory}", err=True)
    (directory / "valkey").mkdir(mode=0o700)
    with EmbeddedServer(directory / "valkey") as server:
        service = Service(directory / "app", server.url, PREFIX)
        try:
            tenants, done, kills = fire(service, minutes, number, rate, random.Random(seed))
        finally:
            service.stop()
        found = judged(service, tenants)
    click.echo(f"{minutes:g} minutes, {sum(kills.values())} kills: {dict(sorted(kills.items()))}")
    click.echo(f"{number} tenants, {dict(sorted(done.items()))}")
    click.echo(", ".join(f"{what} {count:,}" for what, count in found.items()))
    sys.exit(1 if any(found[what] for what in WRONG) else 0)


def fire(
    service: Service, minutes: float, number: int, rate: int, rng: random.Random
) -> tuple[list[Tenant], Counter[str], Counter[str]]:
    usual = max(2, round(number / rate))
    intervals = (usual, 2 * usual, 3 * usual)
    tenants = [Tenant(f"tenant-{n:05}", intervals) for n in range(number)]
    app = supervise(Celery("team", broker=service.url, set_as_current=False))
    begin(app, service.ledger, tenants[: number // 2])
    service.keep_running()
    wait_until(lambda: restarted(service).witness, 60, every=0.5)
    editors = [
        Editor(app, service.ledger, tenants[n::EDITORS], rng.randrange(1_000_000))
        for n in range(EDITORS)
    ]
    for editor in editors:
        editor.start()
    kills = kill(service, minutes, rng)
    for editor in editors:
        editor.stop()
        if editor.fault:
            raise editor.fault
    for tenant in tenants:
        if tenant.every is not None:
            tenant.remove(app, service.ledger)
    with suppress(AssertionError):  # the judgement names what is open
        names = [tenant.name for tenant in tenants]
        wait_until(
            lambda: not restarted(service).ledger.open_runs_of(names), SETTLE_SECONDS, every=1.0
        )
    return tenants, sum((editor.done for editor in editors), Counter[str]()), kills


def restarted(service: Service) -> Service:
    """The same, with all of its processes."""
    service.keep_running()
    return service


def begin(app: Celery, ledger: Ledger, tenants: list[Tenant]) -> None:
    """All of them at once."""
    started, every = time.monotonic(), tenants[0].intervals[0]
    jobs.put_many({tenant.name: tenant.keys(every) for tenant in tenants}, app=app, by="chaos")
    click.echo(f"{len(tenants):,} jobs put in {time.monotonic() - started:.1f} s", err=True)
    for tenant in tenants:
        tenant.begin(every, loaded_at(ledger, tenant.name))


def kill(service: Service, minutes: float, rng: random.Random) -> Counter[str]:
    kills = Counter[str]()
    until, next_kill = time.monotonic() + 60 * minutes, 0.0
    while time.monotonic() < until:
        service.keep_running()
        if time.monotonic() > next_kill:
            name = rng.choice(sorted(service.processes))
            service.kill(name, rng)
            kills[name] += 1
            next_kill = time.monotonic() + rng.uniform(*KILL_SECONDS)
        time.sleep(0.1)
    return kills


#: What has to be 0.
WRONG = (
    "missing",
    "doubled",
    "of no life",
    "miscounted",
    "never started",
    "old arguments",
    "open",
    "unaccounted",
)


def judged(service: Service, tenants: list[Tenant]) -> dict[str, int]:
    ledger, found = service.ledger, Counter[str]()
    started = {(job, round(1000 * float(at))): edit for job, at, edit in service.witness}
    for tenant in tenants:
        found.update(judged_tenant(ledger, tenant, started))
    removed = ledger.removed()
    findings = audit(ledger, removed.values(), ledger.now(), removed)
    unaccounted = ledger.records_of([*removed.values(), *ledger.scheduled().values()])
    found["unaccounted"] = len(findings) + sum(job.unaccounted_ticks for job in unaccounted)
    words = ("lives", "ticks", *sorted(state for state in RunState), *WRONG)
    return {str(word): found[word] for word in words if found[word] or word in WRONG}


def judged_tenant(
    ledger: Ledger, tenant: Tenant, started: Mapping[tuple[str, int], Any]
) -> Iterator[str]:
    """A word for each tick, and for each thing that is wrong."""
    named = Counter(at for life in tenant.lives for at in life.ticks)
    for before, after in pairwise(tenant.lives):
        assert before.until <= after.since, f"{tenant.name}: {after} began within {before}"
    runs = [run for run in ledger.history(tenant.name, 10_000) if is_of_a_tick(run)]
    recorded = Counter[int]()
    for run in runs:
        first, last = ms_of(run.first_nominal_at or run.nominal_at), ms_of(run.nominal_at)
        covered = [at for at in named if first <= at <= last]
        recorded.update(covered)
        yield from [run.state] * run.ticks
        yield from ["of no life"] * max(0, run.ticks - len(covered))
        yield from faults_of(run, tenant, started)
    yield from ["lives"] * len(tenant.lives)
    yield from ["ticks"] * len(named)
    yield from ["missing"] * sum(recorded[at] == 0 for at in named)
    yield from ["doubled"] * sum(recorded[at] > 1 for at in named)
    counted = int(ledger.client.hget(ledger.keys.job(tenant.name), "n:ticks") or 0)
    yield from ["miscounted"] * abs(counted - len(named))


def faults_of(run: Run, tenant: Tenant, started: Mapping[tuple[str, int], Any]) -> Iterator[str]:
    if run.state.is_open:
        yield "open"
    if run.state is RunState.SUCCEEDED:
        at = ms_of(run.nominal_at)
        edit = started.get((run.job, at))
        if edit is None:
            yield "never started"
        elif not tenant.edit_at(at) <= edit <= len(tenant.edits):
            yield "old arguments"


if __name__ == "__main__":
    main()
