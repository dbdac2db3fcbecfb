"""The checks of `supervisor doctor`: facts in, findings out; CHECKS and APP_CHECKS are the table.

Each finding says what is the case, why it matters, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

from supervisor.job.exclusions import holidays_ending
from supervisor.job.topology import Needs
from supervisor.ledger.functions import SCHEMA
from supervisor.ledger.presence import PRESENCE_INTERVAL, BeatFacts, WorkerFacts
from supervisor.operate.doctor_facts import AppFacts, DoctorFacts
from supervisor.operate.words import span

CLOCKS_APART = timedelta(seconds=1)

#: A beat of another app that was refused is reported for this long.
REFUSAL_SHOWN = timedelta(minutes=15)

#: A clock that was set back is reported for this long, or until it has passed its earlier time.
SET_BACK_SHOWN = timedelta(hours=1)

#: The share of `maxmemory` from which on it is worth a note.
MEMORY_NOTED = 0.8

#: Up to this many names or problems are listed in one finding.
MOST_LISTED = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """is_note: worth knowing, but nothing is wrong. check: its name; set by `made`."""

    what: str
    why: str
    todo: str
    is_note: bool = False
    check: str = ""


Findings = Iterator[Finding]


REFUSES_WRITES = "it refuses writes: nothing starts any more, and ends are reported late"


def first_of(names: Sequence[str], separator: str) -> str:
    """``a, b, c and 2 more``"""
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return separator.join(names[:MOST_LISTED]) + more


# Redis: does it keep what is written to it?


def permissions(facts: DoctorFacts) -> Findings:
    """Permissions of the user that asks; what others lack is in Redis' own ACL LOG."""
    for error in facts.forbidden:
        yield Finding(
            f"Redis forbids this user a command: {error}",
            "what needs it is not checked",
            "give the user the rights of operator in the ACL example (docs/how-to/redis.md)",
        )


def replica(facts: DoctorFacts) -> Findings:
    if facts.info.get("role") == "slave":
        todo = "name its primary, or the sentinels that know it (docs/how-to/redis.md)"
        yield Finding("Redis is a replica", REFUSES_WRITES, todo)


def persistence(facts: DoctorFacts) -> Findings:
    """A server that is to make snapshots refuses writes after one that failed, whether or not it
    has an append-only file as well."""
    info, has_snapshots = facts.info, facts.snapshots != ""
    is_cut_off = info.get("aof_enabled") and info.get("aof_last_write_status") == "err"
    if is_cut_off or (has_snapshots and info.get("rdb_last_bgsave_status") == "err"):
        todo = "look at its log, and whether the disk is full"
        yield Finding("Redis cannot write to its disk", REFUSES_WRITES, todo)
    if info and not info["aof_enabled"]:
        yield Finding(
            "Redis has no append-only file" + ("" if has_snapshots else ", and makes no snapshots"),
            "a crash loses all since the last snapshot, or everything: ticks run a second time",
            "set `appendonly yes` in its configuration",
            is_note=has_snapshots,
        )


def eviction(facts: DoctorFacts) -> Findings:
    policy = facts.info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield Finding(
            f"Redis may evict keys: maxmemory-policy is {policy}",
            "a lock, a waiting run or a counter that is evicted is lost without a trace",
            "set `maxmemory-policy noeviction`; give a cache a server of its own",
        )


def memory(facts: DoctorFacts) -> Findings:
    used, most = (int(facts.info.get(name, 0)) for name in ("used_memory", "maxmemory"))
    if most and used >= MEMORY_NOTED * most:
        yield Finding(
            f"{used / most:.0%} of Redis' memory is in use: {used >> 20:,} of {most >> 20:,} MiB",
            f"when it is full, {REFUSES_WRITES}",
            "give it more memory, or keep fewer runs with `history` (docs/how-to/redis.md#memory)",
            is_note=used < most,
        )


# Beats and workers: are they running, do they agree on the time, do they know the tasks?


def refusal(facts: DoctorFacts) -> Findings:
    if facts.refusal:
        yield Finding(
            facts.refusal,
            "nothing starts any more, and ends are reported late",
            "mend Redis; beats and workers go on by themselves (docs/how-to/redis.md)",
        )


def beats(facts: DoctorFacts) -> Findings:
    why, count = "nothing is emitted, rescued or retried", len(facts.roll.beats)
    for beat in facts.roll.present:
        if isinstance(beat.facts, BeatFacts) and beat.fault:
            what = f"the ticks of {beat.facts.name} fail: {beat.fault}"
            yield Finding(what, why, "fix the error; beat then goes on by itself")
    if facts.refusal:
        return
    if not (count and facts.beat.leads(facts.now)):
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


