"""``python -m tools.chaos.notices --minutes 10``: notices while all that carries them is killed.

Two hundred jobs fail and recover as a file says that they all read. Redis (which keeps its data),
two beats, an SMTP server and a webhook are killed and started again at random; Redis, and both
beats, are also away for longer. The witnesses are outside the product: each body writes down how it
ended, each server what it was sent.

Exits 1 when an event was not told at a destination, or more often than it may be; when something
was told that was not; or when `serve` did not tell an outage that lasted, or told one that did not.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import click
import redis

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.ledger.page_reads import absences
from tests.waiting import let_pass, wait_until
from tests.written import whole_lines
from tools.chaos.cluster import PORTS, server_on_a_quiet_port
from tools.chaos.told import (
    BEAT,
    READERS,
    REDIS,
    WRONG,
    Away,
    Life,
    Told,
    judged,
    judged_outages,
    sources_of_duplicates,
)
from tools.chaos.two_apps import Deployment

#: In place of an hour: within it, the failures of a job are told once.
REPEAT_SECONDS = 120

SOURCE = """\
import json, os
from datetime import timedelta
from celery import Celery
from supervisor import current_run
from supervisor.app import supervise
from supervisor.features.notices import incidents
from supervisor.features.outbound import sender

app = Celery("team", broker=os.environ["BROKER"])
supervise(app, schedules="schedules")


@app.task
def work(job):
    with open("broken") as broken:
        fails = job in broken.read().split()
    with open("witness.jsonl", "a") as witness:
        line = json.dumps([job, current_run().run_id, "failed" if fails else "succeeded"])
        witness.write(line + "\\n")
    if fails:
        raise ConnectionError("the database of the jobs is away")


