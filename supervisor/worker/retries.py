"""When and with what a failed attempt is tried again, from the arguments of Celery's `retry`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from celery.exceptions import Retry

from supervisor.guard.attempt import Attempt
from supervisor.job.run import Reference
from supervisor.job.secrets import put, texts_in
from supervisor.ledger.run_request import CallArguments
from supervisor.sending.calls import sendable
from supervisor.sending.calls import until as from_now
from supervisor.sending.content import as_json
from supervisor.worker.celery_fixes import given_once


def next_arguments(
    attempt: Attempt, task: Any, args: Any, kwargs: Any, options: Mapping[str, Any]
) -> CallArguments:
    """What a `retry` asks for the next attempt. Raises TypeError for what JSON refuses.

    Texts from a schedule file are passed on as they are written there, and a secret as its
    reference, wherever the task puts them; also if the task passes on the secret itself.
    """
    request = task.request
    args, kwargs = given_once(task, args, kwargs)
    args = None if args is None or list(args) == list(request.args) else as_json(list(args))
    kwargs = None if kwargs == request.kwargs else as_json(kwargs)
    references: list[Reference] = []
    for what, given in (("args", args), ("kwargs", kwargs)):
        if given is None:
            own = (path for path in attempt.arguments.references if not isinstance(path, str))
            references += [path for path in own if path[0] == what]
            continue
        for path, text in list(texts_in(given)):
            written = attempt.arguments.written.get(text)
            if written is not None:
                put(given, path, written)
                references.append([what, *path])
    return CallArguments(args, kwargs, options_again(options), references)


def options_again(options: Mapping[str, Any]) -> dict[str, Any]:
    """Makes `expires` an instant: it counts from now, and the message is sent later."""
    kept = sendable(options)
    left = from_now(kept.pop("expires", None))
    if left is not None:
        kept["expires"] = (datetime.now(UTC) + left).isoformat()
    return dict(as_json(kept))


def retry_of(error: Any, delay: timedelta) -> Retry:
    return Retry(exc=error, when=delay.total_seconds())  # type: ignore[arg-type]


def delay_of(eta: Any, countdown: Any, default: float) -> timedelta:
    """How long from now. Celery passes `eta` or `countdown`, and `Retry.when` may be either."""
    moment = eta if eta is not None else countdown
    return from_now(default if moment is None else moment) or timedelta()
