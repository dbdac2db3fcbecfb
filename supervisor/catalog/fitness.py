"""Whether a task of an app can be run as a job, and what its own classes change of that.

Tasks are looked at by what they have: nothing of Celery is imported for it.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any

from supervisor.job.spec import JobSpec
from supervisor.job.topology import Needs, pool_of_setting

#: What Celery's tasks have in place of a Strategy of their own.
STRATEGY = "celery.worker.strategy:default"


def guard_in_code(task: Any) -> Any:
    """The `guard` of a task, None without one; a method of that name is the app's own business."""
    guard = getattr(task, "guard", None)
    return None if callable(guard) else guard


def has_own_strategy(task: Any) -> bool:
    """Whether the task's own code takes its messages in the worker, as that of celery-batches does.

    It may keep them, or give the pool several at once: no single one of them could be guarded.
    """
    return bool(task.Strategy != STRATEGY)


def cannot_run(task: Any) -> tuple[str, str] | None:
    """What keeps a task from being run as a job, and a hint; None if nothing does."""
    body = inspect.unwrap(task.run)
    if has_own_strategy(task):
        return "has a Strategy of its own", "have a task of its own for the job, which calls it"
    if any("__call__" in vars(own) for own in own_classes(task)):
        return None  # it may await or consume what the body returns
    if inspect.iscoroutinefunction(body):
        return "is `async def`, which Celery never awaits", "write `def`, with asyncio.run() in it"
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        return "is a generator, which Celery never runs", "return a list, or nothing"
    return None


def not_guardable(tasks: Mapping[str, Any], specs: Iterable[JobSpec]) -> Iterator[tuple[str, str]]:
    """Jobs that no worker can run, each with the reason. tasks: the app's, by name."""
    for spec in specs:
        for name in spec.tasks:
            if name in tasks and has_own_strategy(tasks[name]):
                yield spec.name, f"the task {name!r} has a Strategy of its own"


def refused_in_pool(worker_pool: str, specs: Mapping[str, JobSpec]) -> Iterator[str]:
    """Warnings of jobs that workers with this setting refuse, by their names in a file."""
    pool = pool_of_setting(worker_pool)
    for name, spec in specs.items():
        if pool and (unmet := Needs.of(spec, spec.steps).unmet_by(pool)):
            yield (
                f"job {name!r}: worker_pool is {pool}, which lacks what it needs: {unmet}; workers"
                " without `-P prefork` refuse its runs (docs/how-to/adopting.md, Pools)"
            )


def arguments_of(task: Any) -> inspect.Signature | None:
    """The signature by which Celery refuses a call when it is sent.

    None for a task without `typing`, and where a class of the project may change the arguments.
    """
    header = getattr(task, "__header__", None)
    is_changing = any(vars(own).keys() & {"apply_async", "__call__"} for own in own_classes(task))
    if header is None or is_changing or not task.typing:
        return None
    try:
        return inspect.signature(header)
    except (TypeError, ValueError):
        return None


def may_send_nothing(tasks: Mapping[str, Any], names: Iterable[str]) -> Iterator[str]:
    """Warnings of those of the tasks whose class may keep or drop what the ledger has queued.

    One of each class: an app may have one class for all of its tasks.
    """
    by_class: dict[str, list[str]] = defaultdict(list)
    for name in sorted({*names} & tasks.keys()):
        if own := own_sender(tasks[name]):
            by_class[own].append(name)
    for own, of_class in by_class.items():
        tasks_of_class = "task" if len(of_class) == 1 else "tasks"
        yield (
            f"{tasks_of_class} {', '.join(of_class)}: {own} has an apply_async of its own; where"
            " that sends nothing, as with celery-singleton, celery-once or after a commit, the run"
            " waits or fails (docs/how-to/from-lock-decorators.md)"
        )


def own_sender(task: Any) -> str | None:
    """The class of the project or of a library whose `apply_async` takes the place of Celery's."""
    for own in type(task).__mro__:
        root = own.__module__.partition(".")[0]
        if "apply_async" in vars(own) and root not in ("celery", "supervisor"):
            return f"{own.__module__}.{own.__qualname__}"
    return None


def own_classes(task: Any) -> Iterator[type]:
    """The classes of the project, or of a library, over Celery's own."""
    for own in takewhile(is_over_celerys, type(task).__mro__):
        if own.__module__.partition(".")[0] != "supervisor":
            yield own


def is_over_celerys(own: type) -> bool:
    return f"{own.__module__}.{own.__qualname__}" != "celery.app.task.Task"