def workers(facts: DoctorFacts) -> Findings:
    for worker in facts.roll.present:
        if not isinstance(worker.facts, WorkerFacts):
            continue
        if worker.fault:
            yield Finding(
                f"{worker.facts.name} does no work: {worker.fault}",
                "it accepts no messages, and keeps those that it has",
                "restart it; code in its main process (signals, boot steps) must not block",
            )
        elif worker.is_waiting:
            yield Finding(
                f"{worker.facts.name} waits for its broker",
                "it accepts no messages until the broker answers",
                "check the broker, and the address that this worker has for it",
            )


def owner(facts: DoctorFacts) -> Findings:
    """Whether the ledger is this app's, and whether another app wants it."""
    own, beat = facts.beat.app, facts.beat
    named = facts.app.owner if facts.app else None
    if own and named and named != own:
        yield Finding(
            f"the ledger belongs to the app {own!r}, and this app is {named!r}",
            "no beat of this app leads, and its jobs are not loaded",
            f"give it a prefix of its own, or owner={own!r} if both are Celery() objects of one"
            " project; if it was renamed, `supervisor -A proj apply --take-over`",
        )
    if beat.refused and beat.refused_at and facts.ago(beat.refused_at) < REFUSAL_SHOWN:
        yield Finding(
            f"a beat of another app was refused at {beat.refused_at:%F %T} UTC: {beat.refused}",
            f"two apps share this ledger, which belongs to {own!r}; no job of the other one runs",
            "give the other app a prefix of its own (SUPERVISOR_PREFIX); or, if both are Celery()"
            " objects of one project, one `owner`; or take the ledger over",
        )


def leaders(facts: DoctorFacts) -> Findings:
    # One that was killed still reports it, but has been silent for longer when another leads.
    leading = [
        present.facts.name
        for present in facts.roll.present
        if isinstance(present.facts, BeatFacts)
        and present.facts.leads
        and facts.ago(present.last_seen_at) < 2 * PRESENCE_INTERVAL
    ]
    if len(leading) > 1:
        yield Finding(
            f"{len(leading)} beats report that they lead: {', '.join(leading)}",
            "each tick still runs once, but one of the beats is cut off",
            "ask again in 15 seconds; then stop the one that is cut off, and check its machine",
        )


def clocks(facts: DoctorFacts) -> Findings:
    for present in facts.roll.present:
        offset = present.clock_offset
        if offset is not None and abs(offset) > CLOCKS_APART:
            seconds = abs(offset).total_seconds()
            yield Finding(
                f"the clock of {present.facts.name} is {seconds:.1f}s "
                f"{'ahead of' if offset > timedelta() else 'behind'} that of Redis",
                "times in its logs differ from the ledger's, and its ETA messages run at wrong "
                "times",
                f"synchronise the clock of {present.host}, or that of Redis",
            )
    at, by = facts.beat.clock_set_back_at, facts.beat.clock_set_back
    if at is not None and facts.ago(at) < max(by, SET_BACK_SHOWN):
        yield Finding(
            f"the clock of Redis was set back by {span(by.total_seconds())} at {at:%F %T} UTC",
            "times until then come again: ticks that have run do not run a second time",
            "synchronise the clock of its machine; if it had been ahead, nothing is left to do",
        )


def tasks(facts: DoctorFacts) -> Findings:
    """Without any worker, the check of queues says so."""
    for spec in facts.specs if facts.roll.workers else ():
        for name in (task for task in spec.tasks if task not in facts.known_tasks):
            yield Finding(
                f"job {spec.name} names the task {name}, which no worker knows",
                "workers discard its messages; the runs are sent again, and expire",
                "import its module in the app, or correct the name; restart the workers",
            )


def queues(facts: DoctorFacts) -> Findings:
    for queue in facts.queues:
        if queue.jobs and not queue.consumers and not facts.refusal:
            options = " -c 1" if queue.is_serial else ""
            yield Finding(
                f"no worker consumes the queue {queue.name}",
                "runs that are sent there wait until they expire",
                f"start one: `celery -A proj worker -Q {queue.name}{options}`",
            )
        if queue.is_serial and queue.consumers > 1:
            names = ", ".join(w.name for w in facts.roll.workers if queue.name in w.queues)
            yield Finding(
                f"{queue.consumers} workers consume the serial queue {queue.name}: {names}",
                "its runs still never overlap, but those taken too early go back and start later",
                "stop all but one of them",
            )
    for name, other in facts.shared_queues:
        yield Finding(
            f"the queue {name} is shared with another ledger: {other}",
            "workers of each refuse messages of the other, which its beat sends again: runs start"
            " late, and never while only workers of the other consume it",
            "give each deployment queues of its own (docs/reference/settings.md, Two deployments on"
            " one Redis), and an owner of its own",
        )


