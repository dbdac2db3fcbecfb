"""A supervised run's message, as the task class and the request class read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from supervisor.ledger.replies import Grant

#: The header that makes a message a supervised run's.
HEADER = "supervisor"

#: Set by the worker's main process for each delivery, read in the child: both know the token.
TOKEN = "supervisor_token"


@dataclass(slots=True)
class Delivery:
    """One delivery of a run to this process; `retry_in` is set when it asks for another."""

    run_id: str
    token: str
    retries: int
    max_retries: int
    retry_backoff: timedelta
    retry_backoff_max: timedelta
    grant: Grant | None = None
    entered: bool = False
    retry_in: timedelta | None = None
    retry_args: Any = None
    retry_kwargs: Any = None
    error: BaseException | None = field(default=None, repr=False)

    @classmethod
    def of(cls, header: Mapping[str, Any], token: str, retries: int) -> Delivery:
        return cls(
            run_id=header["run"],
            token=token,
            retries=retries,
            max_retries=header["max_retries"],
            retry_backoff=timedelta(seconds=header["retry_backoff"]),
            retry_backoff_max=timedelta(seconds=header["retry_backoff_max"]),
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


def supervised(headers: Any, task_id: str) -> dict[str, Any] | None:
    """Our header, if the message is the run's own and not one that inherited its headers."""
    header = (headers or {}).get(HEADER)
    return header if header and header.get("run") == task_id else None
