"""The app under fire: ordinary tasks that tell a witness, outside the product, what they do."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery, Task
from celery.signals import task_received

import supervisor
from supervisor import current_run
from supervisor.app import supervise
from tools.chaos.jobs import LONG_SECONDS, POOL

#: The package under fire, which may be a broken copy.
assert supervisor.__file__.startswith(os.environ["CHAOS_PACKAGE"]), supervisor.__file__

app = Celery("chaos", broker=os.environ["CHAOS_BROKER"])
supervise(app, schedules="schedules")

WITNESS = Path("witness.jsonl")
MESSAGES = Path("messages.jsonl")


class SentByCelery(Task):  # type: ignore[type-arg]
    """With an `apply_async` of its own, Celery has to make each message of its runs."""

    def apply_async(self, *args: Any, **options: Any) -> Any:
        return super().apply_async(*args, **options)


@app.task
def work(shortest: float, longest: float, long_share: float, version: int = 0) -> None:
    """version: of the job, which is edited now and then."""
    attempt(shortest, longest, long_share, version)
    sign("end")


@app.task(base=SentByCelery)
def work_by_celery(shortest: float, longest: float, long_share: float) -> None:
    stumbling(shortest, longest, long_share)


@app.task
def stumble(shortest: float, longest: float, long_share: float) -> None:
    stumbling(shortest, longest, long_share)


def stumbling(shortest: float, longest: float, long_share: float) -> None:
    """Fails now and then, so that attempts are repeated while workers die."""
    attempt(shortest, longest, long_share)
    if random.random() < 0.3:
        sign("fail")
        raise RuntimeError("stumbled\u2028over\x85text")
    sign("end")


def attempt(shortest: float, longest: float, long_share: float, version: int = 0) -> None:
    is_long = random.random() < long_share
    bounds = LONG_SECONDS if is_long else (shortest, longest)
    sign("start", version)
    try:
        work_for(random.uniform(*bounds))
    except BaseException:  # cancelled, replaced, or its lease was lost
        sign("interrupted")
        raise


def work_for(seconds: float) -> None:
    """A thread has to look by itself whether it is to end."""
    run, until = current_run(), time.monotonic() + seconds
    while run and POOL == "threads" and time.monotonic() < until - 0.05:
        time.sleep(0.05)
        run.check()
    time.sleep(max(0.0, until - time.monotonic()))


@task_received.connect
def note_message(request: Any, **_: Any) -> None:
    """A worker's main process has taken a message from its queue."""
    note(MESSAGES, {"run": request.id, "at": monotonic()})


def sign(event: str, version: int = 0) -> None:
    run = current_run()
    assert run is not None, "only supervised runs are witnessed"
    line = {
        "event": event,
        "job": run.job,
        "run": run.run_id,
        "attempt": run.attempt,
        "token": run.fencing_token,
        "pid": os.getpid(),
        "group": os.getpgrp(),
        "version": version,
        "at": monotonic(),
    }
    note(WITNESS, line)


def monotonic() -> float:
    """One clock for all processes, which no adjustment of the time of day moves."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def note(path: Path, line: Mapping[str, Any]) -> None:
    """One line in one write: appended whole, or, when a kill comes first, not at all."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, (json.dumps(line) + "\n").encode())
    finally:
        os.close(descriptor)
