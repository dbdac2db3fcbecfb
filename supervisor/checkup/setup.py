"""The app's settings and the broker's, where the app is known."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.beat.app_facts import LateTask
from supervisor.checkup.facts import Facts
from supervisor.checkup.finding import Finding

SHOWN = 3


def supervised(facts: Facts) -> Iterator[Finding]:
    if facts.app and not facts.app.is_supervised:
        yield Finding(
            "supervised",
            "this app was not given to supervise()",
            "its beat loads no schedule files, and its workers run tasks without the guard",
            "call supervise(app, schedules=...) where the app is made (docs/settings.md)",
        )


def settings(facts: Facts) -> Iterator[Finding]:
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


def servers(facts: Facts) -> Iterator[Finding]:
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


def visibility(facts: Facts) -> Iterator[Finding]:
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


def unloaded(facts: Facts) -> Iterator[Finding]:
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


def entries(facts: Facts) -> Iterator[Finding]:
    for name in facts.app.strange_entries if facts.app else ():
        yield Finding(
            "entries",
            f"RedBeat's entry of job {name} is not that of the loaded job",
            "beat emits it at other times, or not at all",
            "run `supervisor apply`, or touch its schedule file while beat runs",
        )
