"""The checks of `supervisor doctor`: each is a function of the facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from supervisor.beat.app_facts import LateTask
from supervisor.ledger.presence import PRESENCE_INTERVAL, BeatFacts, WorkerFacts
from supervisor.ledger.scripts import SCHEMA
from supervisor.operate.doctor_facts import DoctorFacts
from supervisor.operate.words import span

# What a check has found.


@dataclass(frozen=True, slots=True)
class Finding:
    """what: is the case. why: it matters. todo: about it. A note is nothing wrong."""

    check: str
    what: str
    why: str
    todo: str
    is_note: bool = False


# What the ledger itself says: runs without a sign of life, ticks without an outcome, files.


SHOWN = 3

#: A newer process that tries no more has been taken back.
UPGRADE_SHOWN = timedelta(minutes=15)


def silent_runs(facts: DoctorFacts) -> Iterator[Finding]:
    for run, ended_at in facts.silent.items():
        seconds = facts.ago(ended_at).total_seconds()
        yield Finding(
            "silent runs",
            f"{run} is at work, and its lease ran out {seconds:.0f}s ago",
            "its worker is gone, or cannot reach Redis, and no beat has rescued the run",
            "see that a beat leads; then `supervisor show` the run",
        )


def ticks(facts: DoctorFacts) -> Iterator[Finding]:
    for job, number in facts.unaccounted.items():
        yield Finding(
            "ticks",
            f"{number} ticks of job {job} are unaccounted for",
            "Redis lost writes, or the ledger has a defect: they ran twice, or never",
            f"`supervisor audit {job}` names them; `--acknowledge` ends the alert",
        )


def schema(facts: DoctorFacts) -> Iterator[Finding]:
    """A version of another schema is here, there, or at the door."""
    found, wanted, tried_at = facts.schema, facts.beat.upgrade_to, facts.beat.upgrade_at
    there = ", ".join(sorted(present.facts.name for present in facts.roll.present)) or "none"
    if found is not None and found > SCHEMA:
        yield Finding(
            "schema",
            f"the ledger has schema {found}, and this version {SCHEMA}",
            "beats and workers of this version end when they start, and its verbs change nothing",
            "install the version of the processes that are there: docs/upgrading.md",
        )
    elif found is not None and found < SCHEMA:
        yield Finding(
            "schema",
            f"the ledger has schema {found}, and this version {SCHEMA}",
            f"it is upgraded when no process of the older version is there; there are: {there}",
            "stop them, then start one beat of this version: docs/upgrading.md",
        )
    elif wanted and wanted > SCHEMA and tried_at and facts.ago(tried_at) < UPGRADE_SHOWN:
        yield Finding(
            "schema",
            f"a process of a newer version, of schema {wanted}, could not start at "
            f"{tried_at:%F %T} UTC",
            f"it waits for those of this version to end, which are: {there}",
            "stop them, or take the newer version back: docs/upgrading.md",
        )


def unread(facts: DoctorFacts) -> Iterator[Finding]:
    for job in facts.unread:
        yield Finding(
            "versions",
            f"job {job} was loaded by another version, and this one cannot read it",
            "processes of this version emit none of its ticks and send none of its runs",
            "upgrade them, or load files without the keys that they do not know",
        )


def files(facts: DoctorFacts) -> Iterator[Finding]:
    if facts.beat.last_reload_successful is False:
        problems = facts.beat.problems
        more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        yield Finding(
            "schedule files",
            "rejected: " + "; ".join(problems[:SHOWN]) + more,
            "an older set is in force, and edits do not take effect",
            "`supervisor check` tells all that is wrong in them",
        )


# Queues: is every one worked, and a serial one by one worker?


def unworked(facts: DoctorFacts) -> Iterator[Finding]:
    for queue in facts.queues:
        if queue.jobs and not queue.consumers:
            options = " -c 1" if queue.is_serial else ""
            yield Finding(
                "queues",
                f"no worker consumes the queue {queue.name}",
                "the runs that are sent there wait until they expire",
                f"start one: `celery -A proj worker -Q {queue.name}{options}`",
            )


def crowded(facts: DoctorFacts) -> Iterator[Finding]:
    for queue in facts.queues:
        if queue.is_serial and queue.consumers > 1:
            names = [w.name for w in facts.roll.workers if queue.name in w.queues]
            yield Finding(
                "queues",
                f"{queue.consumers} workers consume the serial queue {queue.name}: "
                f"{', '.join(names)}",
                "its runs are still kept apart, but those taken too early go back and start later",
                "stop all but one of them",
            )


def shared(facts: DoctorFacts) -> Iterator[Finding]:
    for other, queue in sorted({both for p in facts.roll.present for both in p.shared_queues}):
        yield Finding(
            "queues",
            f"the queue {queue} is shared with another ledger: {other}",
            "workers of each take messages of the other and give them back: runs start late, and"
            " never while only workers of the other consume it",
            "give each deployment queues of its own (docs/settings.md, Two deployments on one"
            " Redis), and an owner of its own",
        )


def wide(facts: DoctorFacts) -> Iterator[Finding]:
    serial = {queue.name for queue in facts.queues if queue.is_serial}
    for worker in facts.roll.workers:
        for name in sorted(serial & set(worker.queues)):
            if worker.pool_size > 1:
                yield Finding(
                    "queues",
                    f"{worker.name} has {worker.pool_size} processes for the serial queue {name}",
                    "only one of them ever has work of it",
                    "start it with `-c 1`",
                    is_note=True,
                )


# Beats and workers: are they there, do they agree on the time, do they know the tasks?


CLOCKS_APART = timedelta(seconds=1)

#: A beat of another app that comes no more was one by mistake.
REFUSED_SHOWN = timedelta(minutes=15)

#: A clock that was set back is reported for so long, or until it has passed the time it had.
SET_BACK_SHOWN = timedelta(hours=1)


def beats(facts: DoctorFacts) -> Iterator[Finding]:
    there = facts.roll.beats
    for beat in facts.roll.present:
        if isinstance(beat.facts, BeatFacts) and beat.fault:
            yield Finding(
                "beat",
                f"the ticks of {beat.facts.name} fail: {beat.fault}",
                "it emits, rescues and retries nothing",
                "mend what it reports; it goes on by itself",
            )
    if not there:
        yield Finding(
            "beat",
            "no beat is there",
            "nothing is emitted, rescued or retried",
            "start one: `celery -A proj beat`; the log of one that runs says why it is not seen",
        )
    elif not facts.beat.leads(facts.now):
        yield Finding(
            "beat",
            f"no beat leads, of {len(there)} that are there",
            "nothing is emitted, rescued or retried",
            "look at their logs for `tick failed`; another program may hold RedBeat's lock",
        )
    elif len(there) == 1:
        yield Finding(
            "beat",
            "only one beat is there",
            "while it is away nothing is emitted; a second one leads within 12 seconds",
            "start a second one on another machine",
            is_note=True,
        )


def workers(facts: DoctorFacts) -> Iterator[Finding]:
    for worker in facts.roll.present:
        if isinstance(worker.facts, WorkerFacts) and worker.fault:
            yield Finding(
                "workers",
                f"{worker.facts.name} does no work: {worker.fault}",
                "it takes no message, and keeps those that it has taken",
                "restart it; what runs in its main process must not wait: signals, boot steps",
            )
        elif isinstance(worker.facts, WorkerFacts) and worker.is_waiting:
            yield Finding(
                "workers",
                f"{worker.facts.name} waits for its broker",
                "it takes no message until the broker answers",
                "look at the broker, and at the address that this worker has for it",
            )


def owner(facts: DoctorFacts) -> Iterator[Finding]:
    """Whose ledger it is, and who else would have it."""
    own, beat = facts.beat.app, facts.beat
    named = facts.app.owner if facts.app else None
    if own and named and named != own:
        yield Finding(
            "owner",
            f"the ledger is that of the app {own!r}, and this app is {named!r}",
            "no beat of this app leads, and its jobs are not loaded",
            "give it a prefix of its own; was it renamed, `supervisor -A proj apply --take-over`",
        )
    if beat.refused and beat.refused_at and facts.ago(beat.refused_at) < REFUSED_SHOWN:
        yield Finding(
            "owner",
            f"a beat of another app was refused at {beat.refused_at:%F %T} UTC: {beat.refused}",
            f"two apps share this ledger, which is that of {own!r}; of the other no job runs",
            "give the other app a prefix of its own (SUPERVISOR_PREFIX), or take the ledger over",
        )


def leaders(facts: DoctorFacts) -> Iterator[Finding]:
    # One that was killed still says so, but has been silent for longer when another leads.
    leading = [
        present.facts.name
        for present in facts.roll.present
        if isinstance(present.facts, BeatFacts)
        and present.facts.leads
        and facts.ago(present.last_seen_at) < 2 * PRESENCE_INTERVAL
    ]
    if len(leading) > 1:
        yield Finding(
            "leaders",
            f"{len(leading)} beats say that they lead: {', '.join(leading)}",
            "each tick is taken once all the same, but one of them is cut off",
            "ask again in 15 seconds; then stop the one that is cut off, and look at its machine",
        )


def clocks(facts: DoctorFacts) -> Iterator[Finding]:
    for present in facts.roll.present:
        offset = present.clock_offset
        if offset is not None and abs(offset) > CLOCKS_APART:
            seconds = abs(offset).total_seconds()
            yield Finding(
                "clocks",
                f"the clock of {present.facts.name} is {seconds:.1f}s "
                f"{'ahead of' if offset > timedelta() else 'behind'} that of Redis",
                "times in its logs do not fit to the ledger's, and its ETA messages come wrong",
                f"synchronise the clock of {present.host}, or that of Redis",
            )
    at, by = facts.beat.clock_set_back_at, facts.beat.clock_set_back
    if at is not None and facts.ago(at) < max(by, SET_BACK_SHOWN):
        yield Finding(
            "clocks",
            f"the clock of Redis was set back by {span(by.total_seconds())} at {at:%F %T} UTC",
            "times until then come again: their ticks that have run do not run a second time",
            "synchronise the clock of its machine; if it had been ahead, nothing is left to do",
        )


def tasks(facts: DoctorFacts) -> Iterator[Finding]:
    """Without any worker, it is the queues that lack one."""
    if not facts.roll.workers:
        return
    for job, names in facts.tasks.items():
        for name in names:
            if name not in facts.known_tasks:
                yield Finding(
                    "tasks",
                    f"job {job} names the task {name}, which no worker knows",
                    "workers throw its messages away; the runs are sent again, and expire",
                    "import its module in the app, or correct the name; restart the workers",
                )


# The ledger's Redis: does it keep what it is told?


OLDEST_VERSION = (6, 2)


def permissions(facts: DoctorFacts) -> Iterator[Finding]:
    """Of the user that asks; what others lack is in Redis' own ACL LOG."""
    for said in facts.forbidden:
        yield Finding(
            "permissions",
            f"Redis forbids this user a question: {said}",
            "what it would have told is not checked",
            "give the user what `deploy/redis/users.acl.example` gives to operator",
        )


