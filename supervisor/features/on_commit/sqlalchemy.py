"""Triggers that wait for the commit of a SQLAlchemy session.

1. A trigger is held by the innermost transaction that the session is in: a SAVEPOINT, or the
   outermost. A session that is in none begins one, as `session.add()` does.
2. A transaction that commits hands what it holds to the one around it; from the outermost it is
   free.
3. A transaction that ends drops what it still holds: it was rolled back, or closed. At the end of
   the outermost, which has given its connection back, what is free fires, in the order of the
   requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery import Celery, Task
from sqlalchemy import event
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from supervisor.features.on_commit.trigger import PendingTrigger, trigger_of

if TYPE_CHECKING:
    # It needs greenlet, which programs without asyncio do not have.
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

    AnySession = Session | scoped_session[Any] | AsyncSession | async_scoped_session[Any]

#: The key in `Session.info`.
PENDING = "supervisor.features"


@dataclass(slots=True)
class Pending:
    trigger: PendingTrigger

    holder: SessionTransaction | None
    """The transaction that must commit next; None when the outermost has."""


def trigger_on_commit(
    session: AnySession,
    job_or_task: str | Task[Any, Any],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    app: Celery | None = None,
    **options: Any,
) -> str:
    """Triggers a run when the session's transaction commits, and returns the id of that run.

    - `job_or_task`: the name of a loaded job, or a task of a supervised app.
    - `args`, `kwargs`: JSON, copied at the time of the call. None means the job's own.
    - `app`: the app of a job that is given by name, by default the current app.
    - `options`: for a job `key`, `overlap` and `max_wait`; for a task the parameters of its
      `apply_async`.

    Raises NotConfigured, InvalidGuard, InvalidKey, and TypeError for arguments
    that the task does not take.
    """
    trigger = trigger_of(job_or_task, args, kwargs, app, options)
    own = sync_session(session)
    pending = Pending(trigger, innermost(own))
    own.info.setdefault(PENDING, []).append(pending)
    return trigger.run_id


def sync_session(session: AnySession) -> Session:
    if isinstance(session, Session):
        return session
    if callable(session):  # scoped_session, async_scoped_session
        return sync_session(session())
    return session.sync_session


def innermost(session: Session) -> SessionTransaction:
    may_begin = session.autobegin or session.in_transaction()
    if not (session.is_active and may_begin):
        raise InvalidRequestError(
            "no transaction of this session can commit what is asked for now: it has not begun"
            " (autobegin=False), has committed, or is to be rolled back"
        )
    return session.get_nested_transaction() or session.get_transaction() or session.begin()


def around(transaction: SessionTransaction) -> SessionTransaction | None:
    """The next outer transaction that commits by itself, as those of a flush do not."""
    outer = transaction.parent
    while outer is not None and outer.parent is not None and not outer.nested:
        outer = outer.parent
    return outer


@event.listens_for(Session, "after_commit")
def hand_on(session: Session) -> None:
    committed = session.get_nested_transaction() or session.get_transaction()
    for pending in session.info.get(PENDING, ()):
        if committed is not None and pending.holder is committed:
            pending.holder = around(committed)


@event.listens_for(Session, "after_transaction_end")
def drop_or_fire(session: Session, transaction: SessionTransaction) -> None:
    if PENDING not in session.info:
        return
    pending = [each for each in session.info.pop(PENDING) if each.holder is not transaction]
    if transaction.parent is not None:
        session.info[PENDING] = pending
        return
    for each in pending:
        each.trigger.fire()
