"""When and with what a failed attempt is tried again, as Celery's own words for it have it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

from celery.exceptions import Retry
from celery.utils.time import maybe_make_aware

from supervisor.execution.delivery import Delivery
from supervisor.ledger.requests import Asked
from supervisor.sending.call_requests import sendable
from supervisor.sending.publisher import as_json

#: By position, or by name.
Arguments = Mapping[Any, Any]

#: The id of a task that Celery itself sends again.
_sent_again: ContextVar[str | None] = ContextVar("supervisor_sent_again", default=None)


@contextmanager
def sent_again(task_id: str | None) -> Iterator[None]:
    """Celery's own retry calls the task again, under the same id."""
    before = _sent_again.set(task_id)
    try:
        yield
    finally:
        _sent_again.reset(before)


def is_sent_again(task_id: str | None) -> bool:
    return task_id is not None and task_id == _sent_again.get()


def asked_again(
    delivery: Delivery, request: Any, args: Any, kwargs: Any, options: Mapping[str, Any]
) -> Asked:
    """What a `retry` says of the next attempt. Raises TypeError for what JSON refuses.

    What the schedule file wrote goes on as it is written there, a secret as its reference, also
    where the task hands on the secret itself.
    """
    by_place = None if args is None else indexed(args)
    args, of_args = written_anew(delivery, "args", by_place, indexed(request.args))
    kwargs, of_kwargs = written_anew(delivery, "kwargs", kwargs, request.kwargs)
    return Asked(
        args=None if args is None else as_json([*args.values()]),
        kwargs=as_json(kwargs),
        options=as_json(sendable(options)),
        references=[*of_args, *of_kwargs],
    )


def written_anew(
    delivery: Delivery, what: str, given: Arguments | None, sent: Arguments
) -> tuple[Arguments | None, list[str]]:
    """The arguments to keep, None for those that the run has; and which of them have references."""
    if given is None or given == sent:
        return None, [name for name in delivery.references if name.startswith(f"{what}.")]
    kept, references = dict(given), []
    for place, value in given.items():
        if place in sent and delivery.is_written(what, place):
            known = sent[place], delivery.used[what][place]
            if any(is_same(value, before) for before in known):
                kept[place] = sent[place]
                references.append(f"{what}.{place}")
    return kept, references


def indexed(args: Iterable[Any]) -> Arguments:
    return dict(enumerate(args))


def is_same(value: Any, other: Any) -> bool:
    """Of a value of any class, whose own comparison may be no answer."""
    return type(value) is type(other) and bool(value == other)


def retry_of(error: Any, delay: timedelta) -> Retry:
    return Retry(exc=error, when=delay.total_seconds())  # type: ignore[arg-type]


def until(eta: Any, countdown: Any, default: float) -> timedelta:
    """How long from now; Celery gives the one or the other, and `Retry.when` may be either.

    An instant without an offset is UTC, as Celery reads it in whatever zone app and machine are.
    """
    moment = eta if eta is not None else countdown
    if isinstance(moment, datetime):
        return max(timedelta(), maybe_make_aware(moment) - datetime.now(UTC))
    return timedelta(seconds=max(0.0, float(default if moment is None else moment)))
