"""The checks of `supervisor doctor`, each with its findings; CHECKS and APP_CHECKS list them.

Each finding says what is the case, why it matters, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

from supervisor.job.topology import Needs
from supervisor.ledger.presence import BeatProcess, WorkerProcess
from supervisor.ledger.queues import Queue
from supervisor.operate.deployment import AppSetup, Deployment
from supervisor.operate.words import listed, span
from supervisor.sending.templates import CANNOT_BE_MADE

CLOCKS_APART = timedelta(seconds=1)

#: A beat of another app that was refused is reported for this long.
REFUSAL_SHOWN = timedelta(minutes=15)

#: A clock that was set back is reported for this long, or until it has passed its earlier time.
SET_BACK_SHOWN = timedelta(hours=1)

#: Up to this many names or problems are listed in one finding.
MOST_LISTED = 3


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    why: str
    todo: str

    is_note: bool = False
    """Worth knowing, but nothing is wrong."""

    check: str = ""
    """The name of its check; set by `made`."""

    @property
    def words(self) -> str:
        """All of it in a sentence."""
        return f"{self.what[0].upper()}{self.what[1:]}: {self.why}; {self.todo}."


Findings = Iterator[Finding]


# Redis: does it keep what is written to it?


def refusal(deployment: Deployment) -> Findings:
    if deployment.refusal:
        yield Finding(
            deployment.refusal,
            "nothing starts any more, and ends are reported late",
            "mend Redis; beats and workers go on by themselves (docs/how-to/redis.md)",
        )


def persistence(deployment: Deployment) -> Findings:
    if not deployment.info["aof_enabled"]:
        has_snapshots = deployment.snapshots != ""
        yield Finding(
            "Redis has no append-only file" + ("" if has_snapshots else ", and makes no snapshots"),
            "a crash loses all since the last snapshot, or everything: ticks run a second time",
            "set `appendonly yes` in its configuration",
            is_note=has_snapshots,
        )


def eviction(deployment: Deployment) -> Findings:
    policy = deployment.info["maxmemory_policy"]
    if policy != "noeviction":
        yield Finding(
            f"Redis may evict keys: maxmemory-policy is {policy}",
            "a lock, a waiting run or a counter that is evicted is lost without a trace",
            "set `maxmemory-policy noeviction`; give a cache a server of its own",
        )


# Beats and workers: are they running, do they agree on the time, can they run the jobs?


def beats(deployment: Deployment) -> Findings:
    why, count = "nothing is emitted, rescued or retried", len(deployment.processes.beats)
    for beat in deployment.processes.present:
        if isinstance(beat.process, BeatProcess) and beat.fault:
            what = f"the ticks of {beat.process.name} fail: {beat.fault}"
            yield Finding(what, why, "fix the error; beat then goes on by itself")
    if deployment.refusal:
        return
    if not (count and deployment.beat.leads(deployment.now)):
        running = f"no beat leads, though {count} {'is' if count == 1 else 'are'} running"
        yield Finding(
            running if count else "no beat is running",
            why,
            "start one: `celery -A proj beat`; if one runs, its log says why it does not lead",
        )
    elif count == 1:
        yield Finding(
            "only one beat is running",
            "while it is down nothing is emitted; a second one would lead within 12 seconds",
            "start a second one on another machine",
            is_note=True,
        )


def workers(deployment: Deployment) -> Findings:
    for worker in deployment.processes.present:
        if not isinstance(worker.process, WorkerProcess):
            continue
        if worker.fault:
            yield Finding(
                f"{worker.process.name} does no work: {worker.fault}",
                "it accepts no messages, and keeps those that it has",
                "restart it; code in its main process (signals, boot steps) must not block",
            )
        elif worker.is_waiting:
            yield Finding(
                f"{worker.process.name} waits for its broker",
                "it accepts no messages until the broker answers",
                "check the broker, and the address that this worker has for it",
            )


def owner(deployment: Deployment) -> Findings:
    """Whether the ledger is this app's, and whether another app wants it."""
    own, beat = deployment.beat.app, deployment.beat
    named = deployment.app.owner if deployment.app else None
    if own and named and named != own:
        yield Finding(
            f"the ledger belongs to the app {own!r}, and this app is {named!r}",
            "no beat of this app leads, and its jobs are not loaded",
            f"give it a prefix of its own, or owner={own!r} if both are Celery() objects of one"
            " project; if it was renamed, `supervisor -A proj apply --take-over`",
        )
    if beat.refused and beat.refused_at and deployment.ago(beat.refused_at) < REFUSAL_SHOWN:
        yield Finding(
            f"a beat of another app was refused at {beat.refused_at:%F %T} UTC: {beat.refused}",
            f"two apps share this ledger, which belongs to {own!r}; no job of the other one runs",
            "give the other app a prefix of its own (SUPERVISOR_PREFIX); or, if both are Celery()"
            " objects of one project, one `owner`; or take the ledger over",
        )


