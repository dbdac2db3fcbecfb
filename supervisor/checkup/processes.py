"""Beats and workers: are they there, do they agree on the time, do they know the tasks?"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from supervisor.checkup.facts import Facts
from supervisor.checkup.finding import Finding
from supervisor.display.words import span
from supervisor.ledger.presence import PRESENCE_INTERVAL, BeatFacts, WorkerFacts

CLOCKS_APART = timedelta(seconds=1)

#: A beat of another app that comes no more was one by mistake.
REFUSED_SHOWN = timedelta(minutes=15)

#: A clock that was set back is reported for so long, or until it has passed the time it had.
SET_BACK_SHOWN = timedelta(hours=1)


def beats(facts: Facts) -> Iterator[Finding]:
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


def workers(facts: Facts) -> Iterator[Finding]:
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


def owner(facts: Facts) -> Iterator[Finding]:
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


def leaders(facts: Facts) -> Iterator[Finding]:
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


def clocks(facts: Facts) -> Iterator[Finding]:
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


def tasks(facts: Facts) -> Iterator[Finding]:
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
