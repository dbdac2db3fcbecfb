"""A supervised run's message, as the task class and the request class read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from supervisor.errors import RunInterrupted
from supervisor.execution.assignments import Assignment
from supervisor.job.references import Place, has_references, put, resolved, texts_in
from supervisor.ledger.replies import Grant
from supervisor.ledger.requests import NOTHING, Asked, Work
from supervisor.runs.run import Reference, StepId

#: The header that makes a message a supervised run's.
HEADER = "supervisor"

#: In it: the prefix of the run's ledger, and the owner's name.
LEDGER = "ledger"

#: Beside it: the ledger whose worker gave the message back.
RETURNED_BY = "supervisor_returned_by"

#: The header with which a call says how it is to be guarded; a mapping, or True.
GUARD = "guard"

#: Set by the worker's main process for each delivery, read in the child: both know the token.
TOKEN = "supervisor_token"


@dataclass(slots=True)
class Delivery:
    """One delivery of a run to this process; `retry_in` is set when it asks for another.

    entered: the task's body was called; at_work: it is running; ended_at: since when it no longer
    is, by the clock of elapsed.py; interrupted: by this it was ended;
    raised: by it, as Celery was to take it; has_returned: it came to its end. returned: by a step,
    for those after it. references: as in an Assignment; written: each text that has one, and what
    became of it, -> the text. asked: for the next attempt. again: what a `retry` that was not to
    raise would have raised.
    """

    run_id: str
    job: str
    queue: str
    token: str
    retries: int
    max_retries: int
    retry_backoff: timedelta
    retry_backoff_max: timedelta
    references: Sequence[Reference] = ()
    written: dict[str, str] = field(default_factory=dict, repr=False)
    grant: Grant | None = None
    entered: bool = False
    at_work: bool = False
    ended_at: float | None = None
    interrupted: RunInterrupted | None = None
    raised: BaseException | None = field(default=None, repr=False)
    has_returned: bool = False
    returned: dict[str, Any] | None = None
    retry_in: timedelta | None = None
    asked: Asked = NOTHING
    again: BaseException | None = field(default=None, repr=False)
    error: BaseException | None = field(default=None, repr=False)

    @classmethod
    def of(cls, header: Mapping[str, Any], token: str, retries: int) -> Delivery:
        return cls(
            run_id=header["run"],
            job=header["job"],
            queue=header["queue"],
            token=token,
            retries=retries,
            max_retries=header["max_retries"],
            retry_backoff=timedelta(seconds=header["retry_backoff"]),
            retry_backoff_max=timedelta(seconds=header["retry_backoff_max"]),
            references=header.get("references", ()),
        )

    @property
    def has_retries_left(self) -> bool:
        return self.retries < self.max_retries

    @property
    def backoff(self) -> timedelta:
        """Exponential: doubled for each failed attempt, up to the job's bound."""
        # 2 ** 30 times the shortest wait is past any bound; it keeps the number finite.
        doublings = int(2 ** min(self.retries, 30))
        return min(self.retry_backoff * doublings, self.retry_backoff_max)

    def with_secrets(self, args: Any, kwargs: Any, environ: Mapping[str, str]) -> tuple[Any, Any]:
        """The arguments with secrets in place of references. Raises SecretMissing."""
        given = deepcopy({"args": list(args), "kwargs": dict(kwargs)})
        for place, text in list(texts_in(given)):
            if self.is_written(place) and has_references(text):
                secret = resolved(text, environ)
                self.written |= {text: text, **({secret: text} if secret else {})}
                put(given, place, secret)
        return given["args"], given["kwargs"]

    def is_written(self, place: Place) -> bool:
        """Whether what stands there is a word of the schedule file."""
        if [*place] in self.references:
            return True
        step = StepId.of(self.run_id)
        # The item of a batch is data.
        is_item = place[:2] == ("args", 0) and step is not None and step.item is not None
        return place[0] in self.references and not is_item


def supervised(headers: Any, task_id: str) -> dict[str, Any] | None:
    """Our header, if the message is the run's own and not one that inherited its headers."""
    header = headers.get(HEADER) if isinstance(headers, Mapping) else None
    return header if isinstance(header, dict) and header.get("run") == task_id else None


def is_well_formed(header: Any) -> bool:
    """Whether a worker can make sense of it: whoever writes to the queue may have made it up."""
    try:
        work, delivery = work_of(header, ""), Delivery.of(header, "", 0)
        timedelta(milliseconds=work.rules["lease_ttl"] + work.rules["stop_grace"])
        texts = (work.run_id, work.job, delivery.queue, work.rules["on_lease_lost"])
        numbers = (work.rules["lease_ttl"], work.rules["stop_grace"], delivery.max_retries)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return False
    return (
        all(isinstance(text, str) for text in texts)
        and all(type(number) is int and number >= 0 for number in numbers)
        and work.nominal_at.tzinfo is not None
        and isinstance(delivery.references, list | tuple)
    )


def message_header(assignment: Assignment, queue: str) -> dict[str, Any]:
    """What a run's message says beside Celery's own headers."""
    run = assignment.run
    references = {"references": list(assignment.references)} if assignment.references else {}
    return {
        "run": run.id,
        "job": run.job,
        "queue": queue,
        "nominal_at": run.nominal_at.isoformat(),
        "rules": dict(assignment.rules),
        "max_retries": assignment.max_retries,
        "retry_backoff": assignment.retry_backoff,
        "retry_backoff_max": assignment.retry_backoff_max,
        **references,
    }


def work_of(header: Mapping[str, Any], worker: str) -> Work:
    """The run of a message, as the worker that has it would tell a ledger that forgot it."""
    return Work(
        run_id=header["run"],
        job=header["job"],
        nominal_at=datetime.fromisoformat(header["nominal_at"]),
        rules=header["rules"],
        worker=worker,
    )