def clocks(deployment: Deployment) -> Findings:
    for present in deployment.processes.present:
        offset = present.clock_offset
        if offset is not None and abs(offset) > CLOCKS_APART:
            seconds = abs(offset).total_seconds()
            yield Finding(
                f"the clock of {present.process.name} is {seconds:.1f}s "
                f"{'ahead of' if offset > timedelta() else 'behind'} that of Redis",
                "times in its logs differ from the ledger's, and its ETA messages run at wrong "
                "times",
                f"synchronise the clock of {present.host}, or that of Redis",
            )
    at, by = deployment.beat.clock_set_back_at, deployment.beat.clock_set_back
    if at is not None and deployment.ago(at) < max(by, SET_BACK_SHOWN):
        yield Finding(
            f"the clock of Redis was set back by {span(by.total_seconds())} at {at:%F %T} UTC",
            "times until then come again: ticks that have run do not run a second time",
            "synchronise the clock of its machine; if it had been ahead, nothing is left to do",
        )


def findings_of_queues(queues: Iterable[Queue], now: datetime) -> Findings:
    for queue in queues:
        if queue.jobs and not queue.consumers:
            options = " -c 1" if queue.is_serial else ""
            yield Finding(
                f"no worker consumes the queue {queue.name}",
                "runs that are sent there wait"
                + ("" if queue.drained_at else ", until they expire"),
                f"start one: `celery -A proj worker -Q {queue.name}{options}`",
            )
        if queue.is_serial and queue.consumers > 1:
            yield Finding(
                f"{queue.consumers} workers consume the serial queue {queue.name}",
                "it is made for one, which runs one run at a time",
                "stop the others",
            )
        if queue.drained_at:
            yield Finding(
                f"the queue {queue.name} has been drained for"
                f" {span((now - queue.drained_at).total_seconds())}",
                "its runs wait, however long their start_deadline is",
                f"once the work on it is done: `supervisor undrain {queue.name}`",
                is_note=True,
            )


def queues(deployment: Deployment) -> Findings:
    for finding in findings_of_queues(deployment.queues, deployment.now):
        if finding.is_note or not deployment.refusal:  # while it refuses, no worker can report
            yield finding
    served = {queue.name for queue in deployment.queues if queue.jobs or queue.consumers}
    for name in sorted(deployment.waiting.keys() - served) if not deployment.refusal else ():
        run = deployment.waiting[name]
        yield Finding(
            f"no worker consumes the queue {name}, where {run} waits",
            "until it expires it holds its lock, though its job may have another queue by now",
            f"let a worker empty the queue: `celery -A proj worker -Q {name}`;"
            f" or `supervisor cancel {run}`",
        )
    for name, other in deployment.shared_queues:
        yield Finding(
            f"the queue {name} is shared with another ledger: {other}",
            "workers of each refuse messages of the other, which its beat sends again: runs start"
            " late, and never while only workers of the other consume it",
            "give each deployment queues of its own (docs/reference/settings.md, Two deployments on"
            " one Redis), and an owner of its own",
        )


def pools(deployment: Deployment) -> Findings:
    """Without any worker, the check of queues says so."""
    specs = {spec.name: spec for spec in deployment.specs}
    for queue in deployment.queues:
        consumers = [w for w in deployment.processes.workers if queue.name in w.queues]
        in_use = {worker.pool for worker in consumers}
        for job in specs.keys() & queue.jobs:
            needs = Needs.of(specs[job], queue.parts.get(job, ()))
            unmet = {pool: what for pool in in_use if (what := needs.unmet_by(pool))}
            for pool, what in unmet.items():
                yield Finding(
                    f"workers of the queue {queue.name} have the pool {pool}, which lacks what job"
                    f" {job} needs: {what}",
                    "they refuse its runs, which start late or, without other workers, expire",
                    "have the queue consumed by workers with `-P prefork` alone, or remove that"
                    " from the job (docs/how-to/adopting.md, Pools)",
                    is_note=in_use > unmet.keys(),
                )


def tasks(deployment: Deployment) -> Findings:
    """A rename that reached the schedule files and no worker, or the other way round."""
    specs = {spec.name: spec for spec in deployment.specs}
    for queue in deployment.queues:
        consumers = [w for w in deployment.processes.workers if queue.name in w.queues]
        registered = frozenset[str]().union(*(deployment.tasks[w.tasks] for w in consumers))
        for job in sorted(specs.keys() & queue.jobs) if consumers else ():
            parts = queue.parts.get(job, (specs[job],))
            unknown = sorted({str(part.task) for part in parts} - registered)
            if unknown:
                yield Finding(
                    f"no worker of the queue {queue.name} knows a task of job {job}:"
                    f" {listed(unknown, MOST_LISTED)}",
                    "they refuse its runs, which are sent again until they expire",
                    "deploy its code to them and restart them, or correct the job's `task`",
                )