def persistence(facts: DoctorFacts) -> Iterator[Finding]:
    server = facts.server
    if server is None or server.has_append_only_file:
        return
    if server.snapshots == "":
        yield Finding(
            "persistence",
            "Redis writes nothing to disk: no append-only file, no snapshots",
            "after a restart no job is loaded, no run is remembered, and counters begin anew",
            "set `appendonly yes` in its configuration",
        )
        return
    yield Finding(
        "persistence",
        "Redis has no append-only file",
        "what happened since the last snapshot is lost when it dies: ticks run a second time",
        "set `appendonly yes` in its configuration",
        is_note=True,
    )


def eviction(facts: DoctorFacts) -> Iterator[Finding]:
    if facts.server and facts.server.eviction != "noeviction":
        yield Finding(
            "eviction",
            f"Redis may evict keys: maxmemory-policy is {facts.server.eviction}",
            "a lock, a waiting run or a counter that is evicted is gone without a word",
            "set `maxmemory-policy noeviction`; give a cache a server of its own",
        )


def version(facts: DoctorFacts) -> Iterator[Finding]:
    if facts.server and facts.server.version < OLDEST_VERSION:
        yield Finding(
            "version",
            f"Redis is {dotted(facts.server.version)}; the oldest supported is "
            f"{dotted(OLDEST_VERSION)}",
            "the scripts are not tested with it",
            "use a newer Redis, or Valkey",
        )


def dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


# The app's settings and the broker's, where the app is known.


def supervised(facts: DoctorFacts) -> Iterator[Finding]:
    if facts.app and not facts.app.is_supervised:
        yield Finding(
            "supervised",
            "this app was not given to supervise()",
            "its beat loads no schedule files, and its workers run tasks without the guard",
            "call supervise(app, schedules=...) where the app is made (docs/settings.md)",
        )


def settings(facts: DoctorFacts) -> Iterator[Finding]:
    for overridden in facts.app.overridden if facts.app else ():
        yield Finding(
            "settings",
            f"{overridden.setting} is {overridden.value!r}, and is to be {overridden.needed!r}",
            REASONS.get(overridden.setting, "the guarantees need it"),
            "leave it out of the app's configuration: supervise() sets it",
        )
    if facts.app and facts.app.fetches_ahead:
        yield Finding(
            "settings",
            "workers fetch ahead: the broker is not Redis, and task_acks_late is off",
            "a run that a busy worker has fetched is sent again after two seconds, for others to "
            "take; one of its messages is dropped, and counted as a duplicate",
            "set `task_acks_late = True` if all of the app's tasks can bear to run twice",
            is_note=True,
        )


def servers(facts: DoctorFacts) -> Iterator[Finding]:
    if facts.app and facts.app.redbeat_apart:
        yield Finding(
            "servers",
            "RedBeat's schedule and the ledger are in two Redis databases",
            facts.app.redbeat_apart,
            "leave redbeat_redis_url out of the app's configuration: supervise() sets it",
        )
    if facts.app and facts.app.broker_apart:
        yield Finding(
            "servers",
            facts.app.broker_apart,
            "that may be meant; but an app that names its broker in its code does not take it from "
            "SUPERVISOR_REDIS_URL, and its messages may go where no worker looks",
            "name no broker in the app's code, or set CELERY_BROKER_URL as well",
            is_note=True,
        )