def pools(facts: DoctorFacts) -> Findings:
    """Without any worker, the check of queues says so."""
    needs = {spec.name: Needs.of(spec) for spec in facts.specs}
    for queue in facts.queues:
        found = {worker.pool for worker in facts.roll.workers if queue.name in worker.queues}
        for job in needs.keys() & queue.jobs:
            unmet = {pool: what for pool in found if (what := needs[job].unmet_by(pool))}
            for pool, what in unmet.items():
                yield Finding(
                    f"workers of the queue {queue.name} have the pool {pool}, which lacks what job"
                    f" {job} needs: {what}",
                    "they refuse its runs, which start late or, without other workers, expire",
                    "have the queue consumed by workers with `-P prefork` alone, or remove that"
                    " from the job (docs/how-to/adopting.md, Pools)",
                    is_note=found > unmet.keys(),
                )


# The ledger: schedule files, versions, runs that nothing has been heard of, missing ticks.


def files(facts: DoctorFacts) -> Findings:
    if facts.beat.last_reload_successful is False:
        yield Finding(
            "rejected: " + first_of(facts.beat.problems, "; "),
            "an older set is in force, and edits do not take effect",
            "`supervisor check` lists all that is wrong in them",
        )


def schema(facts: DoctorFacts) -> Findings:
    if facts.schema not in (None, SCHEMA):
        yield Finding(
            f"the ledger has schema {facts.schema}, and this version needs {SCHEMA}",
            "beats and workers of this version do not start, and its verbs change nothing",
            "install the version of the running processes: docs/how-to/upgrading.md",
        )


def unreadable(facts: DoctorFacts) -> Findings:
    for job in facts.unread:
        yield Finding(
            f"job {job} was loaded by another version, and this one cannot read it",
            "processes of this version emit none of its ticks and send none of its runs",
            "upgrade them, or load files without the keys that they do not know",
        )


def holidays(facts: DoctorFacts) -> Findings:
    """Beat computes those of its files for one more year when a year begins."""
    ending: dict[tuple[str, int], list[str]] = {}
    for spec in facts.specs:
        for known in holidays_ending(spec.exclude, facts.now.year).items():
            ending.setdefault(known, []).append(spec.name)
    for (of, until), jobs in sorted(ending.items()):
        yield Finding(
            f"the holidays of {of} are known until the end of {until}: {first_of(jobs, ', ')}",
            "after that the jobs run on holidays as well",
            "update the library `holidays` where beat runs; load again a job that is in no file",
            is_note=until == facts.now.year,
        )


def silent_runs(facts: DoctorFacts) -> Findings:
    for run, ended_at in facts.silent.items():
        seconds = facts.ago(ended_at).total_seconds()
        yield Finding(
            f"{run} is running, but its lease expired {seconds:.0f}s ago",
            "its worker is gone or cannot reach Redis, and no beat has rescued the run",
            "see that a beat leads; then `supervisor show` the run",
        )


def ticks(facts: DoctorFacts) -> Findings:
    for job, number in facts.unaccounted.items():
        yield Finding(
            f"{number} ticks of job {job} are unaccounted for",
            "Redis lost writes, or the ledger has a defect: they ran twice, or never",
            f"`supervisor audit {job}` names them; `--acknowledge` ends the alert",
        )


def messages(facts: DoctorFacts) -> Findings:
    for reason, jobs in sorted(facts.apart.items()):
        yield Finding(
            f"Celery makes the message of each run of {first_of(jobs, ', ')}: {reason}",
            "beat sends a few hundred of them a second, instead of thousands",
            "nothing, unless more of their runs are due at once",
            is_note=True,
        )


# The app, where it is known: its settings, its broker, RedBeat's entries, its files.


def supervised(app: AppFacts) -> Findings:
    if not app.is_supervised:
        yield Finding(
            "this app was not given to supervise()",
            "its beat loads no schedule files, and its workers run tasks without the guard",
            "call supervise(app, schedules=...) where the app is made (docs/reference/settings.md)",
        )


def settings(app: AppFacts) -> Findings:
    for overridden in app.overridden:
        yield Finding(
            f"{overridden.setting} is {overridden.value!r}, and should be {overridden.needed!r}",
            "the guarantees need it (docs/reference/settings.md)",
            overridden.hint,
        )
    if app.fetches_ahead:
        yield Finding(
            "workers fetch ahead: the broker is not Redis, and task_acks_late is off",
            "a run that a busy worker has fetched is sent again after two seconds, for others to "
            "take; one of its messages is dropped, and counted as a duplicate",
            "set `task_acks_late = True` if all of the app's tasks may safely run twice",
            is_note=True,
        )


