"""What a call of a task asks of the ledger, from what its caller said."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from celery.app.task import Context
from celery.backends.base import DisabledBackend
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.compression import get_encoder

from supervisor.errors import InvalidGuard
from supervisor.execution.context import current_run
from supervisor.execution.delivery import GUARD, HEADER, RETURNED_BY, work_of
from supervisor.files.guarded import GuardedCall, guarded_task_spec
from supervisor.job.guarded_spec import GuardedTaskSpec
from supervisor.job.lock_keys import lock_key
from supervisor.ledger.requests import Asked, RunRequest
from supervisor.runs.run import is_below, manual_id
from supervisor.sending import content
from supervisor.sending.lineage import lineage
from supervisor.sending.publisher import as_json
from supervisor.sending.tracing import current_headers
from supervisor.times.durations import LONGEST_SECONDS

#: Celery's options of a call that each message of a run has anew.
MESSAGES_OWN = ("task_id", "retries", "expires")


def request_of(
    task: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    task_id: str | None,
    options: Mapping[str, Any],
) -> RunRequest:
    """What the call asks of the ledger. Raises InvalidGuard, InvalidKey and TypeError."""
    check_arguments(task, args, kwargs)
    args, kwargs = dumped(task, args, kwargs)
    options, spec = dict(options), spec_of(task)
    task_id = str(task_id) if task_id else None  # Celery takes a UUID
    if task_id and is_below(task_id):
        raise InvalidGuard(task.name, [f"{task_id!r} as an id is that of a step of a run"])
    at_work = current_run()
    if at_work is not None and task_id == at_work.run_id:
        what = "a run cannot be replaced by a guarded call, which is a run of its own: call it"
        raise InvalidGuard(task.name, [what])
    check_content(task, options)
    expires = until(options.pop("expires", task.expires))
    headers = {**current_headers(), **(options.pop("headers", None) or {})}
    said = GuardedCall.of(headers.pop(GUARD, None), task.name)
    return RunRequest(
        run_id=task_id or manual_id(task.name),
        args=as_json(args),
        kwargs=as_json(kwargs),
        key=said.key or key_of(task, spec, args, kwargs),
        overlap=said.overlap,
        max_wait=said.max_wait,
        expires=expires,
        delay=until(options.pop("eta", None) or options.pop("countdown", None)) or timedelta(),
        options=as_json(
            {
                **lineage(task, options),
                **sendable(options),
                **({"headers": headers} if headers else {}),
            }
        ),
        is_awaited=is_awaited(task, options),
    )


def is_awaited(task: Any, options: Mapping[str, Any]) -> bool:
    """Whether somebody may wait for the result of the call: alone, or in a chord."""
    if isinstance(task.backend, DisabledBackend):
        return False
    return bool(options.get("chord")) or not is_ignored(task, options)


def is_ignored(task: Any, options: Mapping[str, Any]) -> bool:
    said = options.get("ignore_result")
    return bool(task.ignore_result if said is None else said)


def check_content(task: Any, options: Mapping[str, Any]) -> None:
    """What no worker could read would hold the lock. Raises UnsafeContent and InvalidGuard."""
    wrong = content.others(options.get("serializer"))
    content.refuse(f"a call of {task.name!r} has serializer={name!r}" for name in wrong)
    try:
        get_encoder(options.get("compression") or "gzip")
    except KeyError as error:
        raise InvalidGuard(task.name, [f"there is no compression {error}"]) from None


def check_arguments(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises TypeError for arguments that the task refuses, as Celery's own `apply_async`."""
    if task.typing and hasattr(task, "__header__"):
        task.__header__(*args, **kwargs)


def dumped(task: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a task with `pydantic=True` as they are sent, which takes Celery 5.7."""
    dump = getattr(task, "_dump_pydantic_arguments", None)
    return dump(args, kwargs) if dump else (args, kwargs)


@cache
def spec_of(task: Any) -> GuardedTaskSpec:
    return guarded_task_spec(task.name, {} if task.guard in (None, True) else task.guard)


def key_of(
    task: Any, spec: GuardedTaskSpec, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """The spec's template, filled with the arguments under the names the task has for them."""
    if spec.key is None:
        return None
    bound = inspect.signature(task.run).bind(*args, **kwargs)
    bound.apply_defaults()
    return lock_key(spec.key, job=spec.name, task=spec.work, kwargs=bound.arguments)


def until(moment: Any) -> timedelta | None:
    """How long from now until an instant (ISO text too), or in so many seconds; never negative.

    An instant without an offset is UTC, as Celery reads it in whatever zone app and machine are.
    What lies beyond the longest duration of schedule files is as far as that.
    """
    if moment is None:
        return None
    if isinstance(moment, str):
        moment = maybe_iso8601(moment)
    if isinstance(moment, datetime):
        seconds = (maybe_make_aware(moment) - datetime.now(UTC)).total_seconds()
    else:
        seconds = float(moment)
    return timedelta(seconds=min(max(0.0, seconds), LONGEST_SECONDS))


def asked_of(header: Mapping[str, Any], request: Context, task: Any) -> Asked:
    """What the caller of a run said, found in the message that a worker has of it.

    Nothing of a tick's run, and no arguments that are the schedule file's own.
    """
    if work_of(header, "").is_tick:
        return Asked()
    references = header.get("references", ())
    said = {
        **request.as_execution_options(),
        "priority": (request.delivery_info or {}).get("priority"),
        "ignore_result": request.ignore_result,
        "queue": header["queue"],
    }
    options = {k: v for k, v in said.items() if v is not None and k not in MESSAGES_OWN}
    passed_on = options.pop("headers", {})
    headers = {k: v for k, v in passed_on.items() if k not in (HEADER, RETURNED_BY)}
    return Asked(
        args=None if "args" in references else as_json(request.args),
        kwargs=None if "kwargs" in references else as_json(request.kwargs),
        options=as_json({**options, **({"headers": headers} if headers else {})}),
        references=[place for place in references if not isinstance(place, str)],
        is_awaited=is_awaited(task, options),
        code=spec_text(task) if header["job"] == task.name else "",
    )


def spec_text(task: Any) -> str:
    try:
        return spec_of(task).model_dump_json(exclude_defaults=True)
    except InvalidGuard:  # its calls are refused; a header may have guarded this one
        return ""


def given(**options: Any) -> dict[str, Any]:
    """Those of the options that somebody gave."""
    return {name: value for name, value in options.items() if value is not None}


def sendable(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a message sent by another process can have, too."""
    return {key: value for key, value in options.items() if key not in ("producer", "connection")}
