"""The message of a run, as a worker reads it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from supervisor.job.policies import RunLog
from supervisor.job.run import RunRules
from supervisor.job.secrets import Mask
from supervisor.ledger.attempt import Work
from supervisor.ledger.ledger import Ledger
from supervisor.logs import get_logger
from supervisor.store.failures import RedisError

#: The header that makes a message a supervised run's.
HEADER = "supervisor"

#: In that header: the prefix of the run's ledger, and the owner's name.
LEDGER = "ledger"

#: Also in it: how often the run had been retried. Each retry may change its arguments.
RETRIES = "retries"

#: Also in it: the nominal time of the run, in ms.
NOMINAL = "nominal"

#: The header with which a call says how it is to be guarded; a mapping, or True.
GUARD = "guard"

#: Set by the worker's main process for each delivery, read in the child: both know the token.
TOKEN = "supervisor_token"

#: Set before the task is traced: digests of the message as it came (job/content.py).
CONTENT = "supervisor_content"

#: Headers that Celery makes for each message; all others are the app's own, or another library's.
CELERYS_HEADERS = frozenset(
    (
        *("lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries"),
        *("timelimit", "root_id", "parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result"),
        *("replaced_task_nesting", "stamped_headers", "stamps", "compression", HEADER),
    )
)


def own_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The headers that code beside Celery's has given a message."""
    return {name: value for name, value in headers.items() if name not in CELERYS_HEADERS}


HINT = (
    "give each deployment queues of its own"
    " (docs/reference/settings.md, Two deployments on one Redis)"
)

log = get_logger("supervisor.guard")


@dataclass(frozen=True, slots=True)
class Delivery:
    """What the message of a run says about one attempt."""

    header: Mapping[str, Any]
    token: str

    retries: int = 0
    """As Celery counts them."""

    @property
    def run_id(self) -> str:
        return str(self.header["run"])

    @property
    def job(self) -> str:
        return str(self.header["job"])

    @property
    def queue(self) -> str:
        return str(self.header["queue"])

    @property
    def prefix(self) -> str:
        """Of the ledger that the message was made from."""
        return str(self.header[LEDGER][0])

    @property
    def owner(self) -> str:
        """Of that ledger."""
        return str(self.header[LEDGER][1])

    @property
    def sent_after(self) -> int:
        """How many retries the ledger had counted."""
        return int(self.header[RETRIES])

    @property
    def lock(self) -> str:
        return str(self.header["rules"].get("lock", ""))

    @property
    def mask(self) -> Mask:
        mask: Mask = self.header["rules"].get("mask", False)
        return mask

    @property
    def log(self) -> str:
        return str(self.header["rules"].get("log", RunLog.REPORTED))

    @property
    def has_retries_left(self) -> bool:
        return bool(self.retries < self.header["max_retries"])

    @property
    def backoff(self) -> timedelta:
        """Exponential: doubled for each failed attempt, up to the job's bound."""
        # 2 ** 30 times the shortest wait is past any bound; it keeps the number finite.
        seconds = self.header["retry_backoff"] * 2 ** min(self.retries, 30)
        return timedelta(seconds=min(seconds, self.header["retry_backoff_max"]))


def supervised(headers: Any, task_id: str) -> dict[str, Any] | None:
    """Our header, if the message is the run's own and not one that inherited its headers."""
    header = headers.get(HEADER) if isinstance(headers, Mapping) else None
    return header if isinstance(header, dict) and header.get("run") == task_id else None


def run_header(message: Any) -> dict[str, Any] | None:
    """The same of a message as kombu has it."""
    headers = message.headers
    return supervised(headers, str(headers.get("id"))) if isinstance(headers, dict) else None


def note_shared_queue(ledger: Ledger, delivery: Delivery) -> None:
    """Reports a message of another ledger: in the log, once for all processes, and by `doctor`."""
    queue, other = delivery.queue, f"{delivery.prefix} of {delivery.owner}"
    with suppress(RedisError):
        if ledger.note_shared_queue(queue, other):
            log.error("queue shared with another ledger", queue=queue, other=other, hint=HINT)


def work_of(header: Mapping[str, Any]) -> Work:
    """The run of a message; which child works it is not known yet."""
    return Work(
        run_id=header["run"],
        job=header["job"],
        nominal_at=datetime.fromtimestamp(header[NOMINAL] / 1000, UTC),
        rules=RunRules.model_validate(header["rules"]),
    )
