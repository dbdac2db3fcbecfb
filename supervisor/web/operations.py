"""What an operation of the JSON API is: what it takes, returns and may fail with, declared once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, TypeAdapter
from starlette.datastructures import Headers

from supervisor.errors import JobConflict, did_you_mean
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.queues import Queues
from supervisor.operate.job_edits import JobEdits
from supervisor.web.http import RequestRefused

Schema = dict[str, Any]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tagged(Generic[T]):
    """An answer with the version of what it shows."""

    answer: T
    version: int

    is_new: bool = False
    """The request made it."""


@dataclass(frozen=True, slots=True)
class Preconditions:
    """The versions that a request requires: those of If-Match, or none with If-None-Match: *."""

    if_match: str | None
    if_none_match: str | None

    @classmethod
    def of(cls, headers: Headers) -> Self:
        return cls(headers.get("if-match"), headers.get("if-none-match"))

    def version(self, job: str, present: int) -> int | None:
        """The version that may be replaced, 0 for none, None for any. `present`: of the job now.

        Raises JobConflict.
        """
        if self.if_none_match is not None:
            if self.if_none_match.strip() != "*":
                raise RequestRefused(400, "If-None-Match takes * only")
            if present:
                raise JobConflict(job, present)
            return 0
        if self.if_match is None:
            return None
        tags = {tag.strip() for tag in self.if_match.split(",")}
        if not present or not tags & {"*", etag(present)}:
            raise JobConflict(job, present)
        return present


def etag(version: int) -> str:
    return f'"{version}"'


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter of the query. `schema` is JSON Schema; by default any text."""

    name: str
    about: str
    schema: Schema = field(default_factory=lambda: {"type": "string"})

    def check(self, text: str) -> None:
        """Raises RequestRefused."""
        words, most = self.schema.get("enum"), self.schema.get("maximum")
        if words and text not in words:
            raise RequestRefused(400, f"{self.name} is one of {', '.join(words)}")
        is_number = text.isascii() and text.isdigit() and len(text) <= 9
        if most and not (is_number and 0 < int(text) <= most):
            raise RequestRefused(400, f"{self.name} is a number from 1 to {most:,}")


def up_to(most: int, about: str) -> Query:
    return Query("limit", about, {"type": "integer", "minimum": 1, "maximum": most})


REASON = Query("reason", "Reason, kept in the record of actions.")

Method = Literal["get", "post", "put", "delete"]


class Operation:
    """call: the method of Api. status: of success. errors: other statuses that it may answer.

    What the method takes and returns is read from its annotations once, not at each request.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        method: Method,
        path: str,
        status: int,
        queries: Sequence[Query],
        errors: frozenset[int],
    ) -> None:
        hints = get_type_hints(call)
        returned = hints["return"]
        self.call, self.name, self.about = call, call.__name__, str(call.__doc__)
        self.method, self.path, self.status = method, path, status
        self.queries, self.errors = queries, errors
        self.has_version = get_origin(returned) is Tagged
        self.answer = TypeAdapter[Any](get_args(returned)[0] if self.has_version else returned)
        self.body: type[BaseModel] | None = hints.get("body")
        self.takes_document = "document" in hints
        self.takes_preconditions = "preconditions" in hints
        self.is_recorded = "by" in hints

    def check(self, query: Mapping[str, str]) -> None:
        """Raises RequestRefused for a parameter that it does not have, or a value that it lacks.

        A filter with a mistyped name would let through everything.
        """
        parameters = {each.name: each for each in self.queries}
        for name, text in query.items():
            if name not in parameters:
                hint = did_you_mean(name[:100], parameters)
                raise RequestRefused(400, f"there is no parameter {name[:100]!r} here{hint}")
            parameters[name].check(text)


OPERATIONS: list[Operation] = []

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


def operation(
    method: Method,
    path: str,
    status: int = 200,
    queries: Sequence[Query] = (),
    errors: Sequence[int] = (),
) -> Callable[[Endpoint], Endpoint]:
    """Makes a method of Operations one; its docstring is the summary."""
    is_of_one = "{" in path and method != "put"
    codes = {400, *errors, *((404,) if is_of_one else ())}
    codes |= {413, 415} if method in ("post", "put") else set()

    def listed(call: Endpoint) -> Endpoint:
        OPERATIONS.append(Operation(call, method, path, status, queries, frozenset(codes)))
        return call

    return listed


class Operations:
    """A class of operations. Api inherits all of them."""

    def __init__(self, ledger: Ledger, broker: Queues | None, edits: JobEdits) -> None:
        self._ledger = ledger
        self._broker = broker
        self._edits = edits
