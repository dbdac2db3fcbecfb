"""How the functions of the ledger are called: one round trip for a call, or for many calls.

1. A process whose function the server does not have loads the library and calls again. The
   library is kept and replicated with the data, and outlives FLUSHALL.
2. A beat that starts deletes the libraries of other versions; a process that still needs one loads
   it again.

What only reads (READING) is no function: it is called by its digest, EVALSHA, so that a user
without the right to load functions can read.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import redis
from redis.exceptions import NoPermissionError, NoScriptError, ResponseError

from supervisor.errors import WrongSchema
from supervisor.ledger.function_library import READING, Library, digest, library_of, source, sources
from supervisor.ledger.limits import SCHEMA
from supervisor.store.connection import Client
from supervisor.store.failures import (
    NO_FUNCTIONS,
    NotServed,
    NotWritable,
    is_of_rights,
    is_of_server_without_functions,
)
from supervisor.store.keys import Keys

#: redis-py before 5.3 wants the name of the command for which a connection is taken.
NAMED = ("FCALL",) if redis.VERSION < (5, 3) else ()


MISMATCH = "WRONGSCHEMA "


def mismatch(reply: object) -> WrongSchema | None:
    """What a function said that found a ledger of another schema; None of any other reply."""
    if isinstance(reply, ResponseError) and str(reply).startswith(MISMATCH):
        return WrongSchema(int(str(reply).removeprefix(MISMATCH)), SCHEMA)
    return None


def refused(error: ResponseError) -> Exception:
    """`error`, or what callers know: another schema, a server that takes no writes, and so on."""
    if is_of_server_without_functions(error):
        return NotServed(NO_FUNCTIONS)
    if is_of_rights(error):
        return NoPermissionError(str(error))
    if str(error).startswith(NotWritable.CODES):
        return NotWritable(str(error))
    return mismatch(error) or error


#: Calls that are sent before the reply to the first of them is read: one that takes the server
#: long, and one that is small.
CALLS_AHEAD = 2
SMALL_CALLS_AHEAD = 100


def is_missing(error: ResponseError) -> bool:
    """Whether the server does not have it, and has done nothing."""
    return isinstance(error, NoScriptError) or str(error) == "Function not found"


#: JSON for the functions. A character that UTF-8 has no bytes for is refused when it is sent, as in
#: any other argument.
document = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Call(NamedTuple):
    """The arguments of one call of a function."""

    args: tuple[str | int, ...]
    keys: tuple[str, ...] = ()


class Functions:
    """Those of one ledger, and what only reads: one round trip for a call, or for many calls.

    Both raise WrongSchema when another version of this code writes the ledger.
    """

    def __init__(self, client: Client, keys: Keys) -> None:
        sources()
        self._client = client
        self._keys = keys

    @cached_property
    def _library(self) -> Library:
        return library_of(self._keys.prefix)

    @cached_property
    def _readers(self) -> Mapping[str, str]:
        return {name: self._keys.lua(*keys) + source(name) for name, keys in READING.items()}

    @cached_property
    def _commands(self) -> dict[str, tuple[str, str]]:
        """How each that was called before is called: as a function, or by its digest."""
        return {name: ("EVALSHA", digest(text)) for name, text in self._readers.items()}

    def __call__(self, name: str, *args: str | int, keys: tuple[str, ...] = ()) -> Any:
        """``functions("begin", run_id, token, worker)``"""
        return self.as_of_sending(name, lambda: Call(args, keys))

    def act(self, entry: str, name: str, *args: str | int, keys: tuple[str, ...] = ()) -> Any:
        """The same for what a person or a program asked for: the record of actions has it.

        entry: that of actions.py; empty where no one asked for it.
        """
        return self("act", *args, name, entry, keys=keys) if entry else self(name, *args, keys=keys)

    def as_of_sending(self, name: str, call: Callable[[], Call]) -> Any:
        """The same for a call that tells of time: it is asked for whenever it is sent."""
        with self._connected() as connection:

            def made() -> Any:
                connection.send_command(*self._command(name), *self._arguments(call()))
                return connection.read_response()

            try:
                return connection.retry.call_with_retry(made, lambda _: connection.disconnect())
            except ResponseError as error:
                refusal = error
        if is_missing(refusal):
            return self._loaded(name, call())
        raise refused(refusal) from refusal

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """A connection of the client's pool; closed after an error, for a reply may still come."""
        pool = self._client.connection_pool
        connection: Any = pool.get_connection(*NAMED)
        try:
            yield connection
        except BaseException:
            connection.disconnect()
            raise
        finally:
            pool.release(connection)

    def _loaded(self, name: str, call: Call) -> Any:
        """The same on a server that does not have it yet."""
        try:
            if name in READING:
                text = self._readers[name]
                return self._client.eval(text, *self._arguments(call))
            self._client.function_load(self._library.text, replace=True)
            function = self._command(name)[1]
            return self._client.fcall(function, *self._arguments(call))
        except ResponseError as error:
            raise refused(error) from error

    def _arguments(self, call: Call) -> tuple[Any, ...]:
        """What a job or a person wrote may have half a character, which is no text for Redis."""
        args = (
            a if isinstance(a, int) or a.isascii() else a.encode(errors="replace")
            for a in call.args
        )
        return (len(call.keys), *call.keys, *args)

    def _command(self, name: str) -> tuple[str, str]:
        try:
            return self._commands[name]
        except KeyError:
            return self._commands.setdefault(name, ("FCALL", f"{self._library.name}_{name}"))

    def forget_versions(self, but: str = "") -> None:
        """Deletes the libraries of all versions for these keys, where the user may do so."""
        with suppress(ResponseError):  # also where another process was quicker
            for library in self._client.function_list(library=f"{self._library.family}*"):
                # With RESP3 it is a mapping.
                name = library["library_name"] if isinstance(library, Mapping) else library[1]
                if name != but:
                    self._client.function_delete(name)

    def forget_other_versions(self) -> None:
        self.forget_versions(but=self._library.name)

    def many(self, name: str, calls: Iterable[Call]) -> list[Any]:
        """The replies to all calls of one function, which are made in order."""
        return list(self.stream(name, calls, SMALL_CALLS_AHEAD))

    def stream(self, name: str, calls: Iterable[Call], ahead: int = CALLS_AHEAD) -> Iterator[Any]:
        """The same one by one: while the server is at some calls, the next ones are made and sent.

        Raises what the server says of a call once the replies to those before it have been given.
        """
        rest = iter(calls)
        for first in rest:
            with self.ahead(name) as sent:
                for call in chain((first,), rest):
                    sent.send(call)
                    while len(sent) > ahead:
                        yield from sent.replies()
                while sent:
                    yield from sent.replies()

    @contextmanager
    def ahead(self, name: str) -> Iterator[CallsAhead]:
        """For calls of one function that are made and sent while the server is at earlier ones.

        They are not tried again: which of them were made is not known where the server is away.
        """
        with self._connected() as connection:
            yield CallsAhead(self, name, connection)


class CallsAhead:
    """Calls of one function on one connection, in order, whose replies have not been read yet."""

    def __init__(self, functions: Functions, name: str, connection: Any) -> None:
        self._functions = functions
        self._name = name
        self._connection = connection
        self._calls = deque[Call]()

    def __len__(self) -> int:
        return len(self._calls)

    def send(self, call: Call) -> None:
        functions = self._functions
        command = (*functions._command(self._name), *functions._arguments(call))
        # A check of health would take a reply that is on its way for its own.
        self._connection.send_command(*command, check_health=not self._calls)
        self._calls.append(call)

    def replies(self) -> list[Any]:
        """To the first call; to all that were sent, where the server had no such function.

        Raises what the server says of the call.
        """
        try:
            reply = self._connection.read_response()
            self._calls.popleft()
            return [reply]
        except ResponseError as error:
            if not is_missing(error):
                raise refused(error) from error
        # A server that was restarted or flushed: the calls did nothing. They are made again before
        # any further one is, for they are made in order.
        again = [*self._calls]
        self._calls.clear()
        for _ in again[1:]:
            with suppress(ResponseError):
                self._connection.read_response()
        return [self._functions._loaded(self._name, call) for call in again]