# The ledger: its schedule files.


def files(deployment: Deployment) -> Findings:
    if deployment.beat.last_reload_successful is False:
        yield Finding(
            "rejected: " + listed(deployment.beat.problems, MOST_LISTED, "; "),
            "the files loaded last stay in force, and edits do not take effect"
            if deployment.specs
            else "nothing is loaded yet, so no job runs",
            "`supervisor check` lists all that is wrong in them",
        )


def messages(deployment: Deployment) -> Findings:
    for reason, jobs in sorted(deployment.apart.items()):
        if reason.startswith(CANNOT_BE_MADE):
            error = reason.removeprefix(CANNOT_BE_MADE)
            yield Finding(
                f"no message can be made of {listed(jobs, 5)}: {error}",
                "each run fails, or is not sent",
                "`supervisor -A proj check` names arguments that the task does not take; restart "
                "beat if its code is older than the workers'",
            )
            continue
        yield Finding(
            f"Celery makes the message of each run of {listed(jobs, 5)}: {reason}",
            "beat sends a few hundred of them a second, instead of thousands",
            "nothing, unless more of their runs are due at once",
            is_note=True,
        )


# The app, where it is known: its settings, its broker, what else its beat emits.


def supervised(app: AppSetup) -> Findings:
    if not app.is_supervised:
        yield Finding(
            "this app was not given to supervise()",
            "its beat loads no schedule files, and its workers run tasks without the guard",
            "call supervise(app, schedules=...) where the app is made (docs/reference/settings.md)",
        )


def settings(app: AppSetup) -> Findings:
    for overridden in app.overridden:
        yield Finding(
            f"{overridden.setting} is {overridden.value!r}, and should be {overridden.needed!r}",
            "the guarantees need it (docs/reference/settings.md)",
            overridden.hint,
        )


def broker(app: AppSetup) -> Findings:
    if app.broker_fault:
        yield Finding(
            f"the broker cannot be reached: {app.broker_fault}",
            "runs are not sent, and workers take none; the ledger keeps what is due",
            "check that it runs, and the address that the app has for it",
        )


def unfit(app: AppSetup) -> Findings:
    if app.unfit:
        yield Finding(
            f"the app cannot run: {listed(app.unfit, MOST_LISTED, '; ')}",
            "their runs fail",
            "`supervisor -A proj check` says where they are, and what to do"
            " (docs/how-to/adopting.md, Tasks and queues that jobs cannot have)",
        )


def unguarded(app: AppSetup) -> Findings:
    if app.unguarded:
        yield Finding(
            f"RedBeat emits these entries unguarded: {listed(app.unguarded, MOST_LISTED)}",
            "their runs may overlap, are not rescued, and no metric has them",
            "`supervise(app, adopt_entries=True)` makes jobs of those that code saves, and "
            "`supervisor -A proj adopt` of all (docs/how-to/adopting.md)",
            is_note=True,
        )


def rows(app: AppSetup) -> Findings:
    if app.rows_changed_at:
        yield Finding(
            f"rows of django-celery-beat were changed at {app.rows_changed_at:%F %T} UTC, after"
            " schedule files were loaded",
            "jobs of files do not follow the rows that they were made of, and new rows do not run",
            "`supervisor -A proj adopt --force` reads them again, supervise(app, adopt_rows=True)"
            " follows them (docs/how-to/from-django-celery-beat.md)",
            is_note=True,
        )


CHECKS: Mapping[str, Callable[[Deployment], Findings]] = {
    "refusal": refusal,
    "persistence": persistence,
    "eviction": eviction,
    "beat": beats,
    "workers": workers,
    "owner": owner,
    "clocks": clocks,
    "queues": queues,
    "pools": pools,
    "tasks": tasks,
    "schedule files": files,
    "messages": messages,
}

#: Made only where the app is known.
APP_CHECKS: Mapping[str, Callable[[AppSetup], Findings]] = {
    "supervised": supervised,
    "settings": settings,
    "broker": broker,
    "unfit": unfit,
    "unguarded": unguarded,
    "rows": rows,
}


F = TypeVar("F")


def examine(deployment: Deployment) -> list[Finding]:
    return made(CHECKS, deployment) + (examine_app(deployment.app) if deployment.app else [])


def examine_app(app: AppSetup) -> list[Finding]:
    """What can be examined without the ledger."""
    return made(APP_CHECKS, app)


def made(checks: Mapping[str, Callable[[F], Findings]], subject: F) -> list[Finding]:
    return [
        replace(finding, check=name) for name, check in checks.items() for finding in check(subject)
    ]