# Hours are minutes here, and each job is named, so that all can be seen of each.
sender.LONGEST_WAIT = timedelta(seconds=40)
incidents.GROUP_INTERVAL = timedelta(seconds=20)
incidents.REPEAT = timedelta(seconds={repeat})
incidents.JOBS_NAMED = 10_000
""".replace("{repeat}", str(REPEAT_SECONDS))

#: Servers that notices go to.
VIA = ("webhook", "smtp")

BEATS = ("beat0", "beat1")

#: Kinds of which the ledger's history has each.
NOTIFY = [
    {"url": url, "events": ["failed", "lost", "recovered"]} for url in ("${WEBHOOK}", "${MAIL}")
]

#: Seconds from one run of a job to the next: of several lengths, so that not all are due at once.
EVERY = (23, 29, 31, 37)

GRACE_SECONDS = 5.0

#: An outage that lasts for longer is told: the silence of a beat, the grace, looks that time out.
SURELY_TOLD_SECONDS = 30.0

#: From the end of all faults until all is told: a job that was told of waits for REPEAT_SECONDS,
#: then for its group, then for a destination that was away for longer and longer.
SETTLE_SECONDS = 300.0

#: What comes when all was told already, is too much.
LATER_SECONDS = 30.0

WRONG_OUTAGES = (f"{REDIS} untold", f"{BEAT} untold", "outages invented", "ends untold")


@dataclass
class Service(Deployment):
    """Two beats, two workers, `serve`, and the servers that notices go to."""

    source: ClassVar[str] = SOURCE
    schedule: ClassVar[str] = ""

    ports: dict[str, int] = field(default_factory=dict)

    @property
    def members(self) -> dict[str, tuple[str, ...]]:
        worker = ("worker", "-l", "warning", "-c", "3", "-n")
        return {
            **{via: (via, str(self.ports[via]), f"{via}.jsonl") for via in VIA},
            "serve": ("--port", str(self.ports["serve"])),
            "beat0": ("beat", "-l", "info"),
            "beat1": ("beat", "-l", "info"),
            "worker0": (*worker, "worker0@%h"),
            "worker1": (*worker, "worker1@%h"),
        }

    def command(self, name: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
        if name in VIA:
            return ("tools.chaos.receivers", *arguments)
        if name == "serve":
            return ("supervisor", "serve", *arguments)
        return super().command(name, arguments)

    def lines(self, name: str) -> list[Any]:
        return [json.loads(line) for line in whole_lines(self.directory / f"{name}.jsonl")]


@dataclass
class Jobs:
    """Which fail: changed at random, and read by all bodies from a file.

    Some never fail; some change at each look, and so flap; some fail all together, as when a
    database is away; the others each by itself.
    """

    names: list[str]
    file: Path
    rng: random.Random
    broken: set[str] = field(default_factory=set)
    next_storm: float = 0.0
    next_look: float = 0.0

    def __post_init__(self) -> None:
        count = len(self.names)
        self.calm, self.flapping = self.names[: count // 10], self.names[count // 10 : count // 6]
        self.storm = self.names[count // 6 : count // 2]
        self.others = self.names[count // 2 :]
        self.write()

    def change(self) -> None:
        """To be called often."""
        now = time.monotonic()
        if now < self.next_look:
            return
        self.next_look = now + 5
        if now > self.next_storm:
            self.broken ^= set(self.storm)
            self.next_storm = now + self.rng.uniform(60, 120)
        for job in self.flapping:
            if self.rng.random() < 5 / 30:
                self.broken ^= {job}
        for job in self.others:
            if self.rng.random() < 5 / (90 if job in self.broken else 180):
                self.broken ^= {job}
        self.write()

    def mend(self) -> None:
        self.broken.clear()
        self.write()

    def write(self) -> None:
        written = self.file.with_suffix(".new")
        written.write_text("\n".join(sorted(self.broken)))
        written.replace(self.file)


#: How often, beside each other.
FAULTS = {
    "kill_webhook": 16,
    "kill_smtp": 16,
    "kill_beat": 12,
    "kill_redis": 8,
    "freeze_redis": 4,
    "take_redis_away": 1,
    "take_beats_away": 1,
}

FAULT_SECONDS = (2.0, 4.0)


class Fire:
    """Kills, and starts again. For the main thread: a child ends with the thread that began it."""

    def __init__(self, service: Service, server: EmbeddedServer, rng: random.Random) -> None:
        self.service, self.server, self.rng = service, server, rng
        self.faults: list[tuple[float, str]] = []
        self.away: list[Away] = []
        self.redis_back_at: float | None = None
        self.is_frozen = False
        self.next_fault = time.monotonic()

    def turn(self) -> None:
        """To be called often."""
        self.keep_running()
        if time.monotonic() > self.next_fault:
            fault = self.rng.choices([*FAULTS], [*FAULTS.values()])[0]
            self.faults.append((time.time(), fault))
            getattr(self, fault)()
            self.next_fault = time.monotonic() + self.rng.uniform(*FAULT_SECONDS)

    def keep_running(self) -> None:
        if self.redis_back_at is not None and time.monotonic() > self.redis_back_at:
            self.bring_redis_back()
        self.service.keep_running()

    def kill_webhook(self) -> None:
        self.kill("webhook", 0.3, 6)

    def kill_smtp(self) -> None:
        self.kill("smtp", 0.3, 6)

    def kill_beat(self) -> None:
        self.kill(self.rng.choice(BEATS), 0.5, 3)

    def take_beats_away(self) -> None:
        back_at = time.monotonic() + self.rng.uniform(40, 50)
        for beat in BEATS:
            self.kill(beat, 0, 0)
            self.service.restarts[beat] = back_at

    def kill_redis(self) -> None:
        self.lose_redis(0.2, 2)

    def take_redis_away(self) -> None:
        self.lose_redis(31, 36)

    def freeze_redis(self) -> None:
        self.lose_redis(1, 18, freezes=True)

    def kill(self, name: str, least: float, most: float) -> None:
        process = self.service.processes[name]
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.service.restarts[name] = time.monotonic() + self.rng.uniform(least, most)

    def lose_redis(self, least: float, most: float, *, freezes: bool = False) -> None:
        if self.redis_back_at is not None:
            return
        self.redis_back_at = time.monotonic() + self.rng.uniform(least, most)
        self.is_frozen = freezes
        self.redis_away = Away(REDIS, time.time())
        self.away.append(self.redis_away)
        if freezes:
            os.kill(self.server.pid or 0, signal.SIGSTOP)
        else:
            self.server.kill()

    def bring_redis_back(self) -> None:
        self.redis_back_at = None
        if self.is_frozen:
            os.kill(self.server.pid or 0, signal.SIGCONT)
        else:
            start(self.server)
        self.redis_away.until = time.time()

    def end(self) -> None:
        """All are there again."""
        if self.redis_back_at is not None:
            self.bring_redis_back()
        self.service.restarts.clear()
        self.service.keep_running()


def start(server: EmbeddedServer) -> None:
    """With all that it answered on disk: what it then forgets, no process can tell."""
    server.start()
    with redis.Redis.from_url(server.url) as client:
        client.config_set("appendfsync", "always")


@click.command()
@click.option("--minutes", type=click.FloatRange(min=0.1), default=10.0, show_default=True)
@click.option("--jobs", "number", type=click.IntRange(20, 2_000), default=200, show_default=True)
@click.option("--seed", type=int, help="Of faults and failures; a new one by default.")
def main(minutes: float, number: int, seed: int | None) -> None:
    """Notices of jobs that fail and recover, under fire; then say what came where."""
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    directory, rng = Path(tempfile.mkdtemp(prefix="notices-")), random.Random(seed)
    click.echo(f"seed {seed}, logs and witnesses in {directory}", err=True)
    server = server_on_a_quiet_port(directory / "valkey", rng)
    try:
        start(server)
        service, jobs = deployed(directory, server.url, number, rng)
        fire = Fire(service, server, rng)
        try:
            burn(fire, jobs, minutes)
            found, seconds = settled(fire, jobs, minutes)
        finally:
            fire.end()
            service.stop()
        report(found, fire, minutes, seconds)
    finally:
        server.stop()
    sys.exit(0 if found.are_good else 1)


def deployed(directory: Path, url: str, number: int, rng: random.Random) -> tuple[Service, Jobs]:
    ports = dict(zip((*VIA, "serve"), rng.sample(PORTS, 3), strict=True))
    environ = {
        "WEBHOOK": f"http://127.0.0.1:{ports['webhook']}/hook",
        "MAIL": f"mailto://127.0.0.1:{ports['smtp']}/?from=a@example.com&to=b@example.com",
        "SUPERVISOR_NOTIFY": "${WEBHOOK} ${MAIL}",
        "SUPERVISOR_NOTIFY_WAIT": "5s",
        "SUPERVISOR_NOTIFY_AFTER": f"{GRACE_SECONDS}s",
        "SUPERVISOR_REDIS_URL": url,
    }
    service = Service(directory / "app", url, "supervisor", environ, ports=ports)
    names = [f"job-{n:03}" for n in range(number)]
    schedule = {
        "defaults": {"lease_ttl": "4s", "history": 10_000, "notify": NOTIFY},
        "jobs": {
            name: {"task": "team.work", "every": rng.choice(EVERY), "args": [name]}
            for name in names
        },
    }
    (service.directory / "schedules" / "jobs.yaml").write_text(json.dumps(schedule))
    return service, Jobs(names, service.directory / "broken", rng)


def burn(fire: Fire, jobs: Jobs, minutes: float) -> None:
    service = fire.service

    def has_begun() -> bool:
        service.keep_running()
        return {job for job, *_ in service.lines("witness")} >= set(jobs.names)

    wait_until(has_begun, 120, every=0.5)
    until = time.monotonic() + 60 * minutes
    while time.monotonic() < until:
        jobs.change()
        fire.turn()
        time.sleep(0.1)
    jobs.mend()
    fire.end()


def lives_of(service: Service, jobs: Jobs) -> tuple[dict[str, Life], int]:
    """What became of each job by the ledger; and how many runs ended as their bodies did not."""
    lives, otherwise = {}, 0
    histories = {job: service.ledger.history(job, 10_000) for job in jobs.names}
    # Read later: each body has written before its run ended.
    ended = {(job, run): how for job, run, how in service.lines("witness")}
    for job, runs in histories.items():
        at: dict[str, list[float]] = {"failed": [], "succeeded": []}
        for run in runs:
            if run.finished_at and run.state in (*at, "lost"):
                otherwise += run.state in at and ended.get((job, run.id)) != run.state
                how = "succeeded" if run.state == "succeeded" else "failed"
                at[how].append(run.finished_at.timestamp())
        lives[job] = Life(at["failed"], at["succeeded"])
    return lives, otherwise


def told_at(service: Service, via: str) -> list[Told]:
    return [READERS[via](line) for line in service.lines(via)]


@dataclass
class Findings:
    """By destination; of the ledger `otherwise`, see lives_of."""

    otherwise: int
    of_jobs: dict[str, dict[str, int]] = field(default_factory=dict)
    of_outages: dict[str, dict[str, int]] = field(default_factory=dict)
    duplicates: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def are_good(self) -> bool:
        jobs = [found[what] for found in self.of_jobs.values() for what in WRONG]
        outages = [found.get(what) for found in self.of_outages.values() for what in WRONG_OUTAGES]
        return not any(jobs) and not any(outages) and not self.otherwise


def findings(fire: Fire, jobs: Jobs, minutes: float) -> Findings:
    service = fire.service
    lives, otherwise = lives_of(service, jobs)
    leaderless = [
        Away(BEAT, since.timestamp(), until.timestamp())
        for since, until in absences(service.ledger)
    ]
    found = Findings(otherwise)
    for via in VIA:
        told = told_at(service, via)
        # A mail says how often only where that is more than once a job.
        found.of_jobs[via] = judged(
            [each for each in told if each.jobs],
            lives,
            60 * minutes + SETTLE_SECONDS,
            REPEAT_SECONDS,
            counts=via == "webhook",
        )
        others = {f"kill_{each}" for each in VIA if each != via}
        faults = [(at, what) for at, what in fire.faults if what not in others]
        found.duplicates[via] = sources_of_duplicates(told, faults)
        found.of_outages[via] = judged_outages(
            [each for each in told if not each.jobs],
            [*fire.away, *leaderless],
            GRACE_SECONDS,
            SURELY_TOLD_SECONDS,
        )
    return found


def settled(fire: Fire, jobs: Jobs, minutes: float) -> tuple[Findings, float]:
    """What was found once nothing is wrong, or not in time; and how long that took."""
    since, found = time.monotonic(), []

    def is_good() -> bool:
        fire.keep_running()
        found.append(findings(fire, jobs, minutes))
        return found[-1].are_good

    with suppress(AssertionError):
        wait_until(is_good, SETTLE_SECONDS, every=5)
    seconds = time.monotonic() - since
    let_pass(LATER_SECONDS)
    return findings(fire, jobs, minutes), seconds


def report(found: Findings, fire: Fire, minutes: float, settled_seconds: float) -> None:
    done = Counter(what for _, what in fire.faults)
    long = sorted(round(each.seconds) for each in fire.away if each.seconds > GRACE_SECONDS)
    click.echo(f"{minutes:g} minutes, {len(fire.faults)} faults: {dict(sorted(done.items()))}")
    click.echo(f"all told {settled_seconds:.0f} s after the end; Redis was away for {long} s")
    for via in VIA:
        click.echo(f"\n{via}")
        rows = {
            "of jobs": {word: n for word, n in found.of_jobs[via].items() if word not in WRONG},
            "wrong": {word: found.of_jobs[via][word] for word in WRONG},
            "of service": found.of_outages[via],
            "again after": found.duplicates[via],
        }
        for what, counts in rows.items():
            shown = ", ".join(f"{word} {count:,}" for word, count in counts.items())
            click.echo(f"  {what:12} {shown or '-'}")
    click.echo(f"\nruns that ended otherwise than their bodies: {found.otherwise}")
    click.echo("as promised" if found.are_good else "NOT AS PROMISED")


if __name__ == "__main__":
    main()
