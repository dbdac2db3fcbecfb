"""Queues: is every one worked, and a serial one by one worker?"""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.checkup.facts import Facts
from supervisor.checkup.finding import Finding


def unworked(facts: Facts) -> Iterator[Finding]:
    for queue in facts.queues:
        if queue.jobs and not queue.consumers:
            options = " -c 1" if queue.is_serial else ""
            yield Finding(
                "queues",
                f"no worker consumes the queue {queue.name}",
                "the runs that are sent there wait until they expire",
                f"start one: `celery -A proj worker -Q {queue.name}{options}`",
            )


def crowded(facts: Facts) -> Iterator[Finding]:
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


def shared(facts: Facts) -> Iterator[Finding]:
    for other, queue in sorted({both for p in facts.roll.present for both in p.shared_queues}):
        yield Finding(
            "queues",
            f"the queue {queue} is shared with another ledger: {other}",
            "workers of each take messages of the other and give them back: runs start late, and"
            " never while only workers of the other consume it",
            "give each deployment queues of its own (docs/settings.md, Two deployments on one"
            " Redis), and an owner of its own",
        )


def wide(facts: Facts) -> Iterator[Finding]:
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