REASONS = {
    "worker_prefetch_multiplier": "runs wait behind a long one in a worker that is busy",
    "worker_disable_prefetch": "runs wait behind a long one in a worker that is busy",
    "worker_cancel_long_running_tasks_on_connection_loss": (
        "healthy runs are killed when the broker's connection is cut"
    ),
    "beat_scheduler": "`celery beat` emits without the guard, or not at all",
}


def visibility(facts: DoctorFacts) -> Iterator[Finding]:
    timeout = facts.app.visibility_timeout if facts.app else None
    if facts.app is None or timeout is None:
        return
    for late in facts.app.late_tasks:
        if late.time_limit is not None and late.time_limit <= timeout:
            continue
        yield Finding(
            "visibility",
            f"{late.task} of job {late.job} is acknowledged late and {words(late)}, and the broker "
            f"sends messages again after {timeout}",
            "its runs are safe; where code calls it without the guard, it is started a second time "
            "while it is at work",
            "set `visibility_timeout` in broker_transport_options longer than its time limit, or "
            "leave acks_late out",
            is_note=late.time_limit is None,
        )


def words(late: LateTask) -> str:
    return f"may take {late.time_limit}" if late.time_limit else "has no time limit"


def unloaded(facts: DoctorFacts) -> Iterator[Finding]:
    names = facts.app.unloaded if facts.app else ()
    if names:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        yield Finding(
            "files",
            f"what is loaded is not what the schedule files here say: {', '.join(names[:SHOWN])}"
            f"{more}",
            "an edit that is here did not reach beat, or beat follows other files",
            "`supervisor plan` shows the difference; see that beat reads the same files",
        )


def entries(facts: DoctorFacts) -> Iterator[Finding]:
    for name in facts.app.strange_entries if facts.app else ():
        yield Finding(
            "entries",
            f"RedBeat's entry of job {name} is not that of the loaded job",
            "beat emits it at other times, or not at all",
            "run `supervisor apply`, or touch its schedule file while beat runs",
        )


CHECKS: tuple[Callable[[DoctorFacts], Iterator[Finding]], ...] = (
    *(permissions, persistence, eviction, version),
    *(beats, workers, owner, leaders),
    *(clocks, tasks),
    *(unworked, crowded, shared, wide),
    *(
        files,
        schema,
        unread,
        silent_runs,
        ticks,
    ),
    *(supervised, settings, servers),
    *(visibility, entries, unloaded),
)


def examine(facts: DoctorFacts) -> list[Finding]:
    return [finding for check in CHECKS for finding in check(facts)]
