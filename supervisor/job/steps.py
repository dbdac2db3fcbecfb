"""The plan of a run of several steps: what the ledger needs to know of each, fixed at admission.

Steps of equal priority are a stage. Stages run from the highest priority to the lowest; one begins
when all steps of the one before have ended. An edit of the job changes later runs only.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, cached_property
from hashlib import sha1
from typing import Any, Self

from supervisor.errors import UnusableReturn
from supervisor.job.content import content_line
from supervisor.job.policies import OnItemFailure
from supervisor.job.run import NO_RULES, RunRules
from supervisor.job.secrets import has_references
from supervisor.job.spec import JobSpec
from supervisor.job.step_spec import StepSpec
from supervisor.times import to_ms

#: Items of a batch that are queued or running at once, unless `max_parallel` is less. Their
#: messages and records take memory, and one function queues them all.
ITEMS_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a plan, with the job's values where it has none; times are in seconds."""

    name: str
    task: str
    priority: int
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    queue: str | None = None
    message_priority: int | None = None
    max_retries: int = 0
    retry_backoff: float = 0.0
    retry_backoff_max: float = 0.0
    soft_time_limit: float | None = None
    time_limit: float | None = None
    foreach: str | None = None
    max_parallel: int = 0
    rules: RunRules = NO_RULES
    has_references: bool = False
    done: str = ""
    """The id of the step in an earlier run, of which this run repeats only later steps."""

    @classmethod
    def of(cls, planned: Mapping[str, Any]) -> Self:
        """A step of `plan`, as the ledger keeps it."""
        fields = {key: planned[key] for key in cls.__slots__ if key in planned}
        rules = RunRules.model_validate_json(planned["rules"])
        return cls(**{**fields, "args": tuple(planned["args"]), "rules": rules})


def plan(spec: JobSpec) -> dict[str, Any] | None:
    """The steps as plain JSON, in the order of the file; None for a job of one task."""
    if not spec.steps:
        return None
    return {
        "on_failure": spec.on_step_failure.value,
        "steps": [planned(spec, step) for step in spec.steps],
    }


def planned(spec: JobSpec, step: StepSpec) -> dict[str, Any]:
    """made: a digest of all else, by which a message made for another plan is known."""
    values = {
        "name": step.label,
        "task": step.task,
        "priority": step.priority,
        "args": list(step.args),
        "kwargs": step.kwargs,
        "queue": step.queue or spec.routed_queue,
        **({} if spec.priority is None else {"message_priority": spec.priority}),
        "max_retries": spec.max_retries if step.max_retries is None else step.max_retries,
        "retry_backoff": seconds(step.retry_backoff or spec.retry_backoff),
        "retry_backoff_max": seconds(spec.retry_backoff_max),
        "soft_time_limit": seconds(step.soft_time_limit or spec.soft_time_limit),
        "time_limit": seconds(step.time_limit or spec.time_limit),
        "rules": json.dumps(rules(spec, step).json_fields),
        "content": content_line(step.task, step.args, step.kwargs, named(spec, step)),
        **({"has_references": True} if named(spec, step) else {}),
        **batch(step),
    }
    return {**values, "made": sha1(json.dumps(values).encode()).hexdigest()}


def rules(spec: JobSpec, step: StepSpec) -> RunRules:
    """What the functions need to know of a step's run: it holds no lock, only a lease."""
    return RunRules(
        serial="" if step.queue else spec.serial_lock,
        max_running=1,
        start_deadline_ms=to_ms(spec.start_deadline),
        lease_ttl_ms=to_ms(spec.lease_ttl),
        on_crash=spec.on_crash.value,
        max_crashes=spec.max_crashes,
        on_lease_lost=spec.on_lease_lost.value,
        stop_grace_ms=to_ms(spec.stop_grace),
        **{key: rule for key, rule in spec.optional_rules.items() if key in ("mask", "log")},
    )


def named(spec: JobSpec, step: StepSpec) -> str:
    """The arguments into which secrets are to be put: those of code have none."""
    has_any = not spec.is_of_code and has_references([step.args, step.kwargs])
    return "args,kwargs" if has_any else ""


def batch(step: StepSpec) -> dict[str, Any]:
    """The bounds of a batch: how many items may run at once, and how many may fail (-1: all)."""
    if step.foreach is None:
        return {}
    share = isinstance(step.max_failed, str)
    most = {OnItemFailure.FAIL: 0, OnItemFailure.IGNORE: -1}.get(step.on_item_failure)
    return {
        "foreach": step.foreach,
        "max_parallel": min(step.max_parallel or 0, ITEMS_AT_ONCE),
        "max_failed": int(str(step.max_failed).rstrip("%")) if most is None else most,
        "max_failed_is_share": share,
    }


def without_done(plan: Mapping[str, Any], done: Mapping[str, str]) -> dict[str, Any]:
    """The plan in which steps that were done, by name, are not run again."""
    steps = ({k: v for k, v in step.items() if k != "done"} for step in plan["steps"])
    marked = [
        {**step, "done": done[step["name"]]} if step["name"] in done else step for step in steps
    ]
    return {**plan, "steps": marked}


def seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()


# Arguments of a step that are not given are filled by name from the params of its run.


@cache
def parameters(function: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of those that may be given by name, and of those given by position, in order."""
    by_position, by_name = [], []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.POSITIONAL_ONLY:
            by_position.append("")
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            by_position.append(parameter.name)
            by_name.append(parameter.name)
        elif parameter.kind is parameter.KEYWORD_ONLY:
            by_name.append(parameter.name)
    return tuple(by_name), tuple(by_position)


def filled(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    params: Mapping[str, Any],
) -> dict[str, Any]:
    """The keyword arguments, and each param that the function has a parameter for."""
    by_name, by_position = parameters(function)
    given = {*by_position[: len(args)], *kwargs}
    # Only lacking names are looked up in `params`, because the first look asks the ledger.
    lacking = [name for name in by_name if name not in given]
    return {**kwargs, **{name: params[name] for name in lacking if name in params}}


# The params that the steps of a run pass to each other.


#: Characters of JSON that a step may return: they go through the ledger.
LARGEST_RETURNED = 4 * 1024 * 1024


class Params(Mapping[str, Any]):
    """Read from the ledger on first use; each access gives a fresh copy that may be changed."""

    def __init__(
        self, load: Callable[[], Mapping[str, str]], decode: Callable[[str], Any] = json.loads
    ) -> None:
        self._load = load
        self._decode = decode

    @cached_property
    def _texts(self) -> Mapping[str, str]:
        return self._load()

    def __getitem__(self, name: str) -> Any:
        return self._decode(self._texts[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __repr__(self) -> str:
        return f"Params({', '.join(self) if '_texts' in vars(self) else 'not read yet'})"


def handed_on(returned: Any, as_json: Callable[[Any], Any]) -> dict[str, Any] | None:
    """What a step returned, in plain JSON; None unless it is a mapping. Raises UnusableReturn."""
    if not isinstance(returned, Mapping):
        return None
    try:
        plain = dict(as_json(dict(returned)))
        size = len(json.dumps(plain))
    except Exception as error:  # an object that has its own JSON may raise anything
        raise UnusableReturn(f"what the step returned is not JSON: {error}") from error
    if size > LARGEST_RETURNED:
        what = f"{size:,} characters of JSON, {LARGEST_RETURNED:,} are allowed"
        raise UnusableReturn(f"{what}: store the data and return where it is")
    return plain