def servers(app: AppFacts) -> Findings:
    if app.redbeat_apart:
        yield Finding(
            "RedBeat's schedule and the ledger are in two Redis databases",
            app.redbeat_apart,
            "remove redbeat_redis_url from the app's configuration: supervise() sets it",
        )
    if app.broker_apart:
        yield Finding(
            app.broker_apart,
            "that may be intended; but an app that names its broker in its code does not take it "
            "from SUPERVISOR_REDIS_URL, and its messages may go where no worker looks",
            "name no broker in the app's code, or set CELERY_BROKER_URL as well",
            is_note=True,
        )


def broker(app: AppFacts) -> Findings:
    if app.broker_fault:
        yield Finding(
            f"the broker cannot be reached: {app.broker_fault}",
            "runs are not sent, and workers take none; the ledger keeps what is due",
            "check that it runs, and the address that the app has for it",
        )


def entries(app: AppFacts) -> Findings:
    for name in app.strange_entries:
        yield Finding(
            f"RedBeat's entry of job {name} differs from the loaded job",
            "beat emits it at other times, or not at all",
            "run `supervisor apply`, or touch its schedule file while beat runs",
        )


def unguarded(app: AppFacts) -> Findings:
    if app.unstored:
        yield Finding(
            f"RedBeat cannot store these entries of beat_schedule: {first_of(app.unstored, ', ')}",
            "no beat emits them",
            "`supervisor -A proj jobs --unguarded` says why: give them what JSON can hold",
        )
    if app.unguarded:
        yield Finding(
            f"RedBeat emits these entries unguarded: {first_of(app.unguarded, ', ')}",
            "their runs may overlap, are not rescued, and no metric has them",
            "`supervise(app, adopt_entries=True)` makes jobs of those that code saves, and "
            "`supervisor -A proj adopt` of all (docs/how-to/adopting.md)",
            is_note=True,
        )


def rows(app: AppFacts) -> Findings:
    if app.rows_changed_at:
        yield Finding(
            f"rows of django-celery-beat were changed at {app.rows_changed_at:%F %T} UTC, after"
            " schedule files were loaded",
            "jobs of files do not follow the rows that they were made of, and new rows do not run",
            "`supervisor -A proj adopt --force` reads them again, supervise(app, adopt_rows=True)"
            " follows them (docs/how-to/from-django-celery-beat.md)",
            is_note=True,
        )


def refused(app: AppFacts) -> Findings:
    for fault in app.refused:
        yield Finding(
            f"the app cannot run job {fault}",
            "its runs fail, or are refused by workers until they expire",
            "`supervisor -A proj check` names the line of each",
        )


def unloaded(app: AppFacts) -> Findings:
    if app.file_problems:
        yield Finding(
            "the schedule files here have problems: " + first_of(app.file_problems, "; "),
            "a beat that reads them loads none of their edits",
            "`supervisor check` lists all of them",
        )
    if app.unloaded:
        yield Finding(
            f"the loaded jobs differ from the schedule files here: {first_of(app.unloaded, ', ')}",
            "an edit made here did not reach beat, or beat follows other files",
            "`supervisor plan` shows the difference; make sure that beat reads the same files",
        )


CHECKS: Mapping[str, Callable[[DoctorFacts], Findings]] = {
    "permissions": permissions,
    "replica": replica,
    "refusal": refusal,
    "persistence": persistence,
    "eviction": eviction,
    "memory": memory,
    "beat": beats,
    "workers": workers,
    "owner": owner,
    "leaders": leaders,
    "clocks": clocks,
    "tasks": tasks,
    "queues": queues,
    "pools": pools,
    "schedule files": files,
    "schema": schema,
    "versions": unreadable,
    "holidays": holidays,
    "silent runs": silent_runs,
    "ticks": ticks,
    "messages": messages,
}

#: Made only where the app is known.
APP_CHECKS: Mapping[str, Callable[[AppFacts], Findings]] = {
    "supervised": supervised,
    "settings": settings,
    "servers": servers,
    "broker": broker,
    "entries": entries,
    "unguarded": unguarded,
    "rows": rows,
    "refused": refused,
    "files": unloaded,
}


F = TypeVar("F")


def examine(facts: DoctorFacts) -> list[Finding]:
    return made(CHECKS, facts) + (examine_app(facts.app) if facts.app else [])


def examine_app(app: AppFacts) -> list[Finding]:
    """What can be examined without the ledger."""
    return made(APP_CHECKS, app)


def made(checks: Mapping[str, Callable[[F], Findings]], facts: F) -> list[Finding]:
    return [
        replace(finding, check=name) for name, check in checks.items() for finding in check(facts)
    ]
