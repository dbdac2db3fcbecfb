"""How a run ends whose end Celery cannot store, or whose handlers raise: as its body did."""

from __future__ import annotations

import pytest

from supervisor.job.run import Run
from tests.acceptance.project import needs_children
from tests.acceptance.workers import Workers
from tests.waiting import wait_until

JOBS = """
defaults: {paused: true, lease_ttl: 4s, retry_backoff: 0s}
jobs:
  works: {task: team.work, every: 24h}
  fails: {task: team.fail, every: 24h}
  retried: {task: team.fail, every: 24h, max_retries: 1}
  recovers: {task: team.fail, every: 24h, kwargs: {attempts: 2}, max_retries: 3}
  asks-again: {task: team.ask_again, every: 24h}
  auto: {task: team.auto, every: 24h}
  exits: {task: team.leave, every: 24h, args: [exit]}
  memory: {task: team.leave, every: 24h, args: [memory]}
  ignores: {task: team.leave, every: 24h, args: [ignore]}
  soft: {task: team.work, every: 24h, args: [30], soft_time_limit: 3s}
  handler: {task: team.handled, every: 24h, args: [99]}
  retry-handler: {task: team.handled, every: 24h, args: [1], max_retries: 1}
  wrapped: {task: team.wrapped, every: 24h}
  alone: {task: team.alone, every: 24h, max_retries: 1}
  generator: {task: team.raises, every: 24h, args: [GeneratorExit]}
  keyboard: {task: team.raises, every: 24h, args: [KeyboardInterrupt], max_retries: 1}
  asyncio: {task: team.raises, every: 24h, args: [CancelledError]}
  plain: {task: team.raises, every: 24h, args: [BaseException]}
  around: {task: team.around, every: 24h}
  unready: {task: team.unready, every: 24h}
  killed-after: {task: team.killed_after, every: 24h}
  fork-returns: {task: team.forks, every: 24h, args: [returns, 0]}
  fork-fails: {task: team.forks, every: 24h, args: [fails, 1]}
  fork-exits: {task: team.forks, every: 24h, args: [exits, 3]}
"""

WORKERS, PROCESSES = 1, 4

#: The result backend is unavailable; handlers of the team's own raise.
SETTINGS = """
from celery.backends.base import KeyValueStoreBackend

class Away(KeyValueStoreBackend):
    def get(self, key):
        raise ConnectionError("away")

    def set(self, key, value):
        raise ConnectionError("away")

app.conf.result_backend = "team:Away"

class Raising(app.Task):
    def on_failure(self, *_, **__):
        raise RuntimeError("a handler's own")

    on_retry = on_failure

@app.task(bind=True, base=Raising, ignore_result=True)
def handled(self, attempts):
    sign("start", self)
    if self.request.retries < attempts:
        raise ValueError("not yet")

class Wrapping(app.Task):
    def __call__(self, *args, **kwargs):
        super().__call__(*args, **kwargs)
        raise KeyError("after the body")

@app.task(bind=True, base=Wrapping)
def wrapped(self):
    sign("start", self)

class Alone(app.Task):
    def __call__(self, *args, **kwargs):
        return self.run(*args, **kwargs)

@app.task(bind=True, base=Alone)
def alone(self):
    sign("start", self)
    if self.request.retries < 1:
        raise ValueError("not yet")

@app.task(bind=True)
def raises(self, name):
    import asyncio, builtins
    sign("start", self)
    raise (getattr(builtins, name, None) or getattr(asyncio, name))

class Around(app.Task):
    def __call__(self, *args, **kwargs):
        super().__call__(*args, **kwargs)
        raise GeneratorExit("after the body")

@app.task(bind=True, base=Around)
def around(self):
    sign("start", self)

class Unready(app.Task):
    def before_start(self, *arguments):
        super().before_start(*arguments)
        sign("start", self)
        raise LookupError("before the body")

@app.task(base=Unready)
def unready(): ...

class KilledAfter(app.Task):
    def on_success(self, *_):
        os.kill(os.getpid(), 9)

@app.task(bind=True, base=KilledAfter, ignore_result=True)
def killed_after(self):
    sign("start", self)

@app.task(bind=True, ignore_result=True)
def forks(self, how, expected):
    sign("start", self)
    if forked := os.fork():
        status = os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])
        sign("end", self)
        assert status == expected
    elif how == "fails":
        raise ValueError("in the forked process")
    elif how == "exits":
        sys.exit(3)
"""


def ended(workers: Workers, job: str) -> Run:
    """A new run of the job, once it has ended for good."""
    run, ledger = workers.trigger(job), workers.project.ledger
    wait_until(lambda: not ledger.run(run.id).state.is_open, 30)
    return ledger.run(run.id)


@pytest.mark.parametrize(
    ("job", "outcomes", "reason"),
    [
        ("works", ["succeeded"], None),
        ("fails", ["failed"], "ValueError: not yet"),
        ("retried", ["failed", "failed"], "ValueError: not yet"),
        ("recovers", ["failed", "failed", "succeeded"], None),
        ("asks-again", ["failed", "succeeded"], None),
        ("auto", ["failed", "succeeded"], None),
        ("exits", ["failed"], "SystemExit: 3"),
        ("memory", ["failed"], "MemoryError"),
        ("ignores", ["succeeded"], "ignored"),
        pytest.param(
            *("soft", ["timed_out"], "SoftTimeLimitExceeded: SoftTimeLimitExceeded()"),
            marks=needs_children("none has a soft limit"),
        ),
        ("handler", ["failed"], "ValueError: not yet"),
        ("retry-handler", ["failed", "succeeded"], None),
        ("alone", ["failed", "succeeded"], None),
        ("generator", ["failed"], "GeneratorExit"),
        ("keyboard", ["failed", "failed"], "KeyboardInterrupt"),
        ("asyncio", ["failed"], "CancelledError"),
        ("plain", ["failed"], "BaseException"),
        ("around", ["failed"], "GeneratorExit: after the body"),
    ],
)
def test_a_run_ends_as_its_body_did(
    workers: Workers, job: str, outcomes: list[str], reason: str | None
) -> None:
    run = ended(workers, job)
    assert (workers.outcomes(run), run.reason) == (outcomes, reason)
    assert [sign.retries for sign in workers.starts(run)] == [*range(len(outcomes))]
    assert workers.project.ledger.job(job).counters.get("retried", 0) == len(outcomes) - 1


@pytest.mark.parametrize("job", ["wrapped", "unready"])
def test_what_a_task_class_raises_around_the_body_is_a_failure_too(
    workers: Workers, job: str
) -> None:
    run = ended(workers, job)
    assert workers.outcomes(run) == ["failed"]
    assert len(workers.starts(run)) == 1


@needs_children("one is killed")
def test_a_body_that_returned_and_is_killed_is_not_run_again(workers: Workers) -> None:
    run = ended(workers, "killed-after")
    assert workers.outcomes(run) == ["succeeded"]
    assert len(workers.starts(run)) == 1


@pytest.mark.parametrize("job", ["fork-returns", "fork-fails", "fork-exits"])
def test_a_process_that_the_body_forks_ends_with_the_body_and_ends_no_run(
    workers: Workers, job: str
) -> None:
    run = ended(workers, job)
    assert (workers.outcomes(run), run.reason) == (["succeeded"], None)
    assert [sign.pid for sign in workers.ends(run)] == [workers.starts(run)[0].pid]
